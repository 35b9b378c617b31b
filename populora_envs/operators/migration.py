"""Who moves between islands: ``migration(fitnesses, islands, num_migrants, generator, **options)``.

`fitnesses` is float32 `[P]`, the worst ones -inf; `islands` is int64 `[islands, size]`, the individuals
of each. The result is int64 ``(sources [M], destinations [M])``: a copy of each source takes the place
of its destination, each of which is named once. Sources are read before anyone is overwritten.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from populora_envs.fitness import best_first
from populora_envs.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Generator, Tensor

    Migration = Callable[..., tuple[Tensor, Tensor]]

migrations: Registry[Migration] = Registry("migration")
register_migration = migrations.register


def _ranked(fitnesses: Tensor, islands: Tensor) -> Tensor:
    """Return the individuals of each island, best first, `[islands, size]`."""
    return torch.stack([island[best_first(fitnesses[island])] for island in islands])


@register_migration("ring")
def ring(
    fitnesses: Tensor, islands: Tensor, num_migrants: int, generator: Generator
) -> tuple[Tensor, Tensor]:
    """Copy the best of each island over the worst of the next, and those of the last over the first's.

    The stepping-stone model on a ring (Cohoon et al. 1987; Whitley, Rana and Heckendorn 1999).
    """
    del generator
    ranked = _ranked(fitnesses, islands)
    sources = ranked[:, :num_migrants]
    destinations = ranked.flip(1)[:, :num_migrants].roll(-1, dims=0)
    return sources.flatten(), destinations.flatten()


@register_migration("fitness_uniform")
def fitness_uniform(
    fitnesses: Tensor, islands: Tensor, num_migrants: int, generator: Generator
) -> tuple[Tensor, Tensor]:
    """Copy individuals of all levels of fitness over the worst of each island.

    For each migrant a fitness is drawn uniformly between the lowest and the highest finite one of the
    other islands, and whoever comes closest to it there moves (FUSS, Hutter and Legg 2006,
    arXiv cs/0610126): rare levels are as likely as crowded ones, which keeps the islands diverse.
    """
    destinations = _ranked(fitnesses, islands).flip(1)[:, :num_migrants]
    drawn = torch.rand(destinations.shape, generator=generator, dtype=torch.float64, device="cpu")
    sources = []
    for number, levels in enumerate(drawn):
        others = torch.cat([island for k, island in enumerate(islands) if k != number])
        values = fitnesses[others].double()
        finite = values[values.isfinite()]
        low, high = (finite.min(), finite.max()) if len(finite) else (0.0, 0.0)
        away = (values - (low + levels * (high - low))[:, None]).abs()
        sources.append(others[away.argmin(dim=1)])
    return torch.cat(sources), destinations.flatten()
