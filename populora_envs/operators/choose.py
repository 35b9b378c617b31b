"""Operators by name or as functions, and the options each of them takes."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from populora_envs.operators.per_target import PerTarget, at_targets
from populora_envs.registry import Registry, near_names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    Operator = Callable[..., Any]


def resolve_each(registry: Registry[Operator], choice: Any) -> Any:
    """Return what `resolve` does, or one operator per target where `choice` is a mapping."""
    if isinstance(choice, PerTarget):
        return choice
    if isinstance(choice, Mapping):
        return PerTarget({pattern: resolve(registry, own) for pattern, own in choice.items()})
    return resolve(registry, choice)


def resolve(registry: Registry[Operator], choice: str | Operator) -> Operator:
    """Return the operator called `choice`, or `choice` itself where it is a function."""
    if callable(choice):
        return choice
    if not isinstance(choice, str):
        message = f"a {registry.kind} is a name or a function, not {choice!r}"
        raise TypeError(message)
    return registry.get(choice)


def name_of(operator: Any, registry: Registry[Operator]) -> str:
    """Return the name that an operator is registered under, else its own; of several with | between."""
    if isinstance(operator, PerTarget):
        own = (name_of(one, registry) for one in operator.operators.values())
        return "|".join(dict.fromkeys(own))
    known = next((name for name in registry if registry.get(name) is operator), None)
    return known or str(getattr(operator, "__name__", type(operator).__name__))


def _parameters(operator: Any) -> list[inspect.Parameter]:
    several = operator.operators.values() if isinstance(operator, PerTarget) else (operator,)
    return [p for one in several for p in inspect.signature(one).parameters.values()]


def option_names(operator: Operator) -> list[str]:
    """Return the names of an operator's options: parameters with a default or keyword-only ones."""
    return [
        p.name
        for p in _parameters(operator)
        if p.default is not p.empty or p.kind is p.KEYWORD_ONLY
    ]


def takes_any(operator: Operator) -> bool:
    """Return whether an operator has ``**options`` and so takes every option."""
    return any(p.kind is p.VAR_KEYWORD for p in _parameters(operator))


def check_options(
    operators: Iterable[Operator], options: dict[str, Any], others: Iterable[str] = ()
) -> None:
    """Refuse an option that none of the operators takes: TypeError with near names.

    Args:
        operators: the chosen ones.
        options: what the caller passed.
        others: further names the caller could have meant.
    """
    operators = list(operators)
    if any(takes_any(operator) for operator in operators):
        return
    known = {name for operator in operators for name in option_names(operator)}
    for name in options:
        if name not in known:
            near = {*known, *others}
            hint = near_names(name, near) if near else "the chosen operators take none"
            message = f"unknown option {name!r}; {hint}"
            raise TypeError(message)


def own_options(operator: Operator, options: dict[str, Any]) -> dict[str, Any]:
    """Return those of `options` that `operator` takes."""
    if takes_any(operator):
        return options
    names = option_names(operator)
    return {name: value for name, value in options.items() if name in names}


def at_each(
    targets: Mapping[str, Sequence[str]], kind: str, operator: Any, options: dict[str, Any]
) -> dict[str, tuple[Operator, dict[str, Any]]]:
    """Return the operator and its options for each target.

    Args:
        targets: by target, the names that patterns may match.
        kind: of the operator, for messages.
        operator: from `resolve`.
        options: each one for all targets or by pattern.
    """
    several = operator.operators if isinstance(operator, PerTarget) else operator
    chosen = at_targets(several, targets, kind)
    values = {name: at_targets(value, targets, name) for name, value in options.items()}
    return {
        target: (one, own_options(one, {name: by[target] for name, by in values.items()}))
        for target, one in chosen.items()
    }
