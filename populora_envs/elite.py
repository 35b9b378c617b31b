"""An elite: one individual with all that its evaluations said of it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from populora_envs.individuals import State
    from populora_envs.lineage import Birth


@dataclass
class Elite:
    """An individual, and all that its evaluations said.

    Attributes:
        state: its weights, as `Population.individual_state` gives them.
        birth: who it is in the lineage of its population.
        fitnesses: of each evaluation.
        descriptors: of each evaluation.
    """

    state: State
    birth: Birth | None = None
    fitnesses: list[float] = field(default_factory=list)
    descriptors: list[list[float]] = field(default_factory=list)

    def note_(self, fitness: float, descriptor: Sequence[float] | Tensor) -> None:
        """Add what one more evaluation said."""
        self.fitnesses.append(float(fitness))
        self.descriptors.append([float(x) for x in descriptor])

    @property
    def fitness(self) -> float:
        """The mean over its evaluations."""
        return sum(self.fitnesses) / len(self.fitnesses)

    @property
    def descriptor(self) -> list[float]:
        """The mean over its evaluations."""
        return [sum(column) / len(column) for column in zip(*self.descriptors, strict=True)]

    @property
    def is_finite(self) -> bool:
        """Whether it can be compared and placed at all."""
        return all(map(math.isfinite, (self.fitness, *self.descriptor)))


def elite_state(elite: Elite) -> dict[str, Any]:
    """Return an elite as tensors and plain values."""
    return {"state": elite.state, **plain_elite(elite)}


def elite_from(saved: dict[str, Any]) -> Elite:
    """Return the elite that `elite_state` was made of."""
    return read_elite(saved["state"], saved)


def plain_elite(elite: Elite) -> dict[str, Any]:
    """Return what is known of an elite beside its weights, as plain values."""
    descriptors = [list(descriptor) for descriptor in elite.descriptors]
    birth = None if elite.birth is None else list(elite.birth)
    return {"birth": birth, "fitnesses": list(elite.fitnesses), "descriptors": descriptors}


def read_elite(state: State, row: dict[str, Any]) -> Elite:
    """Return an elite from its weights and what `plain_elite` gave."""
    birth = row["birth"]
    if birth is not None:
        birth = (birth[0], tuple(birth[1]), birth[2], birth[3])
    return Elite(state, birth, list(row["fitnesses"]), [list(d) for d in row["descriptors"]])
