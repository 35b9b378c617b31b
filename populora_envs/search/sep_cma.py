"""``sep_cma``: CMA-ES with a diagonal covariance matrix (Ros and Hansen 2008)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from populora_envs.search.base import register_search
from populora_envs.search.ranking import log_ranks
from populora_envs.search.vector import VectorSearch

if TYPE_CHECKING:
    from populora_envs.population import Population


@register_search("sep_cma")
class SeparableCMA(VectorSearch):
    """Weighted recombination, cumulative step-size adaptation and a variance for each gene.

    "A simple modification in CMA-ES achieving linear time and space complexity" (Ros and Hansen 2008),
    with its constants. Individuals are independent: with mirrored pairs the sum of the better half would
    be too short, and the step size would shrink without a reason (Auger et al. 2011).

    Args:
        population: that it writes into.
        scale: step size of the first generation, in units of `Genome.scale`.
    """

    name = "sep_cma"
    mirrored = False
    learned = ("mean", "variances", "path", "step_path", "step_size", "num_updates")

    def __init__(self, population: Population, *, scale: float = 1.0) -> None:
        super().__init__(population, scale)
        self.variances = torch.ones_like(self.mean)
        self.path = torch.zeros_like(self.mean)
        self.step_path = torch.zeros_like(self.mean)
        self.step_size = self.mean.new_tensor(self.scale)
        self.num_updates = self.mean.new_tensor(0.0)
        self._rates = _Rates(self.genome.size, population.pop_size)

    @property
    def deviation(self) -> Tensor:
        """The standard deviation of each gene around the mean, float64 `[D]`."""
        return self.step_size * self.variances.sqrt() * self.genome.scale

    def _learn(self, fitnesses: Tensor) -> None:
        weights, noise = _weights(fitnesses), self.noise()
        step = weights @ noise
        self.mean = self.mean + self.deviation * step
        # of the weights as they are, for equal fitnesses share theirs: so the paths keep their length
        direction = step / weights.norm()
        goes_on = self._follow(direction)
        self._adapt_variances(weights @ noise.square(), direction, goes_on)
        self._adapt_step_size()

    def _follow(self, direction: Tensor) -> bool:
        """Add a standard normal step to the path of the step size; say whether it is not too long."""
        rate = self._rates.step_path
        self.step_path = (1 - rate) * self.step_path + math.sqrt(rate * (2 - rate)) * direction
        self.num_updates = self.num_updates + 1
        begun = 1 - (1 - rate) ** (2 * self.num_updates.item())
        bound = (1.4 + 2 / (self.genome.size + 1)) * self._rates.length
        return bool(self.step_path.norm() / math.sqrt(begun) < bound)

    def _adapt_variances(self, squares: Tensor, direction: Tensor, goes_on: bool) -> None:
        """Learn from the path (rank one) and from the individuals (rank mu)."""
        rates = self._rates
        size = math.sqrt(rates.path * (2 - rates.path)) if goes_on else 0.0
        self.path = (1 - rates.path) * self.path + size * self.variances.sqrt() * direction
        self.variances = (
            (1 - rates.covariance) * self.variances
            + rates.covariance / rates.effective * self.path.square()
            + rates.covariance * (1 - 1 / rates.effective) * self.variances * squares
        )

    def _adapt_step_size(self) -> None:
        excess = self.step_path.norm() / self._rates.length - 1
        self.step_size = (
            self.step_size * (self._rates.step_path / self._rates.damping * excess).exp()
        )


class _Rates:
    """Learning rates from the number of genes and of individuals (Ros and Hansen 2008, table 1)."""

    def __init__(self, size: int, pop_size: int) -> None:
        distinct = torch.arange(pop_size, dtype=torch.float64, device="cpu")
        # the number of individuals that count
        self.effective = effective = float(1 / _weights(distinct).square().sum())
        self.path = 4 / (size + 4)
        self.step_path = (effective + 2) / (size + effective + 3)
        above = math.sqrt((effective - 1) / (size + 1)) - 1
        self.damping = 1 + 2 * max(0.0, above) + self.step_path
        self.covariance = _covariance_rate(size, effective) * (size + 2) / 3
        self.covariance = min(1.0, self.covariance)
        # of a standard normal vector, on average
        self.length = math.sqrt(size) * (1 - 1 / (4 * size) + 1 / (21 * size**2))


def _covariance_rate(size: int, effective: float) -> float:
    """Return the learning rate of a full covariance matrix."""
    rank_one = 2 / (size + math.sqrt(2)) ** 2
    rank_mu = min(1.0, (2 * effective - 1) / ((size + 2) ** 2 + effective))
    return rank_one / effective + (1 - 1 / effective) * rank_mu


def _weights(fitnesses: Tensor) -> Tensor:
    """Return weights of the better half by the logarithm of the rank, a sum of 1, float64 `[P]`."""
    return log_ranks(fitnesses) + 1 / len(fitnesses)
