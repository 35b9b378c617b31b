"""Levels of fitness, drawn uniformly (Hutter 2001)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Generator, Tensor


def nearest_levels(fitnesses: Tensor, count: int, generator: Generator) -> Tensor:
    """Return who comes closest to each of `count` levels between the worst and the best, int64.

    Of several who are equally near, one is drawn. Those without a finite fitness are left out while
    anyone has one.
    """
    finite = fitnesses.isfinite()
    values = torch.where(finite, fitnesses, 0.0).double()
    open_to = finite if finite.any() else torch.ones_like(finite)
    low, high = values[open_to].min(), values[open_to].max()
    levels = low + (high - low) * torch.rand(count, generator=generator, dtype=torch.float64)
    distance = (values[None] - levels[:, None]).abs().masked_fill(~open_to, torch.inf)
    nearest = distance == distance.amin(dim=1, keepdim=True)
    return torch.multinomial(nearest.double(), 1, generator=generator)[:, 0]
