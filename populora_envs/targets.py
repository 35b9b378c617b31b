"""Which layers of a model get low-rank weights."""

from __future__ import annotations

import copy
import fnmatch
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from populora_envs.layer_kinds import Matrix, kind_of, matrices_of, unsupported
from populora_envs.settings import at_least

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def check_base(model: object) -> None:
    """Refuse what cannot carry individuals: TypeError."""
    if not isinstance(model, nn.Module):
        message = f"the base policy must be a torch.nn.Module, not {type(model).__name__}"
        raise TypeError(message)
    for name, layer in model.named_modules():
        what = f"the base policy's {name!r}" if name else "the base policy"
        reason = _sealed(layer)
        if reason is not None:
            message = f"{what} {reason}"
            raise TypeError(message)
    if any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers())):
        message = (
            "the base policy has weights without numbers (on the device meta): load them first"
        )
        raise TypeError(message)


def _sealed(layer: nn.Module) -> str | None:
    """Return why nobody can carry individuals who holds this layer."""
    if isinstance(layer, torch.jit.ScriptModule):
        return "is a TorchScript module, whose layers are sealed: pass the plain one"
    if hasattr(layer, "_orig_mod"):
        return "is a compiled module: pass the module given to torch.compile"
    home = type(layer).__module__
    if home.startswith("torch.") and ".quantized" in home:
        return (
            f"is a {type(layer).__name__}, whose weights are integers: pass the model before that"
        )
    if isinstance(layer, nn.modules.batchnorm._BatchNorm) and layer.running_mean is None:
        return (
            f"is a {type(layer).__name__} without running statistics, in which a row depends on who "
            "else is in the batch: make it with track_running_stats=True"
        )
    return None


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


def _all_names(model: nn.Module) -> dict[str, nn.Module]:
    """Return every name of every module; a module under two names appears twice."""
    return dict(model.named_modules(remove_duplicate=False))


def _reason(name: str, modules: dict[str, nn.Module]) -> str | None:
    """Return why the layer at `name` cannot be adapted, None where it can."""
    parent = modules.get(name.rpartition(".")[0])
    kind = None if parent is None or parent is modules[name] else kind_of(parent)
    if kind is not None and name.rpartition(".")[2] in kind.inner:
        outer = unsupported(parent)  # type: ignore[arg-type]
        if outer is not None:
            return f"is part of a layer that {outer}"
    return unsupported(modules[name])


def _matching(pattern: str, modules: dict[str, nn.Module], supported: Sequence[str]) -> list[str]:
    """Return the layers of a path, norms too, or of a glob, norms left out."""
    if pattern in modules:
        reason = _reason(pattern, modules)
        if reason is not None:
            message = f"the target {pattern!r} {reason}; layers to adapt: {_listed(supported)}"
            raise ValueError(message)
        return [pattern]
    plain = [name for name in supported if not _is_norm(modules[name])]
    names = [name for name in plain if fnmatch.fnmatchcase(name, pattern)]
    if not names:
        message = f"the target {pattern!r} matches no layer to adapt; there are: {_listed(plain)}"
        raise ValueError(message)
    return names


def _is_norm(layer: nn.Module) -> bool:
    kind = kind_of(layer)
    return kind is not None and kind.is_norm


def _is_default(layer: nn.Module) -> bool:
    kind = kind_of(layer)
    return kind is not None and kind.by_default


def _with_inner(names: Iterable[str], modules: dict[str, nn.Module]) -> list[str]:
    """Return layers and those inside them that belong to them."""
    found = []
    for name in names:
        kind = kind_of(modules[name])
        assert kind is not None
        found += [name, *(f"{name}.{inner}".removeprefix(".") for inner in kind.inner)]
    return found


def _listed(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names) or "none"


def _nothing_to_adapt(model: nn.Module, modules: dict[str, nn.Module], supported: list[str]) -> str:
    if supported:
        return f"lora_targets names no layer: name some of {_listed(supported)}"
    refused = [
        f"{name!r} {_reason(name, modules)}"
        for name, layer in model.named_modules()
        if kind_of(layer) is not None and not _is_norm(layer)
    ]
    found = "; ".join(refused) or f"{type(model).__name__} holds none"
    return f"the base policy has no layer to adapt: {found}"


