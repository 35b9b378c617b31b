"""Islands: parts of a population that evolve apart, and now and then exchange individuals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from populora_envs.fitness import best_first, check_fitnesses
from populora_envs.genetics import Choice, Genetics, Selected
from populora_envs.low_rank import truncated
from populora_envs.operators import crossovers, migrations
from populora_envs.operators.choose import check_options, resolve
from populora_envs.settings import at_least

if TYPE_CHECKING:
    from collections.abc import Sequence

    from populora_envs.routing import RoutedLinear

REINITS = ("pool", "es")


class Moved(NamedTuple):
    """Who moved between islands: int64 `[M]` each, in the same order."""

    sources: Tensor
    destinations: Tensor


class Islands(Genetics):
    """What `Population` inherits to evolve on islands.

    Island k of n equal ones holds the individuals from ``k * P / n`` on.
    """

    def islands(self, num_islands: int) -> Tensor:
        """Return the individuals of each island, int64 `[num_islands, P / num_islands]`.

        Raises:
            ValueError: where the population cannot be divided into equal islands.
        """
        count = at_least("num_islands", num_islands, 1)
        if self.pop_size % count:
            message = (
                f"{self.pop_size} individuals cannot live on num_islands={count} equal islands: "
                "choose a pop_size that is a multiple"
            )
            raise ValueError(message)
        return torch.arange(self.pop_size, device="cpu").reshape(count, -1)

    def evolve_islands_(
        self,
        fitnesses: Tensor,
        num_islands: int,
        only: Sequence[int] | None = None,
        **choices: Any,
    ) -> Selected:
        """Do what `evolve_` does on each island apart; `generation` is counted once.

        Args:
            fitnesses: `[P]`, higher is better.
            num_islands: equal ones; see `islands`.
            only: numbers of the islands that evolve, the others stay as they are; None means all.
            **choices: of `evolve_`, the same for all; shares are those of an island.

        Returns:
            Who lived on, island after island, best first on each.
        """
        values = check_fitnesses(fitnesses, self.pop_size)
        islands = self.islands(num_islands)
        islands = islands if only is None else islands[list(only)]
        every = [_Island(self, own).evolve_(values[own], **choices) for own in islands]
        self.generation += 1
        parts = [
            [own[indices] for own, indices in zip(islands, column, strict=True)]
            for column in zip(*every, strict=True)
        ]
        return Selected(*map(torch.cat, parts))

    def migrate_(
        self,
        migration_type: Choice,
        fitnesses: Tensor,
        num_islands: int,
        num_migrants: int = 1,
        **options: Any,
    ) -> Moved:
        """Copy individuals from island to island, over others; the lineage keeps who they are.

        Args:
            migration_type: ``"ring"``, ``"fitness_uniform"``, another registered name, or a function
                ``(fitnesses, islands, num_migrants, generator, **options)``.
            fitnesses: `[P]`, higher is better.
            num_islands: at least 2 equal ones.
            num_migrants: of each island, fewer than live there.
            **options: of the migration.

        Returns:
            Who moved where: what belongs to a source, such as its fitness, its copy has too.
        """
        islands = self.islands(at_least("num_islands", num_islands, 2))
        if not 1 <= at_least("num_migrants", num_migrants, 1) < islands.shape[1]:
            message = (
                f"num_migrants={num_migrants} of islands of {islands.shape[1]}: fewer must move "
                "than live there"
            )
            raise ValueError(message)
        values = check_fitnesses(fitnesses, self.pop_size)
        operator = resolve(migrations, migration_type)
        check_options([operator], options)
        generator = self._generator("migration")
        found = operator(values, islands, num_migrants, generator, **options)
        sources, destinations = (self._indices(indices).cpu() for indices in found)
        self._copy_(sources, destinations)
        return Moved(sources, destinations)

    def _copy_(self, sources: Tensor, destinations: Tensor) -> None:
        """Overwrite individuals with copies of others, who they are included."""
        if len(sources) != len(destinations) or len(set(destinations.tolist())) < len(sources):
            message = (
                f"{destinations.tolist()} cannot take copies of {sources.tolist()}: name as many "
                "different places"
            )
            raise ValueError(message)
        for layer in self.individuals.values():
            for weights in layer.parts.values():
                weights[destinations.to(weights.device)] = weights[sources.to(weights.device)]
        births = [self.lineage.birth(i) for i in sources.tolist()]
        scores = self.lineage.fitnesses[sources]
        for place, birth in zip(destinations.tolist(), births, strict=True):
            self.lineage.move_(place, birth)
        self.lineage.fitnesses[destinations] = scores

    def reinit_(
        self,
        reinit_type: str,
        fitnesses: Tensor,
        individuals: Sequence[int] | Tensor,
        mutation_type: Choice = "full_gaussian",
        **options: Any,
    ) -> None:
        """Make individuals, such as those of an island, anew from all others.

        Args:
            reinit_type: ``"pool"``: each is a mutated copy of one of the best of the others, as many of
                which as places are pooled; ``"es"``: all are mutations of one centre, the step of an
                evolution strategy: the best half of the others, averaged with the log-rank weights of
                CMA-ES (Hansen 2016, arXiv 1604.00772, table 1), as changes and not as factors.
            fitnesses: `[P]`, higher is better.
            individuals: indices, not all of them.
            mutation_type: as in `mutate_`.
            **options: of the mutation.
        """
        if reinit_type not in REINITS:
            message = (
                f"reinit_type must be one of {', '.join(map(repr, REINITS))}, not {reinit_type!r}"
            )
            raise ValueError(message)
        values = check_fitnesses(fitnesses, self.pop_size)
        places = self._indices(individuals).cpu()
        others = torch.arange(self.pop_size, device="cpu")
        others = others[~torch.isin(others, places)]
        if not len(others):
            message = "nobody is left to begin anew from: name not all individuals"
            raise ValueError(message)
        ranked = others[best_first(values[others])]
        if reinit_type == "pool":
            order = torch.arange(len(places), device="cpu") % len(ranked)
            self.crossover_(crossovers.get("clone"), ranked[order][:, None], places)
        else:
            self._write_centre_(ranked[: -(-len(ranked) // 2)], places)
        self.mutate_(mutation_type, individuals=places, **options)

    def _write_centre_(self, parents: Tensor, places: Tensor) -> None:
        """Write the weighted mean change of parents, best first, into places."""
        ranks = torch.arange(1, len(parents) + 1, dtype=torch.float64, device="cpu")
        shares = torch.log(torch.tensor(len(parents) + 0.5, dtype=torch.float64)) - ranks.log()
        shares = shares / shares.sum()
        for layer in self.individuals.values():
            rows = parents.to(layer.up.device)
            weights = shares.to(layer.up.device)
            change = torch.einsum(
                "p,por,pir->oi", weights, layer.up[rows].double(), layer.down[rows].double()
            )
            down, up = truncated(change.to(layer.up.dtype), layer.rank)
            where = places.to(layer.up.device)
            layer.down[where], layer.up[where] = down, up
            layer.settle_(where)
            if layer.offset is not None:
                mean = weights @ layer.offset[rows].double()
                layer.offset[where] = mean.to(layer.offset.dtype)
        rows_of_parents = [parents.tolist()] * len(places)
        self.lineage.birth_(places, rows_of_parents, "es", self.generation + 1)


class _Island(Genetics):
    """One island as a population of its own: the same weights, draws and lineage, fewer individuals."""

    def __init__(self, population: Islands, own: Tensor) -> None:
        self._whole, self._first = population, int(own[0])
        self.pop_size, self.seed = len(own), population.seed
        rows = slice(self._first, self._first + self.pop_size)
        layers = population.individuals.items()
        self.individuals: Any = {n: _Rows(layer, rows) for n, layer in layers}
        self.lineage: Any = _PartOfLineage(population.lineage, self._first)

    def __getattr__(self, name: str) -> Any:
        """Return what this island shares with the whole population."""
        return getattr(self._whole, name)

    @property
    def _draws(self) -> int:
        return self._whole._draws

    @_draws.setter
    def _draws(self, value: int) -> None:
        self._whole._draws = value

    @property
    def generation(self) -> int:
        return self._whole.generation

    @generation.setter
    def generation(self, value: int) -> None:
        """The whole population counts it, once for all islands."""

    def _indices(self, indices: Sequence[int] | Tensor) -> Tensor:
        shifted = torch.as_tensor(indices) + self._first
        return self._whole._indices(shifted) - self._first

    def _single(self, individual: int | Tensor) -> Tensor:
        return self._indices(torch.as_tensor(individual).reshape(1))


class _PartOfLineage:
    """The lineage of an island, whose first individual is not that of the population."""

    def __init__(self, lineage: Any, first: int) -> None:
        self._lineage, self._first = lineage, first

    def birth_(self, children: Any, parents: Any, operator: str, generation: int) -> None:
        rows = torch.as_tensor(parents) + self._first
        self._lineage.birth_(torch.as_tensor(children) + self._first, rows, operator, generation)

    def vary_(self, individuals: Any, operator: str, generation: int) -> None:
        self._lineage.vary_(torch.as_tensor(individuals) + self._first, operator, generation)


class _Rows:
    """A layer as an island sees it: views of its own individuals, all else as it is."""

    def __init__(self, layer: RoutedLinear, rows: slice) -> None:
        self._layer, self._first = layer, rows.start
        self.vectors = [vectors[rows] for vectors in layer.vectors]
        self.parts = {part: weights[rows] for part, weights in layer.parts.items()}
        self.down, self.up = self.parts["down"], self.parts["up"]
        self.offset = self.parts.get("offset")

    def settle_(self, rows: Tensor) -> None:
        self._layer.settle_(rows + self._first)

    def __getattr__(self, name: str) -> Any:
        """Return what islands share."""
        return getattr(self._layer, name)
