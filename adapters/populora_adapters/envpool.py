"""EnvPool: pools of environments that run in C++ threads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from populora_envs.adapter import Autoreset, Transition
from populora_envs.registry import near_names
from populora_envs.spaces import OrderedDictSpace, at, leaves, rebuild

if TYPE_CHECKING:
    from collections.abc import Sequence

    from populora_envs.adapter import Adapter

_NO_LIMIT = 2**31 - 1
"""What EnvPool says where there is none."""

_INSTALL = 'to get EnvPool: pip install "populora-envs[envpool]"'


def adapt(envs: list[Any]) -> Adapter:
    """Return one adapter over one pool.

    Raises:
        ValueError: for several pools, and for one that steps some of its environments at a time.
        TypeError: for a pool with another interface than gymnasium's.
    """
    if len(envs) > 1:
        message = "a pool is a batch already: pass one of them, made with the num_envs you want"
        raise ValueError(message)
    return Pool(envs[0])


def make(env_id: str) -> Any:
    """Make ``"envpool/HalfCheetah-v5"`` with one environment."""
    return make_batch(env_id, 1)


def make_batch(env_id: str, num_envs: int) -> Any:
    """Make a pool of `num_envs`; its seeds are EnvPool's default.

    Raises:
        ValueError: for an unknown name, with near ones.
        ImportError: where EnvPool is not installed.
    """
    try:
        import envpool
    except ImportError as error:
        error.add_note(_INSTALL)
        raise
    name = env_id.removeprefix("envpool/")
    known = envpool.list_all_envs()
    if name not in known:
        message = f"EnvPool has no environment {name!r}; {near_names(name, known)}"
        raise ValueError(message)
    return envpool.make(name, env_type="gymnasium", num_envs=num_envs)


def ids() -> list[str]:
    """Return what `make` takes; ImportError where EnvPool is missing."""
    import envpool

    return [f"envpool/{name}" for name in envpool.list_all_envs()]


class Pool:
    """A pool, of which single environments can be reset but not seeded.

    Its environments would begin their next episodes themselves, a step late; here they are reset at
    once, so no step is wasted on that. Those that rest are stepped too, whatever comes of it.
    """

    autoreset = Autoreset.CALLER
    seeds_slots = False

    def __init__(self, pool: Any) -> None:
        _check(pool)
        self._pool = pool
        self.num_slots: int = pool.num_envs
        space = pool.observation_space
        self.observation_space = OrderedDictSpace(space.spaces) if _is_dict(space) else space
        self.action_space = pool.action_space
        limit = int(pool.config.get("max_episode_steps", 0))
        self.time_limit = limit if 0 < limit < _NO_LIMIT else None
        self.notes = (
            "EnvPool takes seeds only when a pool is made: two pools made alike give the same numbers, a "
            "second evaluation on one pool gives others",
        )
        self._paths = [leaf.path for leaf in leaves(self.observation_space)]
        self._seen: Any = None

    def reset(self, seeds: Sequence[int] | None = None, slots: np.ndarray | None = None) -> Any:
        """Begin episodes in `slots`; seeds are of no use."""
        del seeds
        if slots is None or self._seen is None:
            self._seen = self._pool.reset()[0]
            return self._seen
        ids = np.flatnonzero(slots).astype(np.int32)
        begun = self._pool.reset(ids)[0]
        values = {path: np.array(at(self._seen, path)) for path in self._paths}
        for path, value in values.items():
            value[ids] = at(begun, path)
        self._seen = rebuild(self.observation_space, values)
        return self._seen

    def step(self, actions: Any, slots: np.ndarray | None = None) -> Transition:
        """Step all environments."""
        del slots
        self._seen, reward, terminated, truncated, _ = self._pool.step(actions)
        return Transition(
            self._seen,
            np.asarray(reward, dtype=np.float64),
            np.asarray(terminated, dtype=np.bool_),
            np.asarray(truncated, dtype=np.bool_),
        )

    def close(self) -> None:
        """Close the pool."""
        self._pool.close()


def _is_dict(space: Any) -> bool:
    return hasattr(space, "spaces")


def _check(pool: Any) -> None:
    if not hasattr(pool, "num_envs") or not hasattr(pool, "observation_space"):
        message = f'{type(pool).__name__} has not gymnasium\'s interface: pass env_type="gymnasium"'
        raise TypeError(message)
    if pool.config["batch_size"] != pool.num_envs:
        message = (
            f"the pool steps {pool.config['batch_size']} of its {pool.num_envs} environments at a time "
            "(batch_size): leave batch_size out, for every individual waits for its own"
        )
        raise ValueError(message)
    if pool.config.get("max_num_players", 1) != 1:
        message = "pools with several players per environment have no adapter"
        raise ValueError(message)
