"""What every search is: it asks for a generation to be played, and is told how that went."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import torch

from populora_envs.fitness import check_fitnesses
from populora_envs.individuals import check_shape
from populora_envs.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from populora_envs.behaviour import Shown
    from populora_envs.individuals import State
    from populora_envs.population import Population

    MakeSearch = Callable[..., "Search"]

searches: Registry[MakeSearch] = Registry("search")
register_search = searches.register


class Search(ABC):
    """A way from one generation to the next; fitness is always maximised.

    A search of your own writes individuals in `_ask` and learns in `_tell`. All it draws comes from
    `population.seed` and `population.generation`, so a repeated `ask` writes the same individuals.

    Args:
        population: that it writes into.
    """

    def __init__(self, population: Population) -> None:
        self.population = population
        population.sync_()
        self._asked = self._told = False
        self._evaluated: Shown | None = None
        self._told_last = torch.full((population.pop_size,), -torch.inf, device="cpu")

    def ask(self) -> None:
        """Write the next generation into the population; `population.generation` counts it."""
        is_repeated = self._asked and not self._told
        births = self.population.lineage.count
        if self._told:
            self._advance()
        self._ask()
        if not is_repeated and self.population.lineage.count == births:
            self._note_births()
        self._asked, self._told = True, False

    def tell(self, fitnesses: Any, evaluated: Shown | None = None) -> None:
        """Learn what this generation scored.

        Args:
            fitnesses: `[P]`, higher is better; what is not finite ranks last.
            evaluated: what `EnvInteractor.rollout` gave, for searches that look at more than fitness:
                `_tell` finds it in `_evaluated`.

        Raises:
            RuntimeError: where nothing was asked since the last call.
        """
        if not self._asked:
            message = "tell wants the fitness of the generation that ask wrote: call ask first"
            raise RuntimeError(message)
        self._told_last = self._checked(fitnesses)
        self.population.lineage.fitnesses = self._told_last.clone()
        self._evaluated = evaluated
        self._tell(self._told_last)
        self._evaluated = None
        self._asked, self._told = False, True

    def scores(self, fitnesses: Any = None) -> Tensor:
        """Return how good the individuals seem, `[P]`.

        Args:
            fitnesses: of this generation, where that was not told yet.
        """
        return self._told_last if fitnesses is None else self._checked(fitnesses)

    def _checked(self, fitnesses: Any) -> Tensor:
        return check_fitnesses(fitnesses, self.population.pop_size)

    def centre(self) -> State | None:
        """Return the policy that the search stands at, where that is none of its individuals."""
        return None

    def state(self) -> dict[str, Any]:
        """Return what it has learned, as tensors and plain values.

        A search of your own adds to it, under names other than `asked`, `told` and `fitnesses`.
        """
        return {"asked": self._asked, "told": self._told, "fitnesses": self._told_last.clone()}

    def load_state_(self, state: dict[str, Any]) -> None:
        """Go on from what `state` returned."""
        check_shape("search.fitnesses", state["fitnesses"], self._told_last)
        self._asked, self._told = state["asked"], state["told"]
        self._told_last = state["fitnesses"].clone()

    def _advance(self) -> None:
        self.population.generation += 1

    def _note_births(self) -> None:
        """Note in the lineage who is new, where `_ask` and `_advance` have noted nobody: everyone."""
        has_centre = self.centre() is not None
        population = self.population
        population.lineage.sample_(self._name(), population.generation, has_centre=has_centre)

    def _name(self) -> str:
        kind = type(self)
        return next((name for name in searches if searches.get(name) is kind), kind.__name__)

    @abstractmethod
    def _ask(self) -> None:
        """Write the individuals of the present generation."""

    @abstractmethod
    def _tell(self, fitnesses: Tensor) -> None:
        """Learn from float32 `[P]`, -inf where a fitness was not finite."""
