"""Single environments that can reset and step: gymnasium's interface, the older gym's, or dm_env's."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces

from populora_adapters.single import SingleEnvs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from populora_adapters.single import Columns, Step
    from populora_envs.adapter import Adapter


def adapt(envs: list[Any]) -> Adapter:
    """Return one adapter over single environments of one kind."""
    have_specs = [callable(getattr(env, "action_spec", None)) for env in envs]
    if len(set(have_specs)) > 1:
        odd = have_specs.index(not have_specs[0])
        message = (
            f"environment {odd} is a {type(envs[odd]).__name__}, environment 0 a "
            f"{type(envs[0]).__name__}, and only one of them has dm_env's interface: pass different "
            "kinds as separate interactors"
        )
        raise ValueError(message)
    if have_specs[0]:
        from populora_adapters.dm_env import adapt as adapt_dm_env

        return adapt_dm_env(envs)
    return DuckEnvs(envs)


class DuckEnvs(SingleEnvs):
    """N environments with `observation_space`, `action_space`, `reset` and `step`.

    `reset` may return the observation or ``(observation, info)``; `step` may return five values or
    the older four, in which ``info["TimeLimit.truncated"]`` tells a time limit from an end.
    """

    def __init__(self, envs: list[Any]) -> None:
        names = ("observation_space", "action_space")
        spaces_of = [(read_space(env, names[0]), read_space(env, names[1])) for env in envs]
        self._begins = [_resetter(env) for env in envs]
        super().__init__(
            envs,
            spaces_of,
            seeds_slots=_reset_unseeded not in self._begins,
            time_limit=longest(time_limit(env) for env in envs),
        )

    def _begin(self, slot: int, seed: int | None) -> Any:
        result = self._begins[slot](self._envs[slot], seed)
        if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict)):
            return result
        return result if _is_nested_as(self.observation_space, result) else result[0]

    def _read(self, result: Any) -> Step:
        if isinstance(result, tuple) and len(result) == 5:
            observation, reward, terminated, truncated, _ = result
            return observation, reward, terminated, truncated
        return _old_result(result)

    def _columns(self, results: list[Any]) -> Columns | None:
        if set(map(type, results)) != {tuple}:
            return None
        try:
            observations, rewards, terminated, truncated, _ = zip(*results, strict=True)
        except ValueError:  # not five of each
            return None
        return observations, rewards, terminated, truncated


def _is_nested_as(space: spaces.Space[Any], value: Any) -> bool:
    """Return whether tuples and dicts lie in `value` where they lie in the space."""
    if isinstance(space, spaces.Tuple):
        if not isinstance(value, tuple) or len(value) != len(space.spaces):
            return False
        return all(map(_is_nested_as, space.spaces, value))
    if isinstance(space, spaces.Dict):
        if not isinstance(value, dict) or value.keys() != space.spaces.keys():
            return False
        return all(_is_nested_as(part, value[key]) for key, part in space.spaces.items())
    return not isinstance(value, (tuple, dict))


def _old_result(result: Any) -> Step:
    """Return observation, reward, terminated, truncated of a step in the older gym's interface."""
    if not isinstance(result, tuple) or len(result) != 4:
        size = len(result) if isinstance(result, tuple) else type(result).__name__
        message = (
            f"step returned {size} values: it must return (observation, reward, terminated, "
            "truncated, info)"
        )
        raise ValueError(message)
    observation, reward, done, info = result
    cut = bool(done) and bool(info.get("TimeLimit.truncated", False))
    return observation, reward, bool(done) and not cut, cut


def _resetter(env: Any) -> Callable[[Any, int | None], Any]:
    """Return how environments like `env` are reset from a seed."""
    innermost = _innermost(env)
    if _takes_seed(env.reset) and _takes_seed(innermost.reset):
        return _reset_with_seed
    if callable(getattr(innermost, "seed", None)):
        return _seed_then_reset
    return _reset_unseeded


def _innermost(env: Any) -> Any:
    inner = getattr(env, "unwrapped", None)
    return env if inner is None else inner


def _takes_seed(reset: Callable[..., Any]) -> bool:
    parameters = inspect.signature(reset).parameters.values()
    return any(p.name == "seed" or p.kind is p.VAR_KEYWORD for p in parameters)


def _reset_with_seed(env: Any, seed: int | None) -> Any:
    return env.reset(seed=seed)


def _seed_then_reset(env: Any, seed: int | None) -> Any:
    if seed is not None:
        _innermost(env).seed(seed)
    return env.reset()


def _reset_unseeded(env: Any, seed: int | None) -> Any:
    del seed
    return env.reset()


def time_limit(env: Any) -> int | None:
    """Return the most steps of an episode that an environment tells, None where it tells none."""
    limit = getattr(getattr(env, "spec", None), "max_episode_steps", None)
    while limit is None and env is not None:
        own = getattr(env, "__dict__", {})
        limit = own.get("_max_episode_steps", own.get("max_episode_steps"))
        env = own.get("env")
    return int(limit) if isinstance(limit, (int, np.integer)) else None


def longest(limits: Iterable[int | None]) -> int | None:
    """Return the largest time limit, None where one is missing."""
    known = list(limits)
    return None if None in known else max(limit for limit in known if limit is not None)


def read_space(env: Any, name: str) -> spaces.Space[Any]:
    """Return a space of `env` as a gymnasium space; TypeError where there is none."""
    space = getattr(env, name, None)
    if space is None:
        message = (
            f"the environment {type(env).__name__} has no {name}: give it one, a gymnasium space"
        )
        raise TypeError(message)
    return _converted(space)


def _converted(space: Any) -> spaces.Space[Any]:
    """Return spaces of other packages with the same attributes as gymnasium's."""
    if isinstance(space, spaces.Space):
        return space
    for kind in type(space).__mro__:
        if kind.__name__ in _CONVERTERS:
            return _CONVERTERS[kind.__name__](space)
    message = f"{type(space).__name__} is no space that is known: use a gymnasium space"
    raise TypeError(message)


_CONVERTERS: dict[str, Callable[[Any], spaces.Space[Any]]] = {
    "Box": lambda s: spaces.Box(s.low, s.high, s.shape, s.dtype),
    "Discrete": lambda s: spaces.Discrete(int(s.n), start=int(getattr(s, "start", 0))),
    "MultiDiscrete": lambda s: spaces.MultiDiscrete(s.nvec),
    "Text": lambda s: spaces.Text(int(s.max_length)),
    "MultiBinary": lambda s: spaces.MultiBinary(s.n),
    "Dict": lambda s: spaces.Dict({key: _converted(part) for key, part in s.spaces.items()}),
    "Tuple": lambda s: spaces.Tuple([_converted(part) for part in s.spaces]),
}
