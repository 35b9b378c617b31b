"""Single environments that can reset and step: gymnasium's interface, the older gym's, or dm_env's."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces

from populora_adapters.single import SingleEnvs
from populora_envs.adapter import inside_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from populora_adapters.single import Columns, Step
    from populora_envs.adapter import Adapter

_BOOLS = frozenset({bool, np.bool_})


def adapt(envs: list[Any]) -> Adapter:
    """Return one adapter over single environments of one kind.

    Raises:
        ValueError: where one is a batch, or only some have dm_env's interface.
        TypeError: where one has no spaces.
    """
    for env in envs:
        _check_single(env)
    have_specs = [_has_specs(env) for env in envs]
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


def _check_single(env: Any) -> None:
    count = getattr(env, "num_envs", None)
    if isinstance(count, int) and count > 1:
        message = (
            f"{type(env).__name__} holds {count} environments behind an interface that is not known: "
            "pass a list of its single environments, or a gymnasium VectorEnv"
        )
        raise ValueError(message)


def _has_specs(env: Any) -> bool:
    """Return whether an environment has dm_env's interface and no space of gymnasium's."""
    names = ("action_spec", "observation_spec")
    if not all(callable(getattr(env, name, None)) for name in names):
        return False
    return not _is_space(getattr(env, "action_space", None))


class DuckEnvs(SingleEnvs):
    """N environments with `observation_space`, `action_space`, `reset` and `step`.

    `reset` may return the observation or ``(observation, info)``; `step` may return five values or
    the older four, in which ``info["TimeLimit.truncated"]`` tells a time limit from an end. Both may be
    lists, and each number or flag an array or tensor with one element.
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
        return result if type(result) is np.ndarray else _first(self.observation_space, result)

    def _read(self, result: Any) -> Step:
        if isinstance(result, (tuple, list)) and len(result) == 5:
            observation, reward, terminated, truncated, _ = result
            return observation, reward, _flag(terminated), _flag(truncated)
        return _old_result(result)

    def _columns(self, results: list[Any]) -> Columns | None:
        if set(map(type, results)) != {tuple}:
            return None
        try:
            observations, rewards, terminated, truncated, _ = zip(*results, strict=True)
        except ValueError:  # not five of each
            return None
        if not _BOOLS.issuperset(map(type, terminated + truncated)):
            return None
        return observations, rewards, terminated, truncated


def _first(space: spaces.Space[Any], result: Any) -> Any:
    """Return the observation in what `reset` returned.

    Raises:
        ValueError: where there is none.
    """
    if isinstance(result, (tuple, list)) and not _is_nested_as(space, result):
        infos = [part is None or isinstance(part, Mapping) for part in result]
        if infos[1:] == [True]:
            return result[0]
        if any(infos) and not isinstance(space, spaces.Tuple):
            message = (
                f"reset returned {len(result)} values: it must return the observation, or "
                "(observation, info)"
            )
            raise ValueError(message)
    if result is None:
        message = "reset returned None: it must return the observation, or (observation, info)"
        raise ValueError(message)
    return result


def _is_nested_as(space: spaces.Space[Any], value: Any) -> bool:
    """Return whether tuples and dicts lie in `value` where they lie in the space."""
    if isinstance(space, spaces.Tuple):
        if not isinstance(value, (tuple, list)) or len(value) != len(space.spaces):
            return False
        return all(map(_is_nested_as, space.spaces, value))
    if isinstance(space, spaces.Dict):
        if not isinstance(value, dict) or value.keys() != space.spaces.keys():
            return False
        return all(_is_nested_as(part, value[key]) for key, part in space.spaces.items())
    if isinstance(value, (tuple, list)):
        return _shape(value) == space.shape
    return not isinstance(value, Mapping)


def _shape(value: Any) -> tuple[int, ...] | None:
    """Return the shape of nested numbers, None where they have none."""
    try:
        return tuple(np.shape(value))
    except ValueError:
        return None


