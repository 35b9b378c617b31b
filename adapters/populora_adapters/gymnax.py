"""gymnax: functional environments of JAX."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces

from populora_adapters.functional import Advanced, Batch, FunctionalSlots, dtype_of_observations
from populora_envs.registry import near_names

if TYPE_CHECKING:
    from populora_envs.adapter import Adapter

__all__ = ["Batch", "adapt", "make", "make_batch", "multiply"]


def adapt(envs: list[Any]) -> Adapter:
    """Return one adapter over one environment, or over a `Batch` of it."""
    if len(envs) > 1:
        message = (
            "pass one environment and num_envs=, or a Batch: a list of functional ones is slow"
        )
        raise ValueError(message)
    env = envs[0]
    if isinstance(env, Batch):
        return FunctionalSlots(GymnaxWorld(env.env, env.params), env.num_envs)
    return FunctionalSlots(GymnaxWorld(env), 1)


def make(env_id: str) -> Any:
    """Make ``"gymnax/CartPole-v1"`` with its own parameters."""
    return make_batch(env_id, 1)


def make_batch(env_id: str, num_envs: int) -> Any:
    """Make so many of an environment.

    Raises:
        ValueError: for an unknown name, with near ones.
        ImportError: where gymnax is not installed.
    """
    try:
        import gymnax
    except ImportError as error:
        error.add_note('to get gymnax: pip install "jax[cpu]" gymnax, or jax for your accelerator')
        raise
    name = env_id.removeprefix("gymnax/")
    if name not in gymnax.registered_envs:
        near = near_names(name, gymnax.registered_envs)
        message = f"gymnax has no environment {name!r}; {near}"
        raise ValueError(message)
    env, params = gymnax.make(name)
    return Batch(env, num_envs, params)


def ids() -> list[str]:
    """Return what `make` takes; ImportError where gymnax is missing."""
    import gymnax

    return [f"gymnax/{name}" for name in sorted(gymnax.registered_envs)]


def multiply(env: Any, num_envs: int) -> list[Any]:
    """Return one batch of an environment that exists."""
    return [Batch(env, num_envs)]


class GymnaxWorld:
    """One gymnax environment without the reset that its `step` hides.

    Args:
        env: of gymnax 1.0 or newer.
        params: None means its own.

    Raises:
        TypeError: for an older one, which does not tell a time limit from an end.
    """

    def __init__(self, env: Any, params: Any = None) -> None:
        if not hasattr(env, "is_truncated"):
            message = f"{env} does not tell a time limit from an end: install gymnax 1.0 or newer"
            raise TypeError(message)
        self.env, self.params = env, env.default_params if params is None else params
        shown = dtype_of_observations(self.begin)  # some spaces of gymnax name another
        self.observation_space = _converted(env.observation_space(self.params), shown)
        self.action_space = _converted(env.action_space(self.params))
        limit = getattr(self.params, "max_steps_in_episode", None)
        self.time_limit = None if limit is None else int(limit)

    def begin(self, key: Any) -> tuple[Any, Any]:
        """Return state and observation of a new episode."""
        observation, state = self.env.reset_env(key, self.params)
        return state, observation

    def advance(self, key: Any, state: Any, action: Any) -> Advanced:
        """Return what a step gives."""
        given = self.env.step_env(key, state, action, self.params)
        observation, state, reward, terminated, _ = given
        truncated = self.env.is_truncated(state, self.params)
        return Advanced(state, observation, reward, terminated, truncated)


def _converted(space: Any, shown: Any = None) -> spaces.Space[Any]:
    """Return a space of gymnax as one of gymnasium, of the dtypes that are really shown."""
    kind = type(space).__name__
    if kind == "Discrete":
        return spaces.Discrete(int(space.n))
    if kind == "Box":
        dtype = np.dtype(space.dtype if shown is None else shown)
        if dtype == np.bool_:
            return spaces.MultiBinary(tuple(space.shape))
        bounds = (np.asarray(bound).astype(dtype) for bound in (space.low, space.high))
        low, high = (np.broadcast_to(bound, space.shape) for bound in bounds)
        return spaces.Box(low, high, tuple(space.shape), dtype.type)
    if kind == "Dict":
        parts = space.spaces.items()
        return spaces.Dict({k: _converted(part, shown and shown[k]) for k, part in parts})
    message = f"gymnax's space {kind} is not supported"
    raise TypeError(message)
