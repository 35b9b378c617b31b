"""What simulators that compute in PyTorch share: batches of tensors that are no vector environments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import batch_space
from gymnasium.wrappers import TimeLimit

from populora_adapters.duck import time_limit
from populora_adapters.vectors import SlotResetVector, WaveVector
from populora_envs.spaces import to_numpy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from populora_envs.adapter import Autoreset


def layers(env: Any) -> Iterator[Any]:
    """Yield an environment from its outermost wrapper down to the innermost."""
    inner = env.unwrapped
    while env is not None:
        yield env
        own = getattr(env, "__dict__", {})
        env = None if env is inner else own.get("env", own.get("_env"))


def longest_episode(env: Any) -> int | None:
    """Return the time limit that the outermost layer with one names, None where there is none."""
    limits = (time_limit(layer) for layer in layers(env))
    return next((limit for limit in limits if limit is not None), None)


def single_space(env: Any, what: str) -> spaces.Space[Any]:
    """Return the space of one sub-environment of `env`, as its wrappers have left it.

    Args:
        env: has ``<what>_space`` of the whole batch, and somewhere ``single_<what>_space``.
        what: ``"observation"`` or ``"action"``.

    Raises:
        ValueError: where a wrapper has changed it into something that is no batch.
    """
    name = f"single_{what}_space"
    single: spaces.Space[Any] = next(getattr(x, name) for x in layers(env) if hasattr(x, name))
    given, count = getattr(env, f"{what}_space"), int(env.unwrapped.num_envs)
    if given == batch_space(single, count) or (count == 1 and given == single):
        return single
    if count == 1 and given.shape == single.shape:
        return given  # type: ignore[no-any-return]
    found = unbatched(given, count)
    if found is None:
        message = (
            f"{env} has the {what} space {given}, which is no batch of {count}: leave out the wrapper "
            "that makes it so"
        )
        raise ValueError(message)
    return found


def unbatched(space: spaces.Space[Any], count: int) -> spaces.Space[Any] | None:
    """Return the space of one of `count` in a Box or a Dict of such, None for anything else."""
    if isinstance(space, spaces.Box) and space.shape[:1] == (count,):
        return spaces.Box(space.low[0], space.high[0], dtype=space.dtype.type)
    if isinstance(space, spaces.Dict):
        parts = {key: unbatched(part, count) for key, part in space.spaces.items()}
        if None not in parts.values():
            return spaces.Dict(parts)  # type: ignore[arg-type]
    return None


class TensorBatch(VectorEnv[Any, Any, Any]):
    """A batch of sub-environments behind the interface of gymnasium's vector environments.

    Args:
        env: the batch with its wrappers; `unwrapped` has `num_envs`.
        observation_space: of one sub-environment.
        action_space: of one sub-environment.
        limit: most steps of an episode, None where there is no limit.

    Raises:
        ValueError: where gymnasium's `TimeLimit` is among the wrappers.
    """

    def __init__(
        self,
        env: Any,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        limit: int | None,
    ) -> None:
        if any(isinstance(layer, TimeLimit) for layer in layers(env)):
            message = (
                f"{env} has gymnasium's TimeLimit around a batch, which counts for all of its "
                "environments together and resets none: make it without max_episode_steps, and pass "
                "horizon= to cut episodes"
            )
            raise ValueError(message)
        self._batch, self._is_closed = env, False
        self.num_envs = int(env.unwrapped.num_envs)
        self.single_observation_space = observation_space
        self.single_action_space = action_space
        self.max_episode_steps = limit

    def reset(
        self, *, seed: int | list[int] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin episodes in all sub-environments, or in those of the mask ``options["reset_mask"]``."""
        return self._batch.reset(seed=seed, options=options)  # type: ignore[no-any-return]

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step all sub-environments."""
        observation, reward, terminated, truncated, info = self._batch.step(actions)
        return observation, reward, self._flags(terminated), self._flags(truncated), info

    def _flags(self, flags: Any) -> np.ndarray:
        """Return one flag per sub-environment; some wrappers give one for all."""
        return np.broadcast_to(to_numpy(flags), (self.num_envs,))

    def close(self, **kwargs: Any) -> None:
        """Close the batch, once."""
        if not self._is_closed:
            self._is_closed = True
            self._batch.close(**kwargs)


class BatchInWaves(WaveVector):
    """A batch that begins the next episode of a slot by itself."""

    def __init__(self, env: TensorBatch, autoreset: Autoreset, notes: tuple[str, ...]) -> None:
        super().__init__(env, autoreset)
        self.notes = notes


class BatchBySlots(SlotResetVector):
    """A batch of which single slots can be reset, though not each from a seed of its own."""

    def __init__(self, env: TensorBatch, notes: tuple[str, ...]) -> None:
        super().__init__(env, seeds_slots=False, rests=False)
        self.notes = notes
