"""Functional environments of JAX: many copies of one, as a vmapped and jitted function of their state."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from populora_envs.adapter import Autoreset, Transition

try:
    import jax
    import jax.numpy as jnp
except ImportError as error:
    error.add_note(
        'to get it: pip install "jax[cpu]" and gymnax or brax, or jax for your accelerator'
    )
    raise

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gymnasium import Space


class Advanced(NamedTuple):
    """What one step of one environment gives, as arrays of JAX."""

    state: Any
    observation: Any
    reward: Any
    terminated: Any
    truncated: Any


class World(Protocol):
    """A functional environment: no step begins the next episode, and all that is random comes from keys."""

    observation_space: Space[Any]
    action_space: Space[Any]
    time_limit: int | None

    def begin(self, key: Any) -> tuple[Any, Any]:
        """Return state and observation of a new episode."""
        ...

    def advance(self, key: Any, state: Any, action: Any) -> Advanced:
        """Return what a step gives."""
        ...


class Batch:
    """A functional environment `num_envs` times, for who wants more than one slot of it.

    Args:
        env: of brax or gymnax.
        num_envs: how many.
        params: of a gymnax environment; None means its own.
    """

    def __init__(self, env: Any, num_envs: int, params: Any = None) -> None:
        self.env, self.num_envs, self.params = env, num_envs, params

    @property
    def unwrapped(self) -> Any:
        """The environment."""
        return self.env

    def reset(self, *arguments: Any) -> Any:
        """Begin one episode, as the environment does it."""
        return self.env.reset(*arguments)

    def step(self, *arguments: Any) -> Any:
        """Advance one state, as the environment does it."""
        return self.env.step(*arguments)


class FunctionalSlots:
    """N slots of one functional environment; an episode depends on the key of its seed alone.

    Whatever slots are asked for, the state of all is computed, and kept where it was not asked for.

    Args:
        world: the environment.
        num_slots: N.
    """

    autoreset = Autoreset.CALLER
    seeds_slots = True

    def __init__(self, world: World, num_slots: int) -> None:
        self.num_slots = num_slots
        self.observation_space, self.action_space = world.observation_space, world.action_space
        self.time_limit = world.time_limit
        self._begin = jax.jit(jax.vmap(world.begin))
        self._restart = jax.jit(lambda keys, mask, old: _chosen(mask, self._fresh(keys), old))
        self._advance = jax.jit(jax.vmap(lambda play, action: _advanced(world, play, action)))
        self._plays: Any = None

    def _fresh(self, keys: Any) -> Any:
        """Return new episodes: their keys, steps, states and observations."""
        steps = jnp.zeros(self.num_slots, dtype=jnp.int32)
        return (keys, steps, *self._begin(keys))

    def reset(self, seeds: Sequence[int] | None = None, slots: np.ndarray | None = None) -> Any:
        """Begin episodes in `slots` and return the observations of all."""
        given = [secrets.randbits(63) for _ in range(self.num_slots)] if seeds is None else seeds
        keys = jnp.asarray(_keys(given))
        if slots is None or self._plays is None:
            self._plays = self._fresh(keys)
        else:
            self._plays = self._restart(keys, jnp.asarray(slots), self._plays)
        return _to_host(self._plays[3])

    def step(self, actions: Any, slots: np.ndarray | None = None) -> Transition:
        """Step all slots."""
        del slots
        self._plays, numbers = self._advance(self._plays, actions)
        reward, terminated, truncated = np.asarray(numbers).T  # of JAX one array at once
        observation = _to_host(self._plays[3])
        return Transition(observation, reward.astype(np.float64), terminated != 0, truncated != 0)

    def close(self) -> None:
        """Forget the states."""
        self._plays = None


def dtype_of_observations(begin: Any) -> Any:
    """Return the dtype, or the nested dtypes, of what `begin(key)` shows, without computing it."""
    _, observation = jax.eval_shape(begin, jax.ShapeDtypeStruct((2,), np.uint32))
    return jax.tree.map(lambda leaf: np.dtype(leaf.dtype), observation)


def _keys(seeds: Sequence[int]) -> np.ndarray:
    """Return what `jax.random.PRNGKey` makes of each seed when it may have 64 bits, uint32 `[N, 2]`."""
    words = np.asarray(seeds, dtype=np.uint64)
    return np.stack([words >> 32, words & 0xFFFFFFFF], axis=1).astype(np.uint32)


def _chosen(mask: Any, new: Any, old: Any) -> Any:
    """Return `new` where the mask holds, else `old`."""

    def choose(fresh: Any, kept: Any) -> Any:
        return jnp.where(mask.reshape(-1, *(1,) * (fresh.ndim - 1)), fresh, kept)

    return jax.tree.map(choose, new, old)


def _advanced(world: World, play: Any, action: Any) -> Any:
    key, step, state, _ = play
    given = world.advance(jax.random.fold_in(key, step), state, action)
    play = (key, step + 1, given.state, given.observation)
    numbers = (given.reward, given.terminated, given.truncated)
    return play, jnp.stack([jnp.asarray(number, jnp.float32) for number in numbers])


def _to_host(observation: Any) -> Any:
    """Return arrays that the core can read: NumPy's view on the CPU, torch's on an accelerator."""
    return jax.tree.map(_exported, observation)


def _exported(array: Any) -> Any:
    if next(iter(array.devices())).platform == "cpu":
        return np.asarray(array)
    import torch

    return torch.from_dlpack(array)  # type: ignore[attr-defined]
