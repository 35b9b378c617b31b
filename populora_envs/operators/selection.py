"""Who survives: ``selection(fitnesses, num_survivors, generator, **options) -> survivors``.

`fitnesses` is float32 `[P]`, the worst ones -inf; `survivors` is int64 `[num_survivors]`.
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

    Selection = Callable[..., Tensor]

selections: Registry[Selection] = Registry("selection")
register_selection = selections.register


@register_selection("deterministic")
def deterministic(fitnesses: Tensor, num_survivors: int, generator: Generator) -> Tensor:
    """Keep the best (truncation selection)."""
    del generator
    return best_first(fitnesses)[:num_survivors]


@register_selection("probabilistic")
def probabilistic(fitnesses: Tensor, num_survivors: int, generator: Generator) -> Tensor:
    """Draw survivors without replacement, with chances that fall linearly with the rank.

    Linear ranking of Baker (1985): the best is P times as likely as the worst at each draw.
    """
    chances = torch.empty_like(fitnesses)
    chances[best_first(fitnesses)] = torch.arange(len(fitnesses), 0, -1).to(fitnesses)
    return torch.multinomial(chances, num_survivors, generator=generator)


@register_selection("fuss")
def fuss(fitnesses: Tensor, num_survivors: int, generator: Generator) -> Tensor:
    """Draw levels of fitness uniformly between the worst and the best, and keep who comes closest.

    Fitness-uniform selection (Hutter 2001), without replacement: it keeps all levels of fitness in the
    population, not the best alone.
    """
    left = torch.arange(len(fitnesses), device="cpu")
    kept: list[Tensor] = []
    for _ in range(num_survivors):
        chosen = nearest_levels(fitnesses[left], 1, generator)
        kept.append(left[chosen])
        left = left[torch.arange(len(left), device="cpu") != chosen]
    return torch.cat(kept)
