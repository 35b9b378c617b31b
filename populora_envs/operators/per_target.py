"""Operators and their options by layer: ``{"encoder.*": "sbx", "default": "clone"}``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from populora_envs.targets import DEFAULT, first_match, matches

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Operator = Callable[..., Any]


class PerTarget(NamedTuple):
    """Operators of one kind by exact path, glob, or ``"default"``."""

    operators: dict[str, Operator]


def at_targets(value: Any, targets: Mapping[str, Sequence[str]], what: str) -> dict[str, Any]:
    """Return the value for each target.

    Args:
        value: one for all, or a mapping from patterns: an exact path goes first, then the first glob that
            matches, then ``"default"``.
        targets: by target, the names that patterns may match.
        what: the setting, for messages.

    Raises:
        ValueError: for a pattern that matches no target, and a target that none matches.
    """
    if not isinstance(value, Mapping):
        return dict.fromkeys(targets, value)
    everyone = [name for names in targets.values() for name in names]
    idle = [p for p in value if p != DEFAULT and not any(matches(name, p) for name in everyone)]
    if idle:
        known = ", ".join(repr(names[-1]) for names in targets.values())
        message = f"{what} names {idle}, which match no target; there are {known}"
        raise ValueError(message)
    return {target: value[first_match(names, value, what)] for target, names in targets.items()}
