"""``clonal``: clonal selection with bursts of mutation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from populora_envs.search.base import register_search
from populora_envs.search.ga import GeneticAlgorithm
from populora_envs.search.settings import positive, within
from populora_envs.settings import at_least

if TYPE_CHECKING:
    from populora_envs.genetics import Choice
    from populora_envs.population import Population


@register_search("clonal")
class ClonalSelection(GeneticAlgorithm):
    """Clones of the best, mutated the more gently the better they are (CLONALG).

    De Castro and Von Zuben (2002), see `Population.evolve_clonal_`. The selected are judged by the mean
    over all generations that they have played. When the best of these means has not risen for
    `patience` generations, one generation of clones is mutated `burst` times as strongly (triggered
    hypermutation, Cobb 1990).

    Args:
        population: its individuals as they are make the first generation.
        select_frac: share of the population that is cloned.
        fresh_frac: share that is drawn anew.
        epsilon: of the mutation of the least fit clones.
        decay: how fast fitness calms mutation.
        burst: factor on epsilon in a burst, 1 or more.
        patience: generations without progress before a burst.
        mutation_type: of a mutation that takes `epsilon`.
    """

    def __init__(
        self,
        population: Population,
        *,
        select_frac: float = 0.25,
        fresh_frac: float = 0.125,
        epsilon: float = 0.7,
        decay: float = 2.0,
        burst: float = 3.0,
        patience: int = 5,
        mutation_type: Choice = "full_gaussian",
    ) -> None:
        super().__init__(population, mutation_type=mutation_type, epsilon=epsilon)
        self.choices = {
            "select_frac": within("select_frac", select_frac, 0.0, 1.0),
            "fresh_frac": within("fresh_frac", fresh_frac, 0.0, 1.0),
            "epsilon": within("epsilon", epsilon, 0.0, 1e6),
            "decay": within("decay", decay, 0.0, 1e6),
            "mutation_type": mutation_type,
        }
        self.burst = positive("burst", burst)
        self.patience = at_least("patience", patience, 1)
        self._record, self._stuck = -torch.inf, 0

    def _tell(self, fitnesses: Tensor) -> None:
        super()._tell(fitnesses)
        best = float(self.scores().max())
        self._stuck = 0 if best > self._record else self._stuck + 1
        self._record = max(best, self._record)

    def _advance(self) -> None:
        """Make the next generation, which counts it."""
        is_stuck = self._stuck >= self.patience
        burst = self.burst if is_stuck else 1.0
        kept = self.population.evolve_clonal_(self.scores(), burst=burst, **self.choices).survivors
        if is_stuck:
            self._stuck, self._record = 0, -torch.inf
        is_new = torch.ones(self.population.pop_size, dtype=torch.bool, device="cpu")
        is_new[kept] = False
        self._sums[is_new], self._counts[is_new] = 0.0, 0

    def state(self) -> dict[str, Any]:
        """Return what it has learned."""
        return {**super().state(), "record": self._record, "stuck": self._stuck}

    def load_state_(self, state: dict[str, Any]) -> None:
        """Go on from what `state` returned."""
        super().load_state_(state)
        self._record, self._stuck = state["record"], state["stuck"]
