"""How a broken rule is told, and the rules for what an adapter says of itself."""

from __future__ import annotations

import math
from typing import Any

from gymnasium import Space

from populora_envs.adapter import Adapter, Autoreset, team_of


def require(condition: object, rule: str) -> None:
    """Raise ValueError with a rule of the contract where it is broken."""
    if not condition:
        message = f"the adapter breaks its contract: {rule}"
        raise ValueError(message)


def check_attributes(adapter: Any, envs: list[Any]) -> None:
    """Check the attributes of an adapter over `envs`."""
    wanted = [name for name in Adapter.__annotations__ if not hasattr(adapter, name)]
    wanted += [n for n in ("reset", "step", "close") if not callable(getattr(adapter, n, None))]
    require(not wanted, f"it lacks {', '.join(wanted)}")
    for name in ("observation_space", "action_space"):
        space = getattr(adapter, name)
        require(isinstance(space, Space), f"{name} is a gymnasium space, not {space!r}")
    require(isinstance(adapter.autoreset, Autoreset), "autoreset is one of Autoreset")
    require(type(adapter.seeds_slots) is bool, "seeds_slots is a bool")
    require(
        adapter.autoreset is Autoreset.CALLER or not adapter.seeds_slots,
        "seeds_slots says that one slot can be reset alone, so its autoreset is CALLER",
    )
    limit = adapter.time_limit
    require(
        limit is None or _is_count(limit), f"time_limit is a positive int or None, not {limit!r}"
    )
    notes = getattr(adapter, "notes", ())
    require(
        isinstance(notes, (tuple, list)) and all(isinstance(note, str) for note in notes),
        f"notes are several strings, as in a tuple, not {notes!r}",
    )
    _check_slots(adapter, envs)


def _check_slots(adapter: Any, envs: list[Any]) -> None:
    count, team = adapter.num_slots, team_of(adapter)
    require(_is_count(count), f"num_slots is a positive int, not {count!r}")
    require(
        isinstance(team, tuple) and team and all(_is_weight(weight) for weight in team),
        f"team is a tuple of one finite float per agent, not {team!r}",
    )
    size = len(team)
    require(
        count % size == 0,
        f"the slots are whole teams: {count} slots are no teams of {size}",
    )
    wanted = len(envs) * size
    agents = f" of {size} agents" if size > 1 else ""
    require(
        len(envs) == 1 or count == wanted,
        f"{len(envs)} single environments{agents} have {wanted} slots, not {count}",
    )


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_weight(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)
