"""``ars``: augmented random search (Mania et al. 2018)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from populora_envs.fitness import best_first
from populora_envs.search.base import register_search
from populora_envs.search.settings import positive, within
from populora_envs.search.vector import VectorSearch

if TYPE_CHECKING:
    from torch import Tensor

    from populora_envs.population import Population


@register_search("ars")
class AugmentedRandomSearch(VectorSearch):
    """Finite differences along the best directions, in units of how much their rewards differ.

    "Simple random search provides a competitive approach to reinforcement learning" (Mania et al. 2018,
    algorithm 2, V2-t); its normalised observations are the population's own. A pair with a fitness
    that is not finite is left out, and so is an odd last individual.

    Args:
        population: that it writes into.
        scale: standard deviation, in units of `Genome.scale`.
        learning_rate: length of a step, likewise.
        top_share: of the directions, those that count, in [0, 1], rounded up, at least one.
    """

    name = "ars"

    def __init__(
        self,
        population: Population,
        *,
        scale: float = 1.0,
        learning_rate: float = 0.5,
        top_share: float = 0.5,
    ) -> None:
        super().__init__(population, scale)
        self.learning_rate = positive("learning_rate", learning_rate)
        self.top_share = within("top_share", top_share, 0, 1)

    def _learn(self, fitnesses: Tensor) -> None:
        pairs = fitnesses[: 2 * (len(fitnesses) // 2)].double().view(-1, 2)
        top = self._top(pairs)
        spread = pairs[top].std(correction=0) if len(top) else pairs.new_tensor(0.0)
        if spread > 0:
            differences = (pairs[top, 0] - pairs[top, 1]) / spread
            step = differences @ self.noise()[::2][top] / len(top)
            self.mean = self.mean + self.learning_rate * self.genome.scale * step

    def _top(self, pairs: Tensor) -> Tensor:
        """Return the directions with the best individuals, among those with two finite fitnesses."""
        count = max(1, math.ceil(self.top_share * len(pairs)))
        order = best_first(pairs.amax(dim=1))
        return order[pairs[order].isfinite().all(dim=1)][:count]
