"""How individuals vary: ``mutation(down, up, generator, **options) -> (down, up)``, target by target.

`down` is `[N, in, r]` and `up` is `[N, out, r]`. An option out of its range is a ValueError.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from populora_envs.operators.draws import normal_like, uniform_like
from populora_envs.registry import Registry
from populora_envs.settings import not_negative

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Generator, Tensor

    Mutation = Callable[..., tuple[Tensor, Tensor]]

mutations: Registry[Mutation] = Registry("mutation")
register_mutation = mutations.register


@register_mutation("full_gaussian")
def full_gaussian(
    down: Tensor, up: Tensor, generator: Generator, epsilon: float = 0.7
) -> tuple[Tensor, Tensor]:
    """Add Gaussian noise to every weight of both factors.

    The standard deviation is epsilon / sqrt(in) in `down` and epsilon / sqrt(r) in `up`, so that one
    epsilon fits layers of all widths and ranks.
    """
    not_negative("epsilon", epsilon)
    down_scale = epsilon / down.shape[1] ** 0.5
    up_scale = epsilon / up.shape[2] ** 0.5
    return (
        down + down_scale * normal_like(down, generator),
        up + up_scale * normal_like(up, generator),
    )


@register_mutation("layer_selective_gaussian")
def layer_selective_gaussian(
    down: Tensor, up: Tensor, generator: Generator, epsilon: float = 0.7, layer_share: float = 0.5
) -> tuple[Tensor, Tensor]:
    """Vary some layers as ``"full_gaussian"`` does, drawn for each individual, and leave the others.

    A layer varies with chance `layer_share` in [0, 1]. Changes of a bias and of a norm's scale count as
    layers of their own.
    """
    _check_share("layer_share", layer_share)
    varied = full_gaussian(down, up, generator, epsilon)
    chosen = uniform_like(down[:, :1, :1], generator) < layer_share
    return torch.where(chosen, varied[0], down), torch.where(chosen, varied[1], up)


@register_mutation("component_masking")
def component_masking(
    down: Tensor,
    up: Tensor,
    generator: Generator,
    epsilon: float = 0.7,
    component_share: float = 0.5,
) -> tuple[Tensor, Tensor]:
    """Vary some of the r components of a change, both of its vectors, and leave the others.

    A component, a column of `down` and of `up`, varies as in ``"full_gaussian"`` with chance
    `component_share` in [0, 1].
    """
    _check_share("component_share", component_share)
    varied = full_gaussian(down, up, generator, epsilon)
    chosen = uniform_like(down[:, :1], generator) < component_share
    return torch.where(chosen, varied[0], down), torch.where(chosen, varied[1], up)


@register_mutation("neftune_style")
def neftune_style(
    down: Tensor, up: Tensor, generator: Generator, alpha: float = 5.0
) -> tuple[Tensor, Tensor]:
    """Add uniform noise in +-alpha / sqrt(rows * columns) to each factor.

    The noise that NEFTune adds to embeddings of a sequence (Jain et al. 2023, arXiv 2310.05914), here to
    weights: its size does not grow with that of the layer.
    """
    not_negative("alpha", alpha)

    def noised(weights: Tensor) -> Tensor:
        reach: float = alpha / (weights.shape[1] * weights.shape[2]) ** 0.5
        noise = 2 * uniform_like(weights, generator) - 1
        return weights + reach * noise.to(weights.dtype)

    return noised(down), noised(up)


@register_mutation("antithetic_gaussian")
def antithetic_gaussian(
    down: Tensor, up: Tensor, generator: Generator, epsilon: float = 0.7
) -> tuple[Tensor, Tensor]:
    """Vary individuals in pairs, one by the noise of ``"full_gaussian"``, the next by its mirror image.

    Mirrored sampling (Brockhoff et al. 2010): the noise of a pair sums to 0. Pairs are those that vary
    together, in the order of their indices.
    """
    not_negative("epsilon", epsilon)
    return (
        down + epsilon / down.shape[1] ** 0.5 * _mirrored(down, generator),
        up + epsilon / up.shape[2] ** 0.5 * _mirrored(up, generator),
    )


def _mirrored(weights: Tensor, generator: Generator) -> Tensor:
    half = normal_like(weights[: (len(weights) + 1) // 2], generator)
    return torch.stack([half, -half], dim=1).flatten(0, 1)[: len(weights)]


@register_mutation("weight_decay")
def weight_decay(
    down: Tensor, up: Tensor, generator: Generator, decay: float = 0.1, epsilon: float = 0.7
) -> tuple[Tensor, Tensor]:
    """Shrink a change by the share `decay` in [0, 1], then vary it as ``"full_gaussian"`` does.

    It pulls individuals back to the base, as weight decay pulls weights to 0 (Krogh and Hertz 1991).
    """
    _check_share("decay", decay)
    return full_gaussian(down, (1 - decay) * up, generator, epsilon)


@register_mutation("soft_threshold")
def soft_threshold(
    down: Tensor, up: Tensor, generator: Generator, threshold: float = 0.01, epsilon: float = 0.7
) -> tuple[Tensor, Tensor]:
    """Vary as ``"full_gaussian"`` does, then bring each weight of `up` nearer to 0 by `threshold`.

    Weights that are smaller become 0, so that changes grow sparse (Donoho 1995).
    """
    not_negative("threshold", threshold)
    down, up = full_gaussian(down, up, generator, epsilon)
    shrunk = (up.abs() - threshold).clamp(min=0)
    return down, up.sign() * shrunk


def _check_share(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        message = f"{name} must lie in [0, 1], not {value}"
        raise ValueError(message)
