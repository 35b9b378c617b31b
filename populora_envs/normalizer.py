"""Running observation statistics: moments of episodes, and the layer that applies them."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Iterable

CLIP = 10.0
"""Largest magnitude of a normalised observation."""

TINY = 1e-4
"""A standard deviation below this counts as 1: the dimension is constant."""


@dataclass(frozen=True, eq=False)
class Moments:
    """Count, mean and sum of squared deviations of observations, float64 `[D]`."""

    count: int
    mean: Tensor
    squares: Tensor


def moments_of(count: int, total: np.ndarray, total_squares: np.ndarray) -> Moments:
    """Return the moments of `count` observations from their sum and their sum of squares."""
    sums, squares = torch.from_numpy(total), torch.from_numpy(total_squares)
    mean = sums / count
    return Moments(count, mean, (squares - sums * mean).clamp_min(0.0))


def merge_moments(first: Moments, second: Moments) -> Moments:
    """Return the moments of both sets together (Chan, Golub and LeVeque 1979)."""
    if not first.count or not second.count:
        return first if first.count else second
    count = first.count + second.count
    delta = second.mean - first.mean
    share = second.count / count
    mean = first.mean + delta * share
    return Moments(count, mean, first.squares + second.squares + delta**2 * first.count * share)


class Normalizer(nn.Module):
    """Observations minus their mean, divided by min(std, 1), clipped at +-10.

    Small observations are amplified, large ones never shrunk: a divisor above 1 hides the signals of
    an upright pole behind the velocities of a spinning one. The statistics are buffers, so they
    travel with every copy, merge and state_dict. What an evaluation saw is proposed; it counts from the
    next generation on.

    Args:
        size: numbers per observation D.
    """

    count: Tensor
    mean: Tensor
    squares: Tensor
    next_count: Tensor
    next_mean: Tensor
    next_squares: Tensor
    shift: Tensor
    divisor: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        for prefix in ("", "next_"):
            self.register_buffer(f"{prefix}count", torch.zeros((), dtype=torch.int64))
            self.register_buffer(f"{prefix}mean", torch.zeros(size, dtype=torch.float64))
            self.register_buffer(f"{prefix}squares", torch.zeros(size, dtype=torch.float64))
        self.register_buffer("shift", torch.zeros(size))
        self.register_buffer("divisor", torch.ones(size))
        self._viewed, self._views = (0, 0), (np.zeros(0), np.zeros(0))

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles look at their own statistics."""
        return {**self.__dict__, "_viewed": (0, 0), "_views": (np.zeros(0), np.zeros(0))}

    def forward(self, observation: Tensor) -> Tensor:
        """Return normalised observations `[..., D]`; unchanged ones before the first update."""
        return ((observation - self.shift) / self.divisor).clamp(-CLIP, CLIP)

    @np.errstate(over="ignore", invalid="ignore")
    def on_array(self, observation: np.ndarray) -> np.ndarray:
        """Do what `forward` does, to a float32 array."""
        shift, divisor = self._buffers["shift"], self._buffers["divisor"]
        if self._viewed != (id(shift), id(divisor)):
            assert shift is not None
            assert divisor is not None
            self._viewed, self._views = (id(shift), id(divisor)), (shift.numpy(), divisor.numpy())
        centred = observation - self._views[0]
        centred /= self._views[1]
        return np.minimum(np.maximum(centred, -CLIP, out=centred), CLIP, out=centred)

    def propose_(self, episodes: Iterable[Moments]) -> None:
        """Count the observations of `episodes`, in this order; what `forward` gives stays.

        A second proposal replaces the first, so an evaluation that is repeated counts once.
        """
        total = Moments(int(self.count), self.mean.cpu(), self.squares.cpu())
        for episode in episodes:
            total = merge_moments(total, episode)
        self.next_count.fill_(total.count)
        self.next_mean.copy_(total.mean)
        self.next_squares.copy_(total.squares)

    def adopt_(self, statistics: dict[str, Tensor]) -> None:
        """Take over saved statistics if nothing was counted so far; warn if they are others."""
        if not int(self.count):
            self.load_state_dict(statistics)
        elif not torch.equal(self.mean.cpu(), statistics["mean"]):
            warnings.warn(
                "the individual was saved with other observation statistics than this population's: "
                "it sees other numbers here",
                stacklevel=3,
            )

    def advance_(self) -> None:
        """Take over what was proposed and renew shift and divisor."""
        if int(self.next_count) == int(self.count):
            return
        self.count.copy_(self.next_count)
        self.mean.copy_(self.next_mean)
        self.squares.copy_(self.next_squares)
        deviation = (self.squares / self.count).sqrt()
        self.shift.copy_(self.mean)
        self.divisor.copy_(torch.where(deviation < TINY, 1.0, deviation.clamp_max(1.0)))


class Standardized(nn.Module):
    """A model behind a normaliser: it takes raw observations."""

    def __init__(self, normalizer: Normalizer, model: nn.Module) -> None:
        super().__init__()
        self.normalizer = normalizer
        self.model = model

    def forward(self, observation: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Run the model on normalised observations `[B, D]`."""
        return self.model(self.normalizer(observation), *args, **kwargs)


def find_normalizer(model: nn.Module) -> Normalizer | None:
    """Return the normaliser that a model begins with, None where it has none."""
    return model.normalizer if isinstance(model, Standardized) else None


def statistics(normalizer: Normalizer | None) -> dict[str, Tensor]:
    """Return copies of a normaliser's tensors on the CPU, none where there is no normaliser."""
    if normalizer is None:
        return {}
    return {name: tensor.cpu().clone() for name, tensor in normalizer.state_dict().items()}
