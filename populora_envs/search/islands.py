"""``islands``: the genetic algorithm on islands that exchange individuals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from populora_envs.islands import REINITS
from populora_envs.operators import migrations, mutations
from populora_envs.operators.choose import own_options, resolve, resolve_each
from populora_envs.search.base import register_search
from populora_envs.search.ga import GeneticAlgorithm
from populora_envs.settings import GeneticSettings, at_least, settings_from

if TYPE_CHECKING:
    from populora_envs.genetics import Choice
    from populora_envs.population import Population


@register_search("islands")
class IslandAlgorithm(GeneticAlgorithm):
    """The genetic algorithm apart on each island; migrants and the mean of their fitness move together.

    Also what ``search="ga"`` becomes with `num_islands`. Coarse-grained parallel models are surveyed by
    Alba and Tomassini (2002). The island whose best is the worst can begin anew from the others, as in
    FunSearch (Romera-Paredes et al. 2024).

    Args:
        population: its individuals as they are make the first generation.
        num_islands: equal islands, at least 2.
        migration_type: ``"ring"``, ``"fitness_uniform"``, another registered name or a function.
        migrate_every: generations between two migrations.
        num_migrants: to each island at a time.
        reinit_type: ``"pool"`` or ``"es"``, see `Population.reinit_`; None begins no island anew.
        reinit_every: generations after which the island whose best is the worst begins anew.
        **choices: as in `Population.evolve_`.

    Raises:
        ValueError: for islands that are not equal, too many migrants or an unknown name.
    """

    def __init__(
        self,
        population: Population,
        *,
        num_islands: int = 4,
        migration_type: Choice = "ring",
        migrate_every: int = 5,
        num_migrants: int = 1,
        reinit_type: str | None = None,
        reinit_every: int = 20,
        **choices: Any,
    ) -> None:
        super().__init__(population, **choices)
        self.islands = population.islands(at_least("num_islands", num_islands, 2))
        resolve(migrations, migration_type)
        if reinit_type is not None and reinit_type not in REINITS:
            message = f"reinit_type must be None or one of {REINITS}, not {reinit_type!r}"
            raise ValueError(message)
        self.migration_type, self.reinit_type = migration_type, reinit_type
        self.num_migrants = at_least("num_migrants", num_migrants, 1)
        if self.num_migrants >= self.islands.shape[1]:
            message = (
                f"num_migrants={num_migrants} of islands of {self.islands.shape[1]}: fewer must "
                "move than live there"
            )
            raise ValueError(message)
        self.migrate_every = at_least("migrate_every", migrate_every, 1)
        self.reinit_every = at_least("reinit_every", reinit_every, 1)

    def _advance(self) -> None:
        """Migrate, begin an island anew, and make the next generation on the others."""
        population, played = self.population, self.population.generation + 1
        count = len(self.islands)
        if played % self.migrate_every == 0:
            moved = population.migrate_(
                self.migration_type, self.scores(), count, self.num_migrants
            )
            for kept in (self._sums, self._counts):
                kept[moved.destinations] = kept[moved.sources]
        evolving = list(range(count))
        if self.reinit_type is not None and played % self.reinit_every == 0:
            evolving.remove(self._begin_anew_())
        elites = population.evolve_islands_(self.scores(), count, evolving, **self.choices).elites
        is_new = torch.ones(population.pop_size, dtype=torch.bool, device="cpu")
        is_new[elites] = False
        self._sums[is_new], self._counts[is_new] = 0.0, 0

    def _begin_anew_(self) -> int:
        """Make the individuals of the worst island anew; return its number."""
        settings, options = settings_from(GeneticSettings, self.choices)
        mutation = resolve_each(mutations, settings.mutation_type)
        worst = int(self.scores()[self.islands].amax(dim=1).argmin())
        assert self.reinit_type is not None
        self.population.reinit_(
            self.reinit_type,
            self.scores(),
            self.islands[worst],
            mutation,
            **own_options(mutation, options),
        )
        return worst
