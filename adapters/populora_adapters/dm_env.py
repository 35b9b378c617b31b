"""dm_env: all of dm_control, and any environment with `action_spec` and `observation_spec`."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces

from populora_adapters.single import SingleEnvs
from populora_envs.registry import near_names
from populora_envs.spaces import OrderedDictSpace

if TYPE_CHECKING:
    from populora_adapters.single import Columns, Step
    from populora_envs.adapter import Adapter


def adapt(envs: list[Any]) -> Adapter:
    """Return one adapter over dm_env environments of one kind."""
    return DmEnvs(envs)


def make(env_id: str) -> Any:
    """Load ``"dm_control/domain-task"`` from dm_control's suite.

    Raises:
        ValueError: for an unknown task, with near names.
        ImportError: where dm_control is not installed.
    """
    name = env_id.removeprefix("dm_control/")
    try:
        with warnings.catch_warnings():
            # nobody wants a window
            warnings.filterwarnings("ignore", message=".*DISPLAY environment variable is missing")
            from dm_control import suite
    except ImportError as error:
        error.add_note('to get it: pip install "populora-envs[dm-control]"')
        raise
    domain, _, task = name.partition("-")
    if (domain, task) not in suite.ALL_TASKS:
        known = ["-".join(pair) for pair in suite.ALL_TASKS]
        message = f"dm_control's suite has no task {name!r}; {near_names(name, known)}"
        raise ValueError(message)
    # Some tasks (lqr) draw their physics when they are loaded: copies are to be the same environment.
    return suite.load(domain, task, task_kwargs={"random": 0})


def ids() -> list[str]:
    """Return what `make` takes; ImportError where dm_control is missing."""
    from dm_control import suite

    return [f"dm_control/{domain}-{task}" for domain, task in suite.ALL_TASKS]


def draw(env: Any) -> np.ndarray:
    """Return a picture of a dm_control environment, uint8 `[240, 320, 3]`, as its first camera sees it."""
    physics = getattr(env, "physics", None)
    if physics is None:
        message = f"{type(env).__name__} has no physics that could be drawn"
        raise ValueError(message)
    picture: np.ndarray = physics.render(240, 320, camera_id=0 if physics.model.ncam else -1)
    return picture


def frames_per_second(env: Any) -> float:
    """Return how many control steps a second has."""
    return 1.0 / float(env.control_timestep()) if hasattr(env, "control_timestep") else 30.0


class DmEnvs(SingleEnvs):
    """N dm_env environments; Dict observations keep the order of the spec.

    An episode that ends with discount 0 has terminated, with any other it was truncated. Environments
    whose task has a `random` state (dm_control's) are seeded through it before each reset.
    """

    def __init__(self, envs: list[Any]) -> None:
        limit = max(getattr(env, "_step_limit", np.inf) for env in envs)
        super().__init__(
            envs,
            [(space_of(env.observation_spec()), space_of(env.action_spec())) for env in envs],
            seeds_slots=all(_random_state(env) is not None for env in envs),
            time_limit=int(np.ceil(limit)) if np.isfinite(limit) else None,
        )

    def _begin(self, slot: int, seed: int | None) -> Any:
        env = self._envs[slot]
        if seed is not None and self.seeds_slots:
            _random_state(env).seed(seed)
        return env.reset().observation

    def _read(self, result: Any) -> Step:
        last = result.last()
        ends = last and result.discount == 0.0
        return result.observation, _gain(result), ends, last and not ends

    def _columns(self, results: list[Any]) -> Columns | None:
        lasts = [step.last() for step in results]
        if any(lasts) or any(step.reward is None for step in results):
            return None
        return [s.observation for s in results], [s.reward for s in results], lasts, lasts


def _gain(step: Any) -> float:
    """Return the reward of a time step; only a first one may have none."""
    return 0.0 if step.reward is None and step.first() else step.reward


def _random_state(env: Any) -> Any:
    """Return the generator behind an environment's task, None where it shows none."""
    state = getattr(getattr(env, "task", None), "random", None)
    return state if hasattr(state, "seed") else None


def space_of(spec: Any) -> spaces.Space[Any]:
    """Return a dm_env spec, or a nested structure of specs, as a gymnasium space."""
    if isinstance(spec, dict):
        return OrderedDictSpace([(key, space_of(part)) for key, part in spec.items()])
    if isinstance(spec, (list, tuple)):
        return spaces.Tuple([space_of(part) for part in spec])
    if hasattr(spec, "num_values"):
        return spaces.Discrete(int(spec.num_values))
    if hasattr(spec, "string_type"):
        return spaces.Text(max_length=2**16)
    dtype = np.dtype(spec.dtype)
    if dtype == np.bool_:
        return spaces.MultiBinary(spec.shape)
    low, high = _bounds(spec, dtype)
    return spaces.Box(low, high, spec.shape, dtype.type)


def _bounds(spec: Any, dtype: np.dtype[Any]) -> tuple[np.ndarray, np.ndarray]:
    """Return the bounds in the spec's dtype; those of the dtype where the spec names none."""
    least: Any = -np.inf
    most: Any = np.inf
    if np.issubdtype(dtype, np.integer):
        least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
    low, high = getattr(spec, "minimum", least), getattr(spec, "maximum", most)
    low = np.where(np.isfinite(low), low, least).astype(dtype)
    high = np.where(np.isfinite(high), high, most).astype(dtype)
    return np.broadcast_to(low, spec.shape), np.broadcast_to(high, spec.shape)
