"""The batch dimension of nested arguments."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable


def map_tensors(function: Callable[[Tensor], Tensor], nested: Any) -> Any:
    """Apply `function` to every tensor inside tuples, lists and dicts."""
    if isinstance(nested, Tensor):
        return function(nested)
    if isinstance(nested, dict):
        mapped = copy.copy(nested)  # keeps the type: OrderedDict, defaultdict
        mapped.update((key, map_tensors(function, value)) for key, value in nested.items())
        return mapped
    if isinstance(nested, tuple) and hasattr(nested, "_fields"):
        return type(nested)(*(map_tensors(function, value) for value in nested))
    if isinstance(nested, (tuple, list)):
        return type(nested)(map_tensors(function, value) for value in nested)
    return nested


def batch_size(nested: Any) -> int:
    """Return the first dimension of the first tensor; ValueError where there is none."""
    sizes: list[int] = []

    def note(tensor: Tensor) -> Tensor:
        if tensor.dim():
            sizes.append(tensor.shape[0])
        return tensor

    map_tensors(note, nested)
    if not sizes:
        message = "the forward needs at least one tensor with a batch dimension"
        raise ValueError(message)
    return sizes[0]


def show_to_all(nested: Any, count: int) -> Any:
    """Repeat every tensor whose batch is 1 `count` times (without copying)."""

    def expand(tensor: Tensor) -> Tensor:
        if tensor.dim() and tensor.shape[0] == 1:
            return tensor.expand(count, *tensor.shape[1:])
        return tensor

    return map_tensors(expand, nested)
