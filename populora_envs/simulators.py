"""Finding the adapter of an environment, or of an id, without importing any simulator to look."""

from __future__ import annotations

import importlib
from functools import partial
from importlib import metadata
from typing import TYPE_CHECKING, Any, cast

from populora_envs.adapter import inside_of
from populora_envs.mixed import Mixed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from populora_envs.adapter import Adapter

    Adapt = Callable[[list[Any]], Adapter]

GYMNASIUM = "populora_adapters.gymnasium:adapt"
DUCK = "populora_adapters.duck:adapt"

_builtin: dict[str, str] = {
    "ale_py": "populora_adapters.atari:adapt",
    "brax": "populora_adapters.brax:adapt",
    "dm_control": "populora_adapters.dm_env:adapt",
    "dm_env": "populora_adapters.dm_env:adapt",
    "envpool": "populora_adapters.envpool:adapt",
    "gymnax": "populora_adapters.gymnax:adapt",
    "isaaclab": "populora_adapters.isaaclab:adapt",
    "mani_skill": "populora_adapters.maniskill:adapt",
    "minigrid": "populora_adapters.minigrid:adapt",
    "pettingzoo": "populora_adapters.pettingzoo:adapt",
    "pufferlib": "populora_adapters.pufferlib:adapt",
    "pybullet_envs_gymnasium": "populora_adapters.pybullet:adapt",
}
"""Root module of an environment's class -> its adapter."""

_ids: dict[str, str] = {
    "ALE/": "populora_adapters.atari",
    "BabyAI-": "populora_adapters.minigrid",
    "MiniGrid-": "populora_adapters.minigrid",
    "brax/": "populora_adapters.brax",
    "dm_control/": "populora_adapters.dm_env",
    "envpool/": "populora_adapters.envpool",
    "gymnax/": "populora_adapters.gymnax",
    "isaaclab/": "populora_adapters.isaaclab",
    "maniskill/": "populora_adapters.maniskill",
    "pettingzoo/": "populora_adapters.pettingzoo",
    "pufferlib/": "populora_adapters.pufferlib",
    "pybullet/": "populora_adapters.pybullet",
}
"""Beginning of an id -> the module whose `make` makes it; other ids are gymnasium's."""

_GYMNASIUM_IDS = "populora_adapters.gymnasium"

_registered: dict[str, str] = {}

_MOST_LAYERS = 100


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

    Only wrappers have layers, and vector environments that keep theirs in a list: what an environment
    keeps inside to do its work is its own affair.
    """
    seen: set[int] = set()
    # What answers to every name may find new layers for ever.
    while env is not None and id(env) not in seen and len(seen) < _MOST_LAYERS:
        seen.add(id(env))
        yield env
        inside = getattr(env, "__dict__", {})
        unwrapped = inside_of(env)
        if unwrapped is env or unwrapped is None:
            members = inside.get("envs") if isinstance(inside.get("num_envs"), int) else None
            env = members[0] if isinstance(members, list) and members else None
        else:
            env = inside.get("env", unwrapped)


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
        TypeError: for what is no environment.
    """
    return cast("Adapt", load(_target(env, _table())))


def adapt(envs: list[Any]) -> Adapter:
    """Return one adapter over `envs`, which may come from several simulators if their spaces agree.

    Raises:
        ValueError: where they do not.
        TypeError: for what is no environment.
    """
    table = _table()
    targets = [_target(env, table) for env in envs]
    kinds = {target: cast("Adapt", load(target)) for target in dict.fromkeys(targets)}
    if len(kinds) == 1:
        return kinds[targets[0]](list(envs))
    return Mixed(envs, targets, kinds)


def _table() -> dict[str, str]:
    return {**_builtin, **_entry_points(), **_registered}


def _target(env: Any, table: dict[str, str]) -> str:
    """Return ``"package.module:function"`` of what adapts `env`, without importing it."""
    roots = list(_root_modules(env))
    for root in roots:
        if root in table:
            return table[root]
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


def module_of(env: Any) -> Any:
    """Return the module that adapts environments like `env`."""
    return importlib.import_module(_target(env, _table()).partition(":")[0])


def module_of_id(env_id: str) -> Any:
    """Import the module that makes an id: a built-in one, one of a third party, else gymnasium's."""
    root, slash, _ = env_id.partition("/")
    target = {**_entry_points(), **_registered}.get(root) if slash else None
    name = target.partition(":")[0] if target else _GYMNASIUM_IDS
    for prefix, own in _ids.items():
        if target is None and env_id.startswith(prefix):
            name = own
    module = importlib.import_module(name)
    return module if hasattr(module, "make") else importlib.import_module(_GYMNASIUM_IDS)


def id_modules() -> list[str]:
    """Return the modules that make environments from ids, without importing them."""
    third = [point.partition(":")[0] for point in {**_entry_points(), **_registered}.values()]
    return list(dict.fromkeys([_GYMNASIUM_IDS, *_ids.values(), *third]))


def make(env_id: str) -> Any:
    """Make one environment from an id.

    Raises:
        ValueError: where there is none, with near names.
        ImportError: where its simulator is not installed, with what installs it.
    """
    return module_of_id(env_id).make(env_id)


def batch_maker(env_id: str) -> Callable[[int], Any] | None:
    """Return ``make(num_envs)`` where the simulator of an id has batches of its own, else None."""
    make_batch = getattr(module_of_id(env_id), "make_batch", None)
    return None if make_batch is None else partial(make_batch, env_id)


def multiply(env: Any, num_envs: int) -> list[Any]:
    """Return `num_envs` environments like one that exists, itself among them, or one batch of so many.

    Raises:
        ValueError: where its simulator cannot copy it exactly.
    """
    multiply = getattr(module_of(env), "multiply", None)
    if multiply is None:
        message = (
            f"num_envs={num_envs} wants copies, and a {type(env).__name__} that exists cannot be "
            "copied: pass its id, its class, a factory of it, or a list"
        )
        raise ValueError(message)
    return list(multiply(env, num_envs))
