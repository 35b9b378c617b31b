"""``openai_es``: evolution strategies as a gradient for Adam (Salimans et al. 2017)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from populora_envs.search.base import register_search
from populora_envs.search.ranking import centred_ranks
from populora_envs.search.settings import positive, within
from populora_envs.search.vector import VectorSearch

if TYPE_CHECKING:
    from populora_envs.population import Population

BETAS = 0.9, 0.999
"""How much of the gradient's mean and of its mean square Adam keeps."""

EPSILON = 1e-8


@register_search("openai_es")
class OpenAIES(VectorSearch):
    """A fixed deviation, mirrored pairs and centred ranks; Adam follows the estimated gradient.

    "Evolution strategies as a scalable alternative to reinforcement learning" (Salimans et al. 2017),
    Adam by Kingma and Ba 2015, in units of `Genome.scale`.

    Args:
        population: that it writes into.
        scale: standard deviation, in units of `Genome.scale`.
        learning_rate: about how far Adam moves a gene, in units of `Genome.scale`.
        weight_decay: share of the way back to the base, times the learning rate, in each generation,
            in [0, 1] (decoupled, Loshchilov and Hutter 2019).
    """

    name = "openai_es"
    learned = ("mean", "first_moment", "second_moment", "num_updates")

    def __init__(
        self,
        population: Population,
        *,
        scale: float = 1.0,
        learning_rate: float = 0.3,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(population, scale)
        self.learning_rate = positive("learning_rate", learning_rate)
        self.weight_decay = within("weight_decay", weight_decay, 0, 1)
        self.first_moment = torch.zeros_like(self.mean)
        self.second_moment = torch.zeros_like(self.mean)
        self.num_updates = self.mean.new_tensor(0.0)

    def _learn(self, fitnesses: Tensor) -> None:
        gradient = centred_ranks(fitnesses) @ self.noise() / len(fitnesses)
        step = self.genome.scale * self._adam(gradient)
        if self.weight_decay:
            step = step + self.weight_decay * (self.genome.start - self.mean)
        self.mean = self.mean + self.learning_rate * step

    def _adam(self, gradient: Tensor) -> Tensor:
        """Return the direction of Adam, about 1 in each gene."""
        first, second = BETAS
        self.num_updates = self.num_updates + 1
        self.first_moment = first * self.first_moment + (1 - first) * gradient
        self.second_moment = second * self.second_moment + (1 - second) * gradient.square()
        mean = self.first_moment / (1 - first**self.num_updates)
        return mean / ((self.second_moment / (1 - second**self.num_updates)).sqrt() + EPSILON)
