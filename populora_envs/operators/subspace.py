"""Operators that see the change of a layer as a matrix, by its singular vectors and values.

Factors come back with `down` orthonormal and the singular values in `up`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from populora_envs.invariance import one_thread
from populora_envs.operators.crossover import register_crossover
from populora_envs.operators.draws import normal_like, one_of
from populora_envs.operators.mutation import register_mutation
from populora_envs.settings import not_negative

if TYPE_CHECKING:
    from torch import Generator, Tensor


def singular(down: Tensor, up: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the singular vectors and values of ``up @ down.T``, without making that product.

    Args:
        down: `[..., in, r]`.
        up: `[..., out, r]`.

    Returns:
        Left `[..., out, k]`, values `[..., k]` falling, right `[..., in, k]`, float64, k = min(in, out, r);
        of each right vector the entry of the largest size is positive.
    """
    with one_thread():  # ranks may have other numbers of them
        outer, inner = torch.linalg.qr(up.double()), torch.linalg.qr(down.double())
        left, values, right = torch.linalg.svd(outer.R @ inner.R.mT, full_matrices=False)
        left, right = outer.Q @ left, inner.Q @ right.mT
    largest = right.gather(-2, right.abs().argmax(dim=-2, keepdim=True))
    signs = torch.where(largest < 0, -1.0, 1.0)
    return left * signs, values, right * signs


def _factors(
    left: Tensor, core: Tensor, right: Tensor, like: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    """Return factors of ``left @ core @ right.T`` in the rank and dtype of `like`."""
    down, up = like
    found = torch.zeros_like(down), torch.zeros_like(up)
    rank = right.shape[-1]
    found[0][..., :rank] = right.to(down.dtype)
    found[1][..., :rank] = (left @ core).to(up.dtype)
    return found


@register_crossover("svd_subspace")
def svd_subspace(down: Tensor, up: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
    """Take each singular direction of a layer's change from a parent drawn for it alone.

    Directions are counted from the strongest on, and one comes whole, both vectors and the value. The rank
    stays, and a child of equal parents has their product.
    """
    left, values, right = singular(down, up)
    children, parents, count = values.shape
    chosen = one_of(parents, (children, 1, count), generator).to(down.device)

    def taken(vectors: Tensor) -> Tensor:
        index = chosen[:, :, None].expand(-1, -1, vectors.shape[2], -1)
        return vectors.gather(1, index)[:, 0]

    core = torch.diag_embed(values.gather(1, chosen)[:, 0])
    return _factors(taken(left), core, taken(right), (down[:, 0], up[:, 0]))


def mean_change(down: Tensor, up: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return factors of the mean of the parents' changes, and what is lost by their rank.

    The mean of P changes of rank r has a rank of up to P r; the nearest one of rank r is kept (Eckart and
    Young 1936).

    Args:
        down: `[C, P, in, r]`.
        up: `[C, P, out, r]`.

    Returns:
        `down` `[C, in, r]`, `up` `[C, out, r]`, and the Frobenius norm of what is lost as a share of that
        of the mean, float64 `[C]`.
    """
    count, rank = down.shape[1], down.shape[3]
    side_by_side = (part.transpose(1, 2).flatten(2) for part in (down, up / count))
    left, values, right = singular(*side_by_side)
    kept = min(rank, values.shape[1])
    core = torch.diag_embed(values[:, :kept])
    factors = _factors(left[..., :kept], core, right[..., :kept], (down[:, 0], up[:, 0]))
    total = values.square().sum(dim=1).clamp(min=torch.finfo(torch.float64).tiny)
    return *factors, (values[:, kept:].square().sum(dim=1) / total).sqrt()


@register_crossover("average_exact")
def average_exact(down: Tensor, up: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
    """Average the changes of the parents, not their factors, as far as the rank allows.

    `mean_change` says what is lost. ``"average"`` averages factors, whose product is another thing: of two
    parents with opposite factors, which are the same policy, it makes the base.
    """
    del generator
    child_down, child_up, _ = mean_change(down, up)
    return child_down, child_up


@register_mutation("svd_structured")
def svd_structured(
    down: Tensor, up: Tensor, generator: Generator, epsilon: float = 0.7
) -> tuple[Tensor, Tensor]:
    """Add Gaussian noise between the singular directions that a layer's change has, and none outside.

    The change ``U S V.T`` becomes ``U (S + N) V.T``. The noise N has the standard deviation
    epsilon * sqrt(out) / k for k directions, so that its size is that of noise of epsilon / sqrt(in) in
    each weight of the layer. Directions that are not there cannot come: mix it with another mutation.
    """
    not_negative("epsilon", epsilon)
    left, values, right = singular(down, up)
    core = torch.diag_embed(values)
    core = core + epsilon * up.shape[1] ** 0.5 / values.shape[1] * normal_like(core, generator)
    varied = _factors(left, core, right, (down, up))
    return (down, up) if epsilon == 0 else varied
