"""How individuals vary: ``mutation(down, up, generator, **options) -> (down, up)``, target by target.

`down` is `[N, in, r]` and `up` is `[N, out, r]`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from populora_envs.registry import Registry
from populora_envs.seeds import normal

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Generator, Tensor

    Mutation = Callable[..., tuple[Tensor, Tensor]]

mutations: Registry[Mutation] = Registry("mutation")
register_mutation = mutations.register


def normal_like(weights: Tensor, generator: Generator) -> Tensor:
    """Draw standard normal numbers, the same on every device, in the shape of `weights`."""
    return normal(weights.shape, generator).to(weights)


@register_mutation("full_gaussian")
def full_gaussian(
    down: Tensor, up: Tensor, generator: Generator, epsilon: float = 0.7
) -> tuple[Tensor, Tensor]:
    """Add Gaussian noise to every weight of both factors.

    The standard deviation is epsilon / sqrt(in) in `down` and epsilon / sqrt(r) in `up`, so that one
    epsilon fits layers of all widths and ranks.
    """
    if not epsilon >= 0:
        message = f"epsilon must be 0 or more, not {epsilon}"
        raise ValueError(message)
    down_scale = epsilon / down.shape[1] ** 0.5
    up_scale = epsilon / up.shape[2] ** 0.5
    return (
        down + down_scale * normal_like(down, generator),
        up + up_scale * normal_like(up, generator),
    )
