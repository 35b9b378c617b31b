"""How parents mix: ``crossover(down, up, generator, **options) -> (down, up)``, target by target.

`down` is `[children, parents, in, r]` and `up` is `[children, parents, out, r]`; the result lacks the
dimension of the parents. An option out of its range is a ValueError.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from populora_envs.operators.draws import normal_like, one_of, share, uniform_like
from populora_envs.registry import Registry
from populora_envs.settings import not_negative

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


@register_crossover("uniform")
def uniform(down: Tensor, up: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
    """Take every weight from a parent drawn for it alone (Syswerda 1989)."""
    return _weight_by_weight(down, generator), _weight_by_weight(up, generator)


def _weight_by_weight(weights: Tensor, generator: Generator) -> Tensor:
    children, parents, *shape = weights.shape
    chosen = one_of(parents, (children, 1, *shape), generator).to(weights.device)
    return weights.gather(1, chosen)[:, 0]


@register_crossover("layer_wise")
def layer_wise(down: Tensor, up: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
    """Take the whole change of a layer from one parent, drawn for each layer and child.

    What a layer has learned stays together, as in the exchange of whole modules between networks.
    """
    children, parents = down.shape[:2]
    chosen = one_of(parents, (children,), generator).to(down.device)
    rows = torch.arange(children, device=down.device)
    return down[rows, chosen], up[rows, chosen]


@register_crossover("dare")
def dare(
    down: Tensor, up: Tensor, generator: Generator, drop: float = 0.5
) -> tuple[Tensor, Tensor]:
    """Move the first parent to the mean of all in some weights, farther the fewer they are.

    Drop and rescale (Yu et al. 2023, arXiv 2311.03099), applied to the differences between parents: each is
    dropped with chance `drop` in [0, 1), and the rest is divided by 1 - drop, so that the expected
    child is the average of the parents.
    """
    if not 0 <= drop < 1:
        message = f"drop must lie in [0, 1), not {drop}"
        raise ValueError(message)

    def mixed(weights: Tensor) -> Tensor:
        first = weights[:, 0]
        kept = uniform_like(first, generator) >= drop
        return first + kept * (weights.mean(dim=1) - first) / (1 - drop)

    return mixed(down), mixed(up)


@register_crossover("extrapolative")
def extrapolative(
    down: Tensor, up: Tensor, generator: Generator, extrapolation: float = 0.5
) -> tuple[Tensor, Tensor]:
    """Go on from the first parent, away from the mean of the others, by a share drawn for each child.

    The share is uniform in [0, extrapolation], the same for both factors of a layer. After the heuristic
    crossover of Wright (1991), with the parents in the order in which they were drawn.
    """
    not_negative("extrapolation", extrapolation)
    shares = extrapolation * share(down, generator)
    return _beyond(down, shares), _beyond(up, shares)


def _beyond(weights: Tensor, shares: Tensor) -> Tensor:
    first = weights[:, 0]
    others = weights[:, 1:] if weights.shape[1] > 1 else weights
    return first + shares * (first - others.mean(dim=1))


@register_crossover("xes")
def xes(
    down: Tensor, up: Tensor, generator: Generator, spread: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Draw a child around the mean of the parents, as far as they lie apart, weight by weight.

    Recombination as an evolution strategy has it: the mean of the parents, plus Gaussian noise of `spread`
    times their standard deviation in that weight. Nothing varies in which they agree (compare the
    unimodal normal distribution crossover of Ono and Kobayashi 1997).
    """
    not_negative("spread", spread)

    def drawn(weights: Tensor) -> Tensor:
        mean = weights.mean(dim=1)
        return mean + spread * weights.std(dim=1, correction=0) * normal_like(mean, generator)

    return drawn(down), drawn(up)


@register_crossover("sbx")
def sbx(down: Tensor, up: Tensor, generator: Generator, eta: float = 15.0) -> tuple[Tensor, Tensor]:
    """Mix the first two parents as one-point crossover of binary strings would (Deb and Agrawal 1995).

    Each weight is ``((1 + b) first + (1 - b) second) / 2`` or its mirror image, with equal chances. `b` has
    the density ``(eta + 1) / 2 * b**eta`` up to 1 and ``(eta + 1) / 2 / b**(eta + 2)`` beyond: the larger
    `eta`, the nearer a child is to its parents.
    """
    not_negative("eta", eta)
    return _simulated_binary(down, generator, eta), _simulated_binary(up, generator, eta)


def _simulated_binary(weights: Tensor, generator: Generator, eta: float) -> Tensor:
    first, second = weights[:, 0], weights[:, min(1, weights.shape[1] - 1)]
    drawn = uniform_like(first, generator)
    inner = (2 * drawn) ** (1 / (eta + 1))
    # The draw lies in [0, 1), so nothing is divided by 0.
    outer = (1 / (2 * (1 - drawn))) ** (1 / (eta + 1))
    half_gap = (first - second) / 2 * torch.where(drawn <= 0.5, inner, outer)
    sign = torch.where(uniform_like(first, generator) < 0.5, -1.0, 1.0).to(weights.dtype)
    return (first + second) / 2 + sign * half_gap


@register_crossover("isoline")
def isoline(
    down: Tensor, up: Tensor, generator: Generator, iso: float = 0.01, line: float = 0.2
) -> tuple[Tensor, Tensor]:
    """Add noise to the first parent, and a step along the line to the second (Vassiliades and Mouret 2018).

    The noise has the standard deviation iso / sqrt(in) in `down` and iso / sqrt(r) in `up`; the step is
    `line` times one standard normal number for each child and layer.
    """
    not_negative("iso", iso)
    not_negative("line", line)
    step = line * normal_like(down[:, 0, :1, :1], generator)
    scales = down.shape[2] ** 0.5, up.shape[3] ** 0.5

    def moved(weights: Tensor, scale: float) -> Tensor:
        first, second = weights[:, 0], weights[:, min(1, weights.shape[1] - 1)]
        return first + iso / scale * normal_like(first, generator) + step * (second - first)

    return moved(down, scales[0]), moved(up, scales[1])
