"""How parents mix: ``crossover(down, up, generator, **options) -> (down, up)``, target by target.

`down` is `[children, parents, in, r]` and `up` is `[children, parents, out, r]`; the result lacks the
dimension of the parents.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from populora_envs.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Generator, Tensor

    Crossover = Callable[..., tuple[Tensor, Tensor]]

crossovers: Registry[Crossover] = Registry("crossover")
register_crossover = crossovers.register


@register_crossover("average")
def average(down: Tensor, up: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
    """Average the factors of the parents (not their changes: a mean of products is another thing)."""
    del generator
    return down.mean(dim=1), up.mean(dim=1)


@register_crossover("clone")
def clone(down: Tensor, up: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
    """Copy the first parent."""
    del generator
    return down[:, 0], up[:, 0]
