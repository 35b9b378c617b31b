"""Which layers of a model get low-rank weights."""

from __future__ import annotations

import copy
import fnmatch
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn.parameter import is_lazy

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def check_base(model: object) -> None:
    """Refuse what cannot carry individuals: TypeError."""
    if not isinstance(model, nn.Module):
        message = f"the base policy must be a torch.nn.Module, not {type(model).__name__}"
        raise TypeError(message)
    if isinstance(model, torch.jit.ScriptModule):
        message = (
            "the base policy is a TorchScript module, whose layers are sealed: pass the plain one"
        )
        raise TypeError(message)
    if hasattr(model, "_orig_mod"):
        message = "the base policy is a compiled module: pass the module given to torch.compile"
        raise TypeError(message)


def copied(model: nn.Module) -> nn.Module:
    """Return a deep copy of the user's model; TypeError where the model forbids it."""
    try:
        with torch.inference_mode(mode=False):  # inference tensors do not count their changes
            return copy.deepcopy(model)
    except RuntimeError as error:
        message = (
            f"the base policy {type(model).__name__} cannot be copied ({error}); remove weight norm "
            "and tensors kept from a forward first"
        )
        raise TypeError(message) from error


def unsupported(layer: nn.Module) -> str | None:
    """Return why `layer` cannot be adapted, None where it can."""
    if not isinstance(layer, nn.Linear):
        return f"is a {type(layer).__name__}, not a Linear"
    if is_lazy(layer.weight):
        return f"is a {type(layer).__name__} without sizes: run the model once before"
    if "weight" not in layer._parameters:
        return "has a weight that is computed (a parametrization or weight norm), not a parameter"
    if type(layer).forward is not nn.Linear.forward or type(layer).__name__.startswith("NonDynam"):
        return f"is a {type(layer).__name__}, which does not compute as a Linear does"
    return None


def _all_names(model: nn.Module) -> dict[str, nn.Module]:
    """Return every name of every module; a module under two names appears twice."""
    return dict(model.named_modules(remove_duplicate=False))


def _matching(pattern: str, modules: dict[str, nn.Module], supported: Iterable[str]) -> list[str]:
    if pattern in modules:
        reason = unsupported(modules[pattern])
        if reason is not None:
            message = f"the target {pattern!r} {reason}; Linear layers: {_listed(supported)}"
            raise ValueError(message)
        return [pattern]
    names = [name for name in supported if fnmatch.fnmatchcase(name, pattern)]
    if not names:
        message = f"the target {pattern!r} matches no Linear layer; there are: {_listed(supported)}"
        raise ValueError(message)
    return names


def _listed(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names) or "none"


def _nothing_to_adapt(model: nn.Module, supported: list[str]) -> str:
    if supported:
        return f"lora_targets names no layer: pass None for all or some of {_listed(supported)}"
    refused = [
        f"{name!r} {unsupported(layer)}"
        for name, layer in model.named_modules()
        if isinstance(layer, nn.Linear)
    ]
    found = "; ".join(refused) or f"{type(model).__name__} holds none"
    return f"the base policy has no nn.Linear to adapt: {found}"


def find_targets(model: nn.Module, patterns: Sequence[str] | str | None) -> dict[str, nn.Linear]:
    """Return the layers to adapt by their dotted path, each layer once, under its first name.

    Args:
        model: the base policy; it may be a Linear itself, whose path is ``""``.
        patterns: exact paths or globs such as ``"encoder.*"``; None means every Linear.

    Raises:
        ValueError: where a pattern matches nothing, or no supported layer.
    """
    modules = _all_names(model)
    supported = [name for name, layer in modules.items() if unsupported(layer) is None]
    if patterns is None:
        chosen = supported
    else:
        wanted = [patterns] if isinstance(patterns, str) else list(patterns)
        chosen = [name for p in wanted for name in _matching(p, modules, supported)]
    if not chosen:
        raise ValueError(_nothing_to_adapt(model, supported))
    layers: dict[int, tuple[str, nn.Linear]] = {}
    for name in supported:  # in the order of the model, whatever the order of the patterns
        layer = modules[name]
        if isinstance(layer, nn.Linear) and any(modules[c] is layer for c in chosen):
            layers.setdefault(id(layer), (name, layer))
    return dict(layers.values())
