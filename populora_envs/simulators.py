"""Finding the adapter of an environment, or of an id, without importing any simulator to look."""

from __future__ import annotations

import importlib
from importlib import metadata
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from populora_envs.adapter import Adapter

    Adapt = Callable[[list[Any]], Adapter]

GYMNASIUM = "populora_adapters.gymnasium:adapt"
DUCK = "populora_adapters.duck:adapt"

_builtin: dict[str, str] = {
    "dm_control": "populora_adapters.dm_env:adapt",
    "dm_env": "populora_adapters.dm_env:adapt",
}
"""Root module of an environment's class -> its adapter."""

_planned: dict[str, str] = {
    "brax": "pip install brax",
    "envpool": 'pip install "populora-envs[envpool]"',
    "gymnax": "pip install gymnax",
    "isaaclab": "NVIDIA's own instructions",
    "mani_skill": 'pip install "populora-envs[maniskill]"',
    "pettingzoo": 'pip install "populora-envs[pettingzoo]"',
    "pufferlib": (
        "pip install --no-deps --no-build-isolation pufferlib==3.0.0 && "
        "pip install --no-deps gym==0.26.2 gym_notices psutil (README.md tells when that needs help)"
    ),
}
"""Simulators that behave in ways of their own and have no adapter yet, and what installs them."""

_id_prefixes: dict[str, str] = {"dm_control/": "populora_adapters.dm_env:make"}
"""Beginning of an id -> the function that makes it; other ids are gymnasium's."""

_MAKE_GYMNASIUM = "populora_adapters.gymnasium:make"

_registered: dict[str, str] = {}


def register_adapter(root_module: str, target: str) -> None:
    """Name the adapter of all environments whose class comes from `root_module`.

    Args:
        root_module: the first part of a module's name, such as ``"mysim"``.
        target: ``"package.module:function"``, a function that takes a list of environments and
            returns an `Adapter`. It is imported at first use. It goes before built-in ones.

    Raises:
        ValueError: where `target` has another form.
    """
    if not all(target.partition(":")):
        message = f"the target of an adapter is 'package.module:function', not {target!r}"
        raise ValueError(message)
    _registered[root_module] = target


def load(target: str) -> Any:
    """Import ``"package.module:name"`` and return what it names."""
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)


def _layers(env: Any) -> Iterator[Any]:
    """Yield the environment from its outermost wrapper down to the innermost.

    Only wrappers have layers: what an environment keeps inside to do its work is its own affair.
    """
    seen: set[int] = set()
    while env is not None and id(env) not in seen:
        seen.add(id(env))
        yield env
        unwrapped = getattr(env, "unwrapped", None)
        if unwrapped is env or unwrapped is None:
            return
        inner = getattr(env, "__dict__", {}).get("env")
        env = unwrapped if inner is None else inner


def _root_modules(env: Any) -> Iterator[str]:
    for layer in _layers(env):
        for base in type(layer).__mro__:
            yield base.__module__.partition(".")[0]


def _entry_points() -> dict[str, str]:
    return {
        point.name: point.value for point in metadata.entry_points(group="populora_envs.adapters")
    }


def find_adapter(env: Any) -> Adapt:
    """Return the function that adapts a list of environments like `env`.

    The first match from the outermost wrapper inwards wins, gymnasium's own classes only where
    nothing else matches. What matches nothing but can reset and step goes to the duck adapter.

    Raises:
        NotImplementedError: for a simulator whose adapter is planned.
        TypeError: for what is no environment.
    """
    return cast("Adapt", load(_target(env, _table())))


def adapt(envs: list[Any]) -> Adapter:
    """Return one adapter over `envs`; ValueError where they need different ones."""
    table = _table()
    targets = [_target(env, table) for env in envs]
    for i, target in enumerate(targets):
        if target != targets[0]:
            message = (
                f"environment {i} is a {type(envs[i]).__name__} that goes to {target}, environment 0 "
                f"a {type(envs[0]).__name__} that goes to {targets[0]}: pass different kinds as "
                "separate interactors"
            )
            raise ValueError(message)
    return cast("Adapt", load(targets[0]))(list(envs))


def _table() -> dict[str, str]:
    return {**_builtin, **_entry_points(), **_registered}


def _target(env: Any, table: dict[str, str]) -> str:
    """Return ``"package.module:function"`` of what adapts `env`, without importing it."""
    roots = list(_root_modules(env))
    for root in roots:
        if root in table:
            return table[root]
        if root in _planned:
            raise _no_adapter_yet(root)
    if "gymnasium" in roots:
        return GYMNASIUM
    if looks_like_environment(env):
        return DUCK
    message = (
        f"{type(env).__name__} is no environment: it needs reset and step, or pass an id, a class, "
        "a factory, a list or a dict of environments"
    )
    raise TypeError(message)


def looks_like_environment(thing: Any) -> bool:
    """Return whether an object (not a class) can be reset and stepped."""
    return (
        not isinstance(thing, type)
        and callable(getattr(thing, "reset", None))
        and callable(getattr(thing, "step", None))
    )


def _no_adapter_yet(root: str) -> NotImplementedError:
    message = (
        f"environments of {root} have no adapter in this version: wrap yours as a gymnasium "
        f"environment in a module of your own, or give it one with register_adapter({root!r}, ...). "
        f"The simulator itself is installed by: {_planned[root]}"
    )
    return NotImplementedError(message)


def make(env_id: str) -> Any:
    """Make one environment from an id.

    Raises:
        ValueError: where there is none, with near names.
        NotImplementedError: for ``"pufferlib/..."`` and the like, whose adapter is planned.
    """
    root = env_id.partition("/")[0]
    if root in _planned:
        raise _no_adapter_yet(root)
    for prefix, target in _id_prefixes.items():
        if env_id.startswith(prefix):
            return load(target)(env_id.removeprefix(prefix))
    return load(_MAKE_GYMNASIUM)(env_id)
