"""The base of a population, moved by a search, and where it began."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Mapping

Change = dict[str, dict[str, Tensor]]
"""Of adapted layers: ``{path: {"weight": [out, in], "bias": [out]}}``; no bias where none changes."""


class BaseLayer(Protocol):
    """What is moved."""

    @property
    def weight(self) -> Tensor:
        """`[out, in]`."""
        ...

    @property
    def bias(self) -> Tensor | None:
        """`[out]`."""
        ...


class MovedBase:
    """What a search has added to the weights that the user gave.

    The sum of all steps is kept in float32 or wider, so that small steps count in a base of half
    precision too.

    Args:
        start: the weights that the user gave.
        change: what was added.
    """

    def __init__(self, start: Change, change: Change) -> None:
        self.start, self.change = start, change

    @classmethod
    def beginning(cls, layers: Mapping[str, BaseLayer]) -> MovedBase:
        """Return a base that has not moved yet."""
        start = {name: _copies(layer) for name, layer in layers.items()}
        return cls(start, _nothing(start))

    def at(self, change: Change | None) -> MovedBase:
        """Return the same base where it has moved by `change`, or not at all."""
        moved = _nothing(self.start)
        for name, parts in (change or {}).items():
            for part, tensor in parts.items():
                moved[name][part].copy_(tensor)  # a copy, so that nobody else moves
        return MovedBase(self.start, moved)

    @torch.no_grad()
    def move_(self, layers: Mapping[str, BaseLayer], step: Change) -> None:
        """Add `step` to the base; ValueError where it does not fit, and then nothing has moved."""
        for name, parts in step.items():
            for part, added in parts.items():
                here = self.change.get(name, {}).get(part)
                if here is None or here.shape != added.shape:
                    shape = None if here is None else tuple(here.shape)
                    message = f"{name}.{part} is {shape} here and {tuple(added.shape)} in the step"
                    raise ValueError(message)
        for name, parts in step.items():
            for part, added in parts.items():
                self.change[name][part] += added.to(self.change[name][part])
        self.write_(layers)

    @torch.no_grad()
    def write_(self, layers: Mapping[str, BaseLayer]) -> None:
        """Let the base be where it began, plus the change."""
        for name, layer in layers.items():
            for part, tensor in _tensors(layer).items():
                began = self.start[name][part]
                tensor.copy_(began.to(_wide(began)) + self.change[name][part])

    def load_state_(self, state: dict[str, Change]) -> None:
        """Take over the tensors of another such base."""
        for mine, saved in ((self.start, state["start"]), (self.change, state["change"])):
            for name, parts in mine.items():
                for part, tensor in parts.items():
                    tensor.copy_(saved[name][part])

    def copied_change(self) -> Change:
        """Return what was added so far, as copies."""
        return {
            name: {p: t.clone() for p, t in parts.items()} for name, parts in self.change.items()
        }


def _nothing(start: Change) -> Change:
    return {
        name: {part: torch.zeros_like(w, dtype=_wide(w)) for part, w in parts.items()}
        for name, parts in start.items()
    }


def _wide(tensor: Tensor) -> torch.dtype:
    return torch.promote_types(tensor.dtype, torch.float32)


def _tensors(layer: BaseLayer) -> dict[str, Tensor]:
    parts = {"weight": layer.weight}
    return parts if layer.bias is None else {**parts, "bias": layer.bias}


def _copies(layer: BaseLayer) -> dict[str, Tensor]:
    return {part: tensor.detach().clone() for part, tensor in _tensors(layer).items()}