def find_targets(
    model: nn.Module, patterns: Sequence[str] | str | None, *, adapt_norm: bool = False
) -> dict[str, nn.Module]:
    """Return the layers to adapt by their dotted path, each layer once, under its first name.

    Args:
        model: the base policy; it may be one layer itself, whose path is ``""``.
        patterns: exact paths or globs such as ``"encoder.*"``, which leave norms out; None means
            every linear, convolutional, recurrent and attention layer, not embeddings.
        adapt_norm: all norms that have a scale, too.

    Raises:
        ValueError: where a pattern matches nothing, or no supported layer.
    """
    modules = _all_names(model)
    supported = [name for name in modules if _reason(name, modules) is None]
    if patterns is None:
        chosen = [name for name in supported if _is_default(modules[name])]
    else:
        wanted = [patterns] if isinstance(patterns, str) else list(patterns)
        chosen = [name for p in wanted for name in _matching(p, modules, supported)]
    if adapt_norm:
        chosen += [name for name in supported if _is_norm(modules[name])]
    if not chosen:
        raise ValueError(_nothing_to_adapt(model, modules, supported))
    layers: dict[int, tuple[str, nn.Module]] = {}
    wanted_layers = {id(modules[name]) for name in _with_inner(chosen, modules)}
    for name in supported:  # in the order of the model, whatever the order of the patterns
        if id(modules[name]) in wanted_layers:
            layers.setdefault(id(modules[name]), (name, modules[name]))
    return dict(layers.values())


def matrix_names(path: str, layer: nn.Module) -> dict[str, Matrix]:
    """Return the matrices of a layer by the names that individuals have for them.

    One with a single matrix called ``weight`` goes by the layer's path, another by
    ``path.name_of_the_parameter``.
    """
    found = {}
    for matrix in matrices_of(layer):
        name = path if matrix.weight == "weight" else f"{path}.{matrix.weight}".removeprefix(".")
        found[name] = matrix
    return found


DEFAULT = "default"


def find_ranks(
    low_rank: int | Mapping[str, int], targets: Mapping[str, nn.Module]
) -> dict[str, int]:
    """Return the rank of each matrix by its name, at most its smaller side.

    Args:
        low_rank: one rank for all, or ranks by exact path or glob, of layers or of single matrices,
            and ``"default"`` for what nothing else names. An exact path goes first, then the first
            glob that matches.
        targets: layers by path, as `find_targets` gives them.

    Raises:
        ValueError: for a rank below 1, a pattern that matches nothing, a matrix that none names.
    """
    given = low_rank if isinstance(low_rank, Mapping) else {DEFAULT: low_rank}
    for pattern, rank in given.items():
        at_least(f"low_rank[{pattern!r}]" if given is low_rank else "low_rank", rank, 1)
    ranks: dict[str, int] = {}
    known: set[str] = set()
    for path, layer in targets.items():
        for name, matrix in matrix_names(path, layer).items():
            names = [name, path, *_outer(path, targets)]
            known.update(names)
            parameter = layer._parameters[matrix.weight]
            assert parameter is not None
            ranks[name] = min(int(given[first_match(names, given)]), *matrix.size(parameter))
    idle = [p for p in given if p != DEFAULT and not any(matches(name, p) for name in known)]
    if idle:
        message = f"low_rank names {_listed(idle)}, which matches no target: {_listed(ranks)}"
        raise ValueError(message)
    return ranks


def _outer(path: str, targets: Mapping[str, nn.Module]) -> list[str]:
    """Return the path of the layer that one is part of, as the projection of an attention is."""
    outer, _, end = path.rpartition(".")
    kind = kind_of(targets[outer]) if outer in targets and outer != path else None
    return [outer] if kind is not None and end in kind.inner else []


def matches(name: str, pattern: str) -> bool:
    """Return whether a pattern is the exact path, or a glob that matches it."""
    return name == pattern or fnmatch.fnmatchcase(name, pattern)


def first_match(names: Sequence[str], given: Mapping[str, Any], what: str = "low_rank") -> str:
    """Return the key of `given` for a target: an exact path, the first glob that matches, ``"default"``.

    Args:
        names: of the target, the one for messages first.
        given: by pattern.
        what: the setting, for the message.

    Raises:
        ValueError: where no pattern matches.
    """
    exact = [name for name in names if name in given]
    globs = [p for p in given if p != DEFAULT and any(matches(name, p) for name in names)]
    found = [*exact, *globs, *(p for p in given if p == DEFAULT)]
    if not found:
        message = f"{what} says nothing of {names[0]!r}: add a pattern for it, or 'default'"
        raise ValueError(message)
    return found[0]
