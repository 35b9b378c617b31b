"""Random numbers of the operators: drawn on the CPU, so the same on every device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from populora_envs.seeds import normal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Generator, Tensor


def normal_like(weights: Tensor, generator: Generator) -> Tensor:
    """Draw standard normal numbers, the same on every device, in the shape of `weights`."""
    return normal(weights.shape, generator).to(weights)


def uniform_like(weights: Tensor, generator: Generator) -> Tensor:
    """Draw numbers in [0, 1) in the shape of `weights`."""
    drawn = torch.rand(weights.shape, generator=generator, device="cpu", dtype=torch.float64)
    return drawn.to(weights.device, torch.promote_types(weights.dtype, torch.float32))


def one_of(count: int, shape: Sequence[int], generator: Generator) -> Tensor:
    """Draw indices below `count`, int64."""
    return torch.randint(count, tuple(shape), generator=generator, device="cpu")


def share(weights: Tensor, generator: Generator) -> Tensor:
    """Draw one number in [0, 1) for each individual, `[N, 1, 1]`."""
    return uniform_like(weights[:, :1, :1, :1].reshape(len(weights), 1, 1), generator)
