"""``snes``: separable natural evolution strategies (Schaul et al. 2011; Wierstra et al. 2014)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from populora_envs.search.base import register_search
from populora_envs.search.ranking import log_ranks
from populora_envs.search.settings import positive, within
from populora_envs.search.vector import VectorSearch

if TYPE_CHECKING:
    from populora_envs.population import Population


@register_search("snes")
class SeparableNES(VectorSearch):
    """Natural gradient steps of a mean and of one deviation per gene.

    "High dimensions and heavy tails for natural evolution strategies" (Schaul et al. 2011, algorithm
    SNES), with the fitness shaping of Wierstra et al. 2014 and mirrored pairs.

    Args:
        population: that it writes into.
        scale: deviation of the first generation, in units of `Genome.scale`.
        learning_rate: of the mean; 1 goes to the weighted mean of the individuals.
        deviation_rate: of the deviations, at least 0; None means (3 + ln D) / (5 sqrt D).
    """

    name = "snes"
    learned = ("mean", "spread")

    def __init__(
        self,
        population: Population,
        *,
        scale: float = 1.0,
        learning_rate: float = 1.0,
        deviation_rate: float | None = None,
    ) -> None:
        super().__init__(population, scale)
        self.learning_rate = positive("learning_rate", learning_rate)
        size = self.genome.size
        usual = (3 + math.log(size)) / (5 * math.sqrt(size))
        given = usual if deviation_rate is None else deviation_rate
        self.deviation_rate = within("deviation_rate", given, 0, math.inf)
        self.spread = torch.ones_like(self.mean)

    @property
    def deviation(self) -> Tensor:
        """The standard deviation of each gene around the mean, float64 `[D]`."""
        return super().deviation * self.spread

    def _learn(self, fitnesses: Tensor) -> None:
        utilities, noise = log_ranks(fitnesses), self.noise()
        self.mean = self.mean + self.learning_rate * self.deviation * (utilities @ noise)
        # an odd last individual is the mean, and says nothing of how far to look
        drawn = 2 * (len(noise) // 2)
        gradient = utilities[:drawn] @ (noise[:drawn].square() - 1)
        self.spread = self.spread * (self.deviation_rate / 2 * gradient).exp()
