"""Dense changes of a layer as low-rank ones."""

from __future__ import annotations

import torch
from torch import Tensor


def truncated(change: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Return the factors `down` `[in, rank]` and `up` `[out, rank]` nearest to a change `[out, in]`.

    ``up @ down.T`` is the best approximation of that rank in the Frobenius norm (Eckart and Young 1936);
    both factors have the same singular values, and zeros where the change has a smaller rank.

    Raises:
        ValueError: where a number is not finite.
    """
    if not change.isfinite().all():
        message = (
            "a change with numbers that are not finite has no factors: choose another individual, "
            "or save it without low_rank="
        )
        raise ValueError(message)
    left, values, right = torch.linalg.svd(change.double(), full_matrices=False)
    kept = min(rank, len(values))
    roots = values[:kept].sqrt()
    down = change.new_zeros(change.shape[1], rank)
    up = change.new_zeros(change.shape[0], rank)
    down[:, :kept] = (right[:kept].T * roots).to(change.dtype)
    up[:, :kept] = (left[:, :kept] * roots).to(change.dtype)
    return down, up


def relative_error(exact: list[Tensor], approximate: list[Tensor]) -> float:
    """Return the Frobenius norm of what is lost, as a share of the norm of what there was."""
    lost = sum(
        float((a.double() - b.double()).square().sum())
        for a, b in zip(exact, approximate, strict=True)
    )
    total = sum(float(a.double().square().sum()) for a in exact)
    return (lost / total) ** 0.5 if total else 0.0
