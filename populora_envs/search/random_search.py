"""``random``: the baseline, which learns nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from populora_envs.search.base import Search, register_search
from populora_envs.search.genome import Genome
from populora_envs.search.settings import positive
from populora_envs.seeds import make_generator, normal

if TYPE_CHECKING:
    from torch import Tensor

    from populora_envs.population import Population


@register_search("random")
class RandomSearch(Search):
    """Fresh individuals around the base in every generation.

    Args:
        population: that it writes into.
        scale: standard deviation, in units of `Genome.scale`.
    """

    def __init__(self, population: Population, *, scale: float = 1.0) -> None:
        super().__init__(population)
        self.scale = positive("scale", scale)
        self.genome = Genome(population)

    def _ask(self) -> None:
        population = self.population
        generator = make_generator(population.seed, population.generation, "random")
        noise = normal((population.pop_size, self.genome.size), generator).double()
        self.genome.write_(self.genome.start + self.scale * self.genome.scale * noise)

    def _tell(self, fitnesses: Tensor) -> None:
        """Forget it."""
