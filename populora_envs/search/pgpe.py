"""``pgpe``: policy gradients with parameter-based exploration, with ClipUp."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from populora_envs.search.base import register_search
from populora_envs.search.ranking import centred_ranks
from populora_envs.search.settings import positive, within
from populora_envs.search.vector import VectorSearch

if TYPE_CHECKING:
    from populora_envs.population import Population


@register_search("pgpe")
class PGPE(VectorSearch):
    """A gradient from mirrored pairs, followed at a limited speed.

    "Parameter-exploring policy gradients" (Sehnke et al. 2010, symmetric sampling) with centred ranks in
    the place of rewards; the mean moves by ClipUp (Toklu et al. 2020, algorithm 1), whose step has half
    the length of the greatest speed.

    Args:
        population: that it writes into.
        scale: deviation of the first generation, in units of `Genome.scale`.
        max_speed: the longest step of the mean, as a share of the norm of the deviation.
        momentum: share of its velocity that the mean keeps, in [0, 1].
        deviation_rate: of the deviations, at least 0.
        max_change: the greatest relative change of a deviation in one generation, in [0, 1].
    """

    name = "pgpe"
    learned = ("mean", "velocity", "spread")

    def __init__(
        self,
        population: Population,
        *,
        scale: float = 1.0,
        max_speed: float = 0.3,
        momentum: float = 0.9,
        deviation_rate: float = 0.1,
        max_change: float = 0.2,
    ) -> None:
        super().__init__(population, scale)
        self.max_speed = positive("max_speed", max_speed)
        self.momentum = within("momentum", momentum, 0, 1)
        self.deviation_rate = within("deviation_rate", deviation_rate, 0, math.inf)
        self.max_change = within("max_change", max_change, 0, 1)
        self.velocity = torch.zeros_like(self.mean)
        self.spread = torch.ones_like(self.mean)

    @property
    def deviation(self) -> Tensor:
        """The standard deviation of each gene around the mean, float64 `[D]`."""
        return super().deviation * self.spread

    def _learn(self, fitnesses: Tensor) -> None:
        utilities, noise = centred_ranks(fitnesses), self.noise()
        self._move(self.deviation * (utilities @ noise))
        # an odd last individual is the mean, and says nothing of how far to look
        drawn = 2 * (len(noise) // 2)
        gradient = utilities[:drawn] @ (noise[:drawn].square() - 1) / drawn
        change = (self.deviation_rate * gradient).clamp(-self.max_change, self.max_change)
        self.spread = self.spread * (1 + change)

    def _move(self, gradient: Tensor) -> None:
        """Step along the direction of the gradient, whatever its length."""
        max_speed = self.max_speed * self.deviation.norm()
        step = max_speed / 2 * torch.nn.functional.normalize(gradient, dim=0)
        velocity = self.momentum * self.velocity + step
        self.velocity = velocity * (max_speed / velocity.norm()).clamp_max(1.0)
        self.mean = self.mean + self.velocity
