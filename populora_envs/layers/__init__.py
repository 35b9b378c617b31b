"""Forwards of every kind of layer that individuals change; each kind has a file and a line here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from populora_envs.adapted import RoutedLinear
from populora_envs.invariance import TiledLinear
from populora_envs.layer_kinds import kind_of, matrices_of, unsupported
from populora_envs.layers.attention import RoutedAttention
from populora_envs.layers.conv import RoutedConv
from populora_envs.layers.embedding import RoutedEmbedding
from populora_envs.layers.norm import RoutedNorm
from populora_envs.layers.recurrent import RoutedCell, RoutedRecurrent

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn

    from populora_envs.layers.composite import Composite, Product

SINGLE: dict[str, type[RoutedLinear]] = {
    "linear": RoutedLinear,
    "embedding": RoutedEmbedding,
    "norm": RoutedNorm,
}
"""By the kind of a layer, the forward of one that is a single matrix."""

COMPOSITE: dict[str, type[Composite]] = {
    "attention": RoutedAttention,
    "cell": RoutedCell,
    "conv": RoutedConv,
    "recurrent": RoutedRecurrent,
}
"""By the kind of a layer, the forward of one that does more with its products."""


def forward_class(layer: nn.Module) -> type[RoutedLinear]:
    """Return the class of the adapted matrices of a layer."""
    kind = kind_of(layer)
    return RoutedLinear if kind is None else SINGLE.get(kind.name, RoutedLinear)


def install(layer: nn.Module, adapted: Mapping[str, RoutedLinear]) -> None:
    """Let a layer compute with its adapted matrices, by the names of their parameters."""
    kind = kind_of(layer)
    assert kind is not None
    if kind.name in SINGLE:
        next(iter(adapted.values())).install(layer)
        return
    products: dict[str, Product] = {
        matrix.weight: adapted.get(matrix.weight) or TiledLinear(layer, matrix)
        for matrix in matrices_of(layer)
    }
    COMPOSITE[kind.name](layer, products).install(layer)


def make_composites_invariant(model: nn.Module) -> None:
    """Install such forwards on the layers of `model` that nobody adapts."""
    for layer in model.modules():
        kind = kind_of(layer)
        if kind is None or kind.name not in COMPOSITE or "forward" in layer.__dict__:
            continue
        if unsupported(layer) is None:
            install(layer, {})
