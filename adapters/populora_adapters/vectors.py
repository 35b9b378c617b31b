"""gymnasium's vector environments: those of which single slots can be reset, and those that reset themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv

from populora_adapters.duck import longest, time_limit
from populora_envs.adapter import Autoreset, Transition, blame, reward_number
from populora_envs.spaces import to_numpy

if TYPE_CHECKING:
    from collections.abc import Sequence


class _Vector:
    """What both kinds of vector environments share."""

    def __init__(self, env: VectorEnv[Any, Any, Any], *, seeds_slots: bool) -> None:
        self._env = env
        self.num_slots = env.num_envs
        self.observation_space = env.single_observation_space
        self.action_space = env.single_action_space
        self.seeds_slots = seeds_slots
        self.time_limit = _vector_time_limit(env)

    def _step(self, actions: Any) -> Transition:
        observation, reward, terminated, truncated, _ = self._env.step(actions)
        rewards = _rewards(reward)
        if rewards.shape != (self.num_slots,):
            message = (
                f"the vector environment gave rewards of shape {rewards.shape} for "
                f"{self.num_slots} slots"
            )
            raise ValueError(message)
        return Transition(
            observation,
            rewards,
            to_numpy(terminated).astype(np.bool_),
            to_numpy(truncated).astype(np.bool_),
        )

    def close(self) -> None:
        """Close the vector environment."""
        self._env.close()


class SlotResetVector(_Vector):
    """A vector environment of which single slots can be reset, whatever its autoreset mode.

    Args:
        env: takes ``reset(options={"reset_mask": [N] bool})``.
        seeds_slots: whether `reset` takes one seed per slot.
        rests: whether a slot that has ended must be reset before the next step (mode DISABLED).
    """

    autoreset = Autoreset.CALLER

    def __init__(self, env: VectorEnv[Any, Any, Any], *, seeds_slots: bool, rests: bool) -> None:
        super().__init__(env, seeds_slots=seeds_slots)
        self._rests = rests
        self._ended = np.zeros(self.num_slots, dtype=bool)
        self._started = False

    def reset(self, seeds: Sequence[int] | None = None, slots: np.ndarray | None = None) -> Any:
        """Begin episodes in `slots` and return the observations of all."""
        if slots is None or not self._started:
            # A first reset of some slots alone would leave the others without a state to step.
            slots, self._started = np.ones(self.num_slots, dtype=bool), True
        self._ended &= ~slots
        seed: Any = None
        if seeds is not None:
            seed = list(seeds) if self.seeds_slots else seeds[int(np.argmax(slots))]
        options = None if slots.all() else {"reset_mask": slots.copy()}
        observation, _ = self._env.reset(seed=seed, options=options)
        return observation

    def step(self, actions: Any, slots: np.ndarray | None = None) -> Transition:
        """Step all slots; what idle ones do does not matter."""
        del slots
        if self._rests and self._ended.any():
            self.reset(slots=self._ended.copy())
        transition = self._step(actions)
        self._ended = transition.terminated | transition.truncated
        return transition


class WaveVector(_Vector):
    """A vector environment that begins the next episode of a slot by itself."""

    def __init__(self, env: VectorEnv[Any, Any, Any], autoreset: Autoreset) -> None:
        super().__init__(env, seeds_slots=False)
        self.autoreset = autoreset

    def reset(self, seeds: Sequence[int] | None = None, slots: np.ndarray | None = None) -> Any:
        """Begin episodes in all slots, from the first of the seeds."""
        del slots
        observation, _ = self._env.reset(seed=None if seeds is None else int(seeds[0]))
        return observation

    def step(self, actions: Any, slots: np.ndarray | None = None) -> Transition:
        """Step all slots."""
        del slots
        return self._step(actions)


def _rewards(values: Any) -> np.ndarray:
    """Return rewards as float64; TypeError or ValueError where one of several is no number."""
    array = to_numpy(values)
    if array.dtype.kind in "biuf":
        return array.astype(np.float64)
    rewards = np.zeros(len(array))
    i = 0
    try:
        for i, value in enumerate(array):
            rewards[i] = reward_number(value)
    except (TypeError, ValueError) as error:
        blame(error, i)
        raise
    return rewards


def _vector_time_limit(env: VectorEnv[Any, Any, Any]) -> int | None:
    limit, inner = time_limit(env), env.unwrapped
    if limit is None and isinstance(inner, SyncVectorEnv):
        return longest(time_limit(member) for member in inner.envs)
    if limit is None and isinstance(inner, AsyncVectorEnv):
        specs = inner.get_attr("spec")
        return longest(getattr(spec, "max_episode_steps", None) for spec in specs)
    return limit
