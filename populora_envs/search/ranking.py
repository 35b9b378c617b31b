"""From fitness to utilities: only the order counts, and equal fitnesses get equal utilities."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from populora_envs.fitness import best_first


def log_ranks(fitnesses: Tensor) -> Tensor:
    """Return utilities that favour the better half by the logarithm of the rank, float64 `[P]`.

    The fitness shaping of NES (Wierstra et al. 2014, section 3.1): max(0, ln(P/2 + 1) - ln rank), scaled
    to a sum of 1, less 1/P. They sum to 0; all are 0 where all fitnesses are equal.
    """
    count = len(fitnesses)
    ranks = torch.arange(1, count + 1, dtype=torch.float64, device="cpu")
    by_rank = (math.log(count / 2 + 1) - ranks.log()).clamp_min(0.0)
    return _of_equals(fitnesses, by_rank / by_rank.sum() - 1 / count)


def centred_ranks(fitnesses: Tensor) -> Tensor:
    """Return utilities that fall linearly with the rank from 0.5 to -0.5 (Salimans et al. 2017)."""
    by_rank = torch.linspace(0.5, -0.5, len(fitnesses), dtype=torch.float64, device="cpu")
    return _of_equals(fitnesses, by_rank if len(fitnesses) > 1 else torch.zeros_like(by_rank))


def _of_equals(fitnesses: Tensor, by_rank: Tensor) -> Tensor:
    """Give each fitness the utility of its rank, equal ones the mean of theirs."""
    order = best_first(fitnesses)
    _, group, sizes = torch.unique_consecutive(
        fitnesses[order], return_inverse=True, return_counts=True
    )
    sums = torch.zeros(len(sizes), dtype=by_rank.dtype, device="cpu").index_add(0, group, by_rank)
    utilities = torch.empty_like(by_rank)
    utilities[order] = (sums / sizes)[group]
    return utilities if len(sizes) > 1 else torch.zeros_like(utilities)
