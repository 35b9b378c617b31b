"""``ga``: the genetic algorithm, with the operators of the population."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from populora_envs.genetics import check_choices
from populora_envs.search.base import Search, register_search

if TYPE_CHECKING:
    from populora_envs.population import Population


@register_search("ga")
class GeneticAlgorithm(Search):
    """Selection, parents, crossover and mutation; an elite is judged by all generations it has played.

    Deep neuroevolution by mutation and truncation (Such et al. 2017) with tournaments among the
    survivors. Every generation plays other start states, so the running mean of an elite tells its
    luck from its skill at no cost.

    Args:
        population: its individuals as they are make the first generation.
        **choices: as in `Population.evolve_`.
    """

    def __init__(self, population: Population, **choices: Any) -> None:
        super().__init__(population)
        check_choices(choices)
        self.choices = choices
        self._sums = torch.zeros(population.pop_size, dtype=torch.float64, device="cpu")
        self._counts = torch.zeros(population.pop_size, dtype=torch.int64, device="cpu")

    def scores(self, fitnesses: Any = None) -> Tensor:
        """Return the mean fitness of each individual over the generations that it has played."""
        if fitnesses is None:
            return (self._sums / self._counts.clamp_min(1)).float()
        return ((self._sums + self._checked(fitnesses)) / (self._counts + 1)).float()

    def state(self) -> dict[str, Any]:
        """Return what it has learned: sums and counts of fitness."""
        own = {"sums": self._sums.clone(), "counts": self._counts.clone()}
        return {**super().state(), **own}

    def load_state_(self, state: dict[str, Any]) -> None:
        """Go on from what `state` returned."""
        super().load_state_(state)
        self._sums, self._counts = state["sums"].clone(), state["counts"].clone()

    def _advance(self) -> None:
        """Make the next generation, which counts it."""
        elites = self.population.evolve_(self.scores(), **self.choices).elites
        is_new = torch.ones(self.population.pop_size, dtype=torch.bool, device="cpu")
        is_new[elites] = False
        self._sums[is_new], self._counts[is_new] = 0.0, 0

    def _ask(self) -> None:
        """The generation is there already."""

    def _note_births(self) -> None:
        """The operators have noted who is new; the first generation was there before."""

    def _tell(self, fitnesses: Tensor) -> None:
        self._sums += fitnesses
        self._counts += 1
