"""Contenders: policies that may be returned, and what each scored on fresh episodes."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from populora_envs.individuals import State
    from populora_envs.moved import Change


@dataclass(eq=False)
class Contender:
    """One policy and what it scored on fresh episodes, those of looks, of the end and of the report.

    Attributes:
        weights: relative to its base.
        base_change: what a search had added to the base by then; None where it had not moved.
        normalizer: the observation statistics of its generation.
        generation: in which it was found.
        looks: returns on the episodes of all looks: it was chosen for them.
        duels: returns on episodes that all contenders played.
        report: returns on episodes that decided nothing.
    """

    weights: State
    base_change: Change | None
    normalizer: dict[str, Tensor]
    generation: int
    looks: list[float] = field(default_factory=list)
    duels: list[float] = field(default_factory=list)
    report: list[float] = field(default_factory=list)

    @property
    def scores(self) -> list[float]:
        """The returns that count: of the cleanest kind there is."""
        return self.report or self.duels or self.looks

    @property
    def mean(self) -> float:
        """Mean return over the episodes that count, nan before the first."""
        return float(np.mean(self.scores)) if self.scores else float("nan")

    @property
    def standard_error(self) -> float:
        """Standard error of the mean, nan before the second episode."""
        return standard_error(self.scores)

    def is_behind(self, other: Contender) -> bool:
        """Whether another is better by more than two standard errors, duel by duel, or just the same."""
        if not np.isfinite([self.mean, other.mean]).all():
            return other.mean > self.mean
        ahead: np.ndarray = np.subtract(other.duels, self.duels)
        lead = float(np.mean(ahead))
        is_ahead: bool = lead > 2 * standard_error(ahead.tolist())
        return is_ahead or not np.any(ahead)

    def key(self) -> str:
        """Return a hash of everything that decides how it acts."""
        digest = hashlib.sha256()
        for tensors in (
            *self.weights.values(),
            *(self.base_change or {}).values(),
            self.normalizer,
        ):
            for name in sorted(tensors):
                digest.update(tensors[name].cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()

    def state(self) -> dict[str, Any]:
        """Return it as tensors and plain values, which later episodes leave as they are."""
        lists = {name: list(getattr(self, name)) for name in ("looks", "duels", "report")}
        return {**vars(self), **lists}


def standard_error(returns: Sequence[float]) -> float:
    """Return the standard error of a mean, nan before the second return or where one is infinite."""
    if len(returns) < 2 or not np.isfinite(returns).all():
        return float("nan")
    deviation = float(np.std(returns, ddof=1))
    return deviation / math.sqrt(len(returns))
