"""From a run's config.json back to the arguments of the call that made it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from populora_envs.actions import heads
from populora_envs.search import searches
from populora_envs.settings import EvolveSettings

if TYPE_CHECKING:
    from collections.abc import Mapping

_OBJECTS = ("model", "fitness")
"""Of these a config names the kind alone."""


def options_of(config: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the keyword arguments of `evolve_with_env`, ``env`` and ``choices`` among them.

    Args:
        config: the content of a config.json.
        where: the file, for messages.

    Raises:
        ValueError: where the run was given objects that no file can hold.
    """
    for name in _OBJECTS:
        if config.get(name) is not None:
            _refuse(where, f"{name}= was a {config[name]}")
    if not isinstance(config.get("env"), str):
        _refuse(where, "its environment was no id")
    action, search = config.get("action"), config.get("search")
    if action is not None and action not in list(heads):
        _refuse(where, f"action= was the function {action}")
    names = [n for n in searches if n == search or searches.get(n).__qualname__ == search]
    if search is not None and not names:
        _refuse(where, f"search= was a {search}")
    fields = {field.name for field in dataclasses.fields(EvolveSettings)}
    options = {name: _as_given(name, value) for name, value in config.items() if name in fields}
    own = {name: config.get(name) for name in ("env", "action", "init_from")}
    return {**options, **own, "search": names[0] if names else None, "choices": _choices(config)}


def _choices(config: Mapping[str, Any]) -> dict[str, Any]:
    return dict(config.get("choices") or {})


def _as_given(name: str, value: Any) -> Any:
    is_tuple = name == "lora_targets" or (name.endswith("_range") and isinstance(value, list))
    return tuple(value) if is_tuple and value is not None else value


def _refuse(where: str, what: str) -> None:
    message = f"{where} cannot be run from the command line, for {what}: run your script again"
    raise ValueError(message)