def _old_result(result: Any) -> Step:
    """Return observation, reward, terminated, truncated of a step in the older gym's interface."""
    if not isinstance(result, (tuple, list)) or len(result) != 4:
        is_some = isinstance(result, (tuple, list))
        what = f"{len(result)} values" if is_some else f"a {type(result).__name__}"
        message = f"step returned {what}: it must return (observation, reward, terminated, truncated, info)"
        raise ValueError(message)
    observation, reward, done, info = result
    over = _flag(done)
    cut = over and isinstance(info, Mapping) and _flag(info.get("TimeLimit.truncated", False))
    return observation, reward, over and not cut, cut


def _flag(value: Any) -> bool:
    """Return whether an episode ends; an array or tensor with one element counts as its element.

    Raises:
        TypeError: where it is neither a bool nor a number, as where values stand in another order.
        ValueError: where it has none or several elements.
    """
    shape = tuple(getattr(value, "shape", ()))
    if math.prod(shape) != 1:
        message = f"step returned an end of the episode of shape {shape}: it is one bool"
        raise ValueError(message)
    number = value.item() if hasattr(value, "item") else value
    if number is not None and not isinstance(number, Real):
        message = (
            f"step returned {value!r} where it must say whether the episode has ended: give a bool"
        )
        raise TypeError(message)
    return bool(number)


def _resetter(env: Any) -> Callable[[Any, int | None], Any]:
    """Return how environments like `env` are reset from a seed."""
    innermost = _innermost(env)
    if _takes_seed(env) and _takes_seed(innermost):
        by_name = _parameters(env.reset).get("seed") is not inspect.Parameter.POSITIONAL_ONLY
        return _reset_with_seed if by_name else _reset_with_first
    if _seeder(env) is not None:
        return _seed_then_reset
    return _reset_unseeded


def _innermost(env: Any) -> Any:
    inner = inside_of(env)
    return inner if callable(getattr(inner, "reset", None)) else env


def _seeder(env: Any) -> Callable[[int], Any] | None:
    """Return the `seed` method of an environment or of what it wraps.

    What answers to any name says nothing by answering to this one.
    """
    for layer in (env, _innermost(env)):
        seed = getattr(layer, "seed", None)
        if callable(seed) and not hasattr(layer, "no_name_of_any_environment"):
            return seed  # type: ignore[no-any-return]
    return None


def _parameters(reset: Callable[..., Any]) -> dict[str, Any]:
    """Return the kinds of the parameters by name, none where a function does not tell."""
    try:
        parameters = inspect.signature(reset).parameters
    except (TypeError, ValueError):
        return {}
    return {name: parameter.kind for name, parameter in parameters.items()}


def _takes_seed(env: Any) -> bool:
    """Return whether `reset` takes a seed; one that passes all keywords on takes what the next takes."""
    kinds = _parameters(env.reset)
    if "seed" in kinds:
        return True
    inner = getattr(env, "__dict__", {}).get("env")
    passes_on = inspect.Parameter.VAR_KEYWORD in kinds.values()
    return passes_on and (not callable(getattr(inner, "reset", None)) or _takes_seed(inner))


def _reset_with_seed(env: Any, seed: int | None) -> Any:
    return env.reset(seed=seed)


def _reset_with_first(env: Any, seed: int | None) -> Any:
    return env.reset(seed)


def _seed_then_reset(env: Any, seed: int | None) -> Any:
    seeder = _seeder(env)
    if seed is not None and seeder is not None:
        seeder(seed)
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


def _is_space(thing: Any) -> bool:
    return isinstance(thing, spaces.Space) or any(
        kind.__name__ in _CONVERTERS for kind in type(thing).__mro__
    )


_CONVERTERS: dict[str, Callable[[Any], spaces.Space[Any]]] = {
    "Box": lambda s: spaces.Box(s.low, s.high, s.shape, s.dtype),
    "Discrete": lambda s: spaces.Discrete(int(s.n), start=int(getattr(s, "start", 0))),
    "MultiDiscrete": lambda s: spaces.MultiDiscrete(s.nvec),
    "Text": lambda s: spaces.Text(int(s.max_length)),
    "MultiBinary": lambda s: spaces.MultiBinary(s.n),
    "Dict": lambda s: spaces.Dict({key: _converted(part) for key, part in s.spaces.items()}),
    "Tuple": lambda s: spaces.Tuple([_converted(part) for part in s.spaces]),
}
