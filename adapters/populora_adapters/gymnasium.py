"""gymnasium: single environments, and vector environments in every autoreset mode."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from populora_adapters.duck import SingleEnvs, time_limit
from populora_envs.adapter import Autoreset, Transition
from populora_envs.registry import near_names

if TYPE_CHECKING:
    from collections.abc import Sequence

    from populora_envs.adapter import Adapter

_EXTRAS = {"box2d": "box2d", "mujoco": "mujoco", "ale": "atari"}


def adapt(envs: list[Any]) -> Adapter:
    """Return one adapter over single environments, or over one vector environment."""
    vectors = [env for env in envs if isinstance(env, VectorEnv)]
    if not vectors:
        return SingleEnvs(envs)
    if len(envs) > 1:
        message = "a list may hold single environments, not vector environments: pass one of them"
        raise ValueError(message)
    env = vectors[0]
    mode = _mode(env)
    if isinstance(env.unwrapped, (SyncVectorEnv, AsyncVectorEnv)):
        return SlotResetVector(env, seeds_slots=True, rests=mode is AutoresetMode.DISABLED)
    if mode is AutoresetMode.DISABLED:
        return SlotResetVector(env, seeds_slots=False, rests=True)
    same = mode is AutoresetMode.SAME_STEP
    return WaveVector(env, Autoreset.SAME_STEP if same else Autoreset.NEXT_STEP)


def make(env_id: str) -> Any:
    """Make one environment by its id.

    Raises:
        ValueError: for an unknown id, with near names.
    """
    try:
        return gymnasium.make(env_id)
    except (gymnasium.error.UnregisteredEnv, gymnasium.error.DeprecatedEnv, ModuleNotFoundError) as error:
        message = f"there is no environment {env_id!r} ({error}); {_near(env_id)}"
        raise ValueError(message) from error
    except gymnasium.error.DependencyNotInstalled as error:
        for word, extra in _EXTRAS.items():
            if word in str(error).lower():
                error.add_note(f'to get it: pip install "populora-envs[{extra}]"')
        raise


def _near(env_id: str) -> str:
    return near_names(env_id, gymnasium.registry)


def _mode(env: VectorEnv[Any, Any, Any]) -> AutoresetMode:
    """Return the autoreset mode that a vector environment declares, gymnasium's default else."""
    declared = env.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP)
    return declared if isinstance(declared, AutoresetMode) else AutoresetMode(declared)


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
        rewards = _as_array(reward, np.float64)
        if rewards.shape != (self.num_slots,):
            message = (
                f"the vector environment gave rewards of shape {rewards.shape} for "
                f"{self.num_slots} slots"
            )
            raise ValueError(message)
        return Transition(
            observation, rewards, _as_array(terminated, np.bool_), _as_array(truncated, np.bool_)
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

    def __init__(
        self, env: VectorEnv[Any, Any, Any], *, seeds_slots: bool, rests: bool
    ) -> None:
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


def _as_array(values: Any, dtype: Any) -> np.ndarray:
    values = values.cpu().numpy() if hasattr(values, "cpu") else values
    return np.asarray(values, dtype=dtype)


def _vector_time_limit(env: VectorEnv[Any, Any, Any]) -> int | None:
    limit = time_limit(env)
    if limit is None and isinstance(env.unwrapped, (SyncVectorEnv, AsyncVectorEnv)):
        specs = env.unwrapped.get_attr("spec")
        limit = getattr(specs[0], "max_episode_steps", None)
    return limit
