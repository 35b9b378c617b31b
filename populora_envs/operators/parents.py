"""Who has children: ``parents(fitnesses, num_children, num_parents, generator, **options)``.

`fitnesses` is float32 `[S]`, those of the survivors. The result is int64 `[children, parents]`,
indices into the survivors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from populora_envs.fitness import best_first
from populora_envs.operators.levels import nearest_levels
from populora_envs.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Generator, Tensor

    ParentSelection = Callable[..., Tensor]

parent_selections: Registry[ParentSelection] = Registry("parent selection")
register_parent_selection = parent_selections.register


@register_parent_selection("tournament")
def tournament(
    fitnesses: Tensor,
    num_children: int,
    num_parents: int,
    generator: Generator,
    tournament_size: int = 3,
) -> Tensor:
    """Take the best of `tournament_size` survivors drawn with replacement, for each parent.

    Goldberg and Deb (1991). Ties go to the lower index.
    """
    if tournament_size < 1:
        message = f"tournament_size must be at least 1, not {tournament_size}"
        raise ValueError(message)
    order = best_first(fitnesses)
    shape = (num_children, num_parents, tournament_size)
    ranks = torch.randint(len(fitnesses), shape, generator=generator, device="cpu")
    return order[ranks.amin(dim=-1)]


@register_parent_selection("roulette")
def roulette(
    fitnesses: Tensor, num_children: int, num_parents: int, generator: Generator
) -> Tensor:
    """Draw parents with chances proportional to how far they lie above the worst survivor.

    Fitness-proportionate selection with windowing (Goldberg 1989, chapter 4); equal chances where
    all survivors are equal, none for a non-finite fitness while there is a finite one.
    """
    chances = _roulette_chances(fitnesses.double())
    drawn = torch.multinomial(chances, num_children * num_parents, True, generator=generator)
    return drawn.reshape(num_children, num_parents)


def _roulette_chances(fitnesses: Tensor) -> Tensor:
    finite = fitnesses.isfinite()
    if not finite.any():
        return torch.ones_like(fitnesses)
    above = fitnesses - fitnesses[finite].min()
    span = above[finite].max()
    # The worst survivor keeps a small chance, so that a pair of survivors still mixes.
    chances = above / span + 0.01 if span > 0 else torch.ones_like(above)
    return torch.where(finite, chances, 0.0)


@register_parent_selection("fuss")
def fuss(fitnesses: Tensor, num_children: int, num_parents: int, generator: Generator) -> Tensor:
    """Draw a level of fitness uniformly between the worst and the best, and take who comes closest.

    Fitness-uniform selection (Hutter 2001): rare levels have as many children as crowded ones.
    """
    drawn = nearest_levels(fitnesses, num_children * num_parents, generator)
    return drawn.reshape(num_children, num_parents)


@register_parent_selection("queen_bee")
def queen_bee(
    fitnesses: Tensor,
    num_children: int,
    num_parents: int,
    generator: Generator,
    tournament_size: int = 3,
) -> Tensor:
    """Let the best survivor be the first parent of every child, and draw the others by tournament.

    Queen-bee evolution (Jung 2003).
    """
    drawn = tournament(fitnesses, num_children, num_parents, generator, tournament_size)
    drawn[:, 0] = best_first(fitnesses)[0]
    return drawn
