"""What there is here: simulators and their ids, operators, heads, searches, loggers."""

from __future__ import annotations

import contextlib
import importlib
import io
import warnings
from typing import TYPE_CHECKING

from populora_envs import operators, simulators
from populora_envs.actions import heads
from populora_envs.loggers import LOGGERS
from populora_envs.search import searches

if TYPE_CHECKING:
    from collections.abc import Iterable


def catalogue() -> list[str]:
    """Return lines for people: each kind of thing and the names of its members."""
    kinds: dict[str, Iterable[str]] = {
        "searches": searches,
        "selections": operators.selections,
        "parent selections": operators.parent_selections,
        "crossovers": operators.crossovers,
        "mutations": operators.mutations,
        "action heads": heads,
        "loggers": LOGGERS,
    }
    named = [f"{kind}: {', '.join(sorted(names))}" for kind, names in kinds.items()]
    return ["simulators:", *(f"  {line}" for line in _simulators()), *named]


def _simulators() -> list[str]:
    lines: list[str] = []
    for module in simulators.id_modules():
        name = module.rpartition(".")[2]
        found = ids_of(module)
        if found is None:
            lines.append(f"{name}: not installed")
        elif found:
            lines.append(f"{name}: {len(found)} ids, such as {found[0]}")
    return lines


def environments(word: str) -> list[str]:
    """Return the ids of installed simulators that hold a word, whatever its case; importing them.

    Raises:
        ValueError: where none does.
    """
    modules = simulators.id_modules()
    everything = [env_id for module in modules for env_id in ids_of(module) or []]
    found = [env_id for env_id in everything if word.lower() in env_id.lower()]
    if not found:
        message = f"no id of {len(everything)} in the installed simulators holds {word!r}"
        raise ValueError(message)
    return found


def ids_of(module: str) -> list[str] | None:
    """Return the ids that a module makes, none where it does not tell, None where it is not installed."""
    # some simulators greet whoever imports them, and warn of screens and drivers
    said = io.StringIO()
    with (
        contextlib.redirect_stdout(said),
        contextlib.redirect_stderr(said),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        try:
            tell = getattr(importlib.import_module(module), "ids", None)
            return [] if tell is None else list(tell())
        except ImportError:
            return None
