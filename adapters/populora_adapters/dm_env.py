"""dm_env: all of dm_control, and any environment with `action_spec` and `observation_spec`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces

from populora_envs.adapter import Autoreset, Transition, blame, close_all, reward_number
from populora_envs.registry import near_names
from populora_envs.slot_actions import make_picker
from populora_envs.spaces import OrderedDictSpace, Stack, check_same

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from populora_envs.adapter import Adapter


def adapt(envs: list[Any]) -> Adapter:
    """Return one adapter over dm_env environments of one kind."""
    return DmEnvs(envs)


def make(name: str) -> Any:
    """Load ``"domain-task"`` from dm_control's suite; ValueError with near names."""
    try:
        from dm_control import suite
    except ImportError as error:
        error.add_note('to get it: pip install "populora-envs[dm-control]"')
        raise
    domain, _, task = name.partition("-")
    if (domain, task) not in suite.ALL_TASKS:
        known = ["-".join(pair) for pair in suite.ALL_TASKS]
        message = f"dm_control's suite has no task {name!r}; {near_names(name, known)}"
        raise ValueError(message)
    return suite.load(domain, task)


class DmEnvs:
    """N dm_env environments; Dict observations keep the order of the spec.

    An episode that ends with discount 0 has terminated, with any other it was truncated. Environments
    whose task has a `random` state (dm_control's) are seeded through it before each reset.
    """

    autoreset = Autoreset.CALLER

    def __init__(self, envs: list[Any]) -> None:
        self.num_slots = len(envs)
        self.observation_space = space_of(envs[0].observation_spec())
        self.action_space = space_of(envs[0].action_spec())
        for slot, env in enumerate(envs):
            other = space_of(env.observation_spec())
            check_same(self.observation_space, other, slot, 0, "observation")
            check_same(self.action_space, space_of(env.action_spec()), slot, 0, "action")
        self.seeds_slots = all(_random_state(env) is not None for env in envs)
        limit = max(getattr(env, "_step_limit", np.inf) for env in envs)
        self.time_limit = int(np.ceil(limit)) if np.isfinite(limit) else None
        self._envs = envs
        self._steps = [env.step for env in envs]
        self._pick = make_picker(self.action_space)
        self._everyone = range(self.num_slots)
        self._stack = Stack(self.observation_space, self.num_slots)
        self._reward = np.zeros(self.num_slots)
        self._terminated = np.zeros(self.num_slots, dtype=bool)
        self._truncated = np.zeros(self.num_slots, dtype=bool)

    def _chosen(self, slots: np.ndarray | None) -> Iterable[int]:
        return self._everyone if slots is None else np.flatnonzero(slots).tolist()

    def reset(self, seeds: Sequence[int] | None = None, slots: np.ndarray | None = None) -> Any:
        """Begin episodes in `slots` and return the observations of all."""
        i = 0
        try:
            for i in self._chosen(slots):
                env = self._envs[i]
                if seeds is not None and self.seeds_slots:
                    _random_state(env).seed(seeds[i])
                self._stack.write(i, env.reset().observation)
        except Exception as error:
            blame(error, i)
            raise
        return self._stack.value

    def step(self, actions: Any, slots: np.ndarray | None = None) -> Transition:
        """Step the environments of `slots`."""
        pick, write = self._pick, self._stack.write
        i = 0
        try:
            for i in self._chosen(slots):
                step = self._steps[i](pick(actions, i))
                gain = step.reward
                self._reward[i] = gain if type(gain) is float else _gain(step)
                last = step.last()
                self._terminated[i] = last and step.discount == 0.0
                self._truncated[i] = last and step.discount != 0.0
                write(i, step.observation)
        except Exception as error:
            blame(error, i)
            raise
        return Transition(self._stack.value, self._reward, self._terminated, self._truncated)

    def close(self) -> None:
        """Close every environment."""
        close_all(self._envs)


def _gain(step: Any) -> float:
    """Return the reward of a time step; only a first one may have none."""
    return 0.0 if step.reward is None and step.first() else reward_number(step.reward)


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
