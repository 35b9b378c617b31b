"""brax: physics in JAX, with any of its backends (MJX among them)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces

from populora_adapters.functional import Advanced, Batch, FunctionalSlots
from populora_envs.registry import near_names

if TYPE_CHECKING:
    from populora_envs.adapter import Adapter

__all__ = ["Batch", "adapt", "make", "make_batch", "multiply"]

_OURS = frozenset({"AutoResetWrapper", "VmapWrapper"})
"""Wrappers of brax that do what is done here, an episode at a time."""


def adapt(envs: list[Any]) -> Adapter:
    """Return one adapter over one environment, or over a `Batch` of it."""
    if len(envs) > 1:
        message = (
            "pass one environment and num_envs=, or a Batch: a list of functional ones is slow"
        )
        raise ValueError(message)
    env = envs[0]
    count, inner = (env.num_envs, env.env) if isinstance(env, Batch) else (1, env)
    while type(inner).__name__ in _OURS:
        count = max(count, getattr(inner, "batch_size", None) or 1)
        inner = inner.env
    return FunctionalSlots(BraxWorld(inner), count)


def make(env_id: str) -> Any:
    """Make ``"brax/ant"`` with brax's time limit of 1,000 steps."""
    return make_batch(env_id, 1)


def make_batch(env_id: str, num_envs: int) -> Any:
    """Make so many of an environment.

    Raises:
        ValueError: for an unknown name, with near ones.
        ImportError: where brax is not installed.
    """
    try:
        from brax import envs
    except ImportError as error:
        error.add_note('to get brax: pip install "jax[cpu]" brax, or jax for your accelerator')
        raise
    name = env_id.removeprefix("brax/")
    if name not in envs._envs:
        message = f"brax has no environment {name!r}; {near_names(name, envs._envs)}"
        raise ValueError(message)
    return Batch(envs.create(name, auto_reset=False), num_envs)


def multiply(env: Any, num_envs: int) -> list[Any]:
    """Return one batch of an environment that exists."""
    return [Batch(env, num_envs)]


class BraxWorld:
    """One brax environment; actions are in -1..1, as its environments take them.

    An end at the limit of its `EpisodeWrapper` is a truncation.

    Args:
        env: without brax's own batches and resets.

    Raises:
        TypeError: for observations that are not one vector.
    """

    def __init__(self, env: Any) -> None:
        self.env = env
        size = env.observation_size
        if not isinstance(size, (int, np.integer)):
            message = f"brax observations of the sizes {size} are not supported: use one vector"
            raise TypeError(message)
        self.observation_space: spaces.Space[Any] = spaces.Box(
            -np.inf, np.inf, (int(size),), np.float32
        )
        self.action_space: spaces.Space[Any] = spaces.Box(
            -1.0, 1.0, (int(env.action_size),), np.float32
        )
        self.time_limit = _limit(env)

    def begin(self, key: Any) -> tuple[Any, Any]:
        """Return state and observation of a new episode."""
        state = self.env.reset(key)
        return state, state.obs

    def advance(self, key: Any, state: Any, action: Any) -> Advanced:
        """Return what a step gives."""
        del key
        state = self.env.step(state, action)
        done = state.done > 0
        truncated = state.info["truncation"] > 0 if "truncation" in state.info else done & False
        return Advanced(state, state.obs, state.reward, done & ~truncated, truncated)


def _limit(env: Any) -> int | None:
    """Return the steps of an `EpisodeWrapper`, which may lie below other wrappers."""
    while env is not None:
        inside = vars(env)
        if "episode_length" in inside:
            return -(-int(inside["episode_length"]) // int(inside.get("action_repeat", 1)))
        env = inside.get("env")
    return None


def ids() -> list[str]:
    """Return what `make` takes; ImportError where brax is missing."""
    from brax import envs

    return [f"brax/{name}" for name in sorted(envs._envs)]
