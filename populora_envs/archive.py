"""Archives of MAP-Elites: the best individual of each kind of behaviour, in a grid or in CVT niches."""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from populora_envs.elite import Elite, elite_from, elite_state, plain_elite, read_elite
from populora_envs.files import write_text
from populora_envs.seeds import make_generator
from populora_envs.settings import at_least

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Sequence

    from populora_envs.population import Population

INDEX = "archive.json"
"""The table in a saved archive's folder; each individual is a file beside it."""


class Archive(ABC):
    """One elite per cell of a space of descriptors.

    Args:
        low: lower bound of each dimension of a descriptor.
        high: upper bound of each dimension; what lies outside counts as on the border.

    Attributes:
        elites: by the number of its cell, who holds it.
        num_cells: number of cells.

    Raises:
        ValueError: for bounds that are not finite, or not below one another.
    """

    num_cells: int

    def __init__(self, low: Sequence[float], high: Sequence[float]) -> None:
        self.low, self.high = tuple(map(float, low)), tuple(map(float, high))
        finite = all(map(math.isfinite, (*self.low, *self.high)))
        pairs = len(self.low) == len(self.high) > 0 and finite
        if not pairs or any(a >= b for a, b in zip(self.low, self.high, strict=True)):
            message = (
                f"an archive wants finite bounds, low below high, not low={self.low} and "
                f"high={self.high}: give one of each per number of a descriptor"
            )
            raise ValueError(message)
        self.elites: dict[int, Elite] = {}

    def __len__(self) -> int:
        return len(self.elites)

    def __iter__(self) -> Iterator[Elite]:
        return (elite for _, elite in sorted(self.elites.items()))

    @property
    def num_dimensions(self) -> int:
        """Numbers per descriptor."""
        return len(self.low)

    @property
    def coverage(self) -> float:
        """Share of the cells that are held, in [0, 1]."""
        return len(self) / self.num_cells

    @property
    def best(self) -> Elite | None:
        """The elite of highest fitness, ties to the lower cell; None in an empty archive."""
        return max(self, key=lambda elite: elite.fitness, default=None)

    def qd_score(self, offset: float = 0.0) -> float:
        """Return the sum over all elites of fitness less `offset`, the lowest that fitness can be."""
        return sum(elite.fitness - offset for elite in self)

    def cells_of(self, descriptors: Any) -> Tensor:
        """Return the cell of each descriptor, int64 `[N]`.

        Args:
            descriptors: finite, `[N, dimensions]`.
        """
        low, high = (
            torch.tensor(b, dtype=torch.float64, device="cpu") for b in (self.low, self.high)
        )
        points = torch.as_tensor(descriptors, dtype=torch.float64, device="cpu")
        if points.dim() != 2 or points.shape[1] != len(low) or not points.isfinite().all():
            message = (
                f"descriptors have shape {tuple(points.shape)}: pass finite numbers [N, {len(low)}]"
            )
            raise ValueError(message)
        return self._cells(((points - low) / (high - low)).clamp(0.0, 1.0))

    @abstractmethod
    def _cells(self, points: Tensor) -> Tensor:
        """Return the cell of each point of the unit cube, `[N, dimensions]` -> int64 `[N]`."""

    def cell_of(self, elite: Elite) -> int:
        """Return the number of the cell of `elite`, by the mean of its descriptors."""
        return int(self.cells_of([elite.descriptor])[0])

    def rival_of(self, elite: Elite) -> Elite | None:
        """Return who holds the cell in which `elite` would live, None where it is empty."""
        return self.elites.get(self.cell_of(elite))

    def would_take(self, elite: Elite) -> bool:
        """Return whether `elite` would be let in: into an empty cell, or for it is better."""
        if not elite.is_finite:
            return False
        rival = self.rival_of(elite)
        return rival is None or elite.fitness > rival.fitness

    def insert_(self, elite: Elite) -> bool:
        """Let `elite` in where `would_take` says so; return whether it is in."""
        taken = self.would_take(elite)
        if taken:
            self.elites[self.cell_of(elite)] = elite
        return taken

    def place_again_(self, elite: Elite) -> None:
        """Move an elite that was evaluated anew to the cell that its mean descriptor names now.

        It leaves the archive where that cell is held by a better one, or its mean is not finite.
        """
        cell = next((cell for cell, held in self.elites.items() if held is elite), None)
        if cell is not None and not (elite.is_finite and self.cell_of(elite) == cell):
            del self.elites[cell]
            self.insert_(elite)

    def add(
        self, population: Population, individual: int, fitness: float, descriptor: Sequence[float]
    ) -> bool:
        """Offer one individual of a population after one evaluation; return whether it is in.

        Its weights are copied. They are relative to the base, so the base must not move afterwards.

        Args:
            population: whose individual it is.
            individual: its index.
            fitness: what it scored, higher is better.
            descriptor: of its behaviour, one number per dimension of the archive.
        """
        elite = Elite(population.individual_state(individual), population.lineage.birth(individual))
        elite.note_(fitness, descriptor)
        return self.insert_(elite)

    def population(self, like: Population) -> Population:
        """Return a population of all elites, in the order of their cells.

        Args:
            like: a population on the same base.

        Raises:
            ValueError: for an empty archive.
        """
        if not self.elites:
            message = "the archive is empty: evaluate and add individuals first"
            raise ValueError(message)
        return like.with_individuals([elite.state for elite in self])

    def save(self, folder: str | os.PathLike[str], like: Population) -> None:
        """Write a folder: one file of `save_individual` per elite, and a table of them.

        Args:
            folder: made where it is missing. Files of an archive that was there before are removed.
            like: a population on the same base.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob("cell_*.pt"):
            old.unlink()
        team = self.population(like)
        rows = []
        for i, (cell, elite) in enumerate(sorted(self.elites.items())):
            team.save_individual(folder / f"cell_{cell}.pt", i)
            rows.append({"cell": cell, **plain_elite(elite)})
        table = {"archive": repr(self), "elites": rows}
        write_text(folder / INDEX, json.dumps(table, indent=1) + "\n")

    def load_(self, folder: str | os.PathLike[str], like: Population) -> None:
        """Take the place of what `save` wrote.

        Args:
            folder: of `save`.
            like: a population on the same base.

        Raises:
            ValueError: where it is of an archive with other cells, or of another model.
        """
        folder = Path(folder)
        table = json.loads((folder / INDEX).read_text(encoding="utf-8"))
        self._check(table["archive"])
        reader = like.with_individuals([like.base_state()])
        self.elites = {}
        for row in table["elites"]:
            reader.load_individual(folder / f"cell_{row['cell']}.pt")
            self.elites[row["cell"]] = read_elite(reader.individual_state(0), row)

    def _check(self, saved: str) -> None:
        if saved != repr(self):
            message = f"the archive is {self!r} here and {saved} in the file: make it with the same"
            raise ValueError(message)

    def state(self) -> dict[str, Any]:
        """Return everything as tensors and plain values."""
        held = sorted(self.elites.items())
        return {
            "archive": repr(self),
            "cells": [cell for cell, _ in held],
            "elites": [elite_state(elite) for _, elite in held],
        }

    def load_state_(self, state: dict[str, Any]) -> None:
        """Go on from what `state` returned; ValueError where that had other cells."""
        self._check(state["archive"])
        elites = map(elite_from, state["elites"])
        self.elites = dict(zip(state["cells"], elites, strict=True))


class GridArchive(Archive):
    """A grid of boxes of one size (Mouret and Clune 2015, arXiv 1504.04909).

    Args:
        low: lower bound of each dimension of a descriptor.
        high: upper bound of each dimension; what lies outside counts as on the border.
        shape: cells along each dimension.
    """

    def __init__(
        self, low: Sequence[float], high: Sequence[float], shape: Sequence[int] = (16, 16)
    ) -> None:
        super().__init__(low, high)
        self.shape = tuple(at_least("shape", count, 1) for count in shape)
        if len(self.shape) != len(self.low):
            message = f"shape={self.shape} names not one number of cells for each of {self.low}"
            raise ValueError(message)
        self.num_cells = math.prod(self.shape)

    def __repr__(self) -> str:
        return f"GridArchive(low={self.low}, high={self.high}, shape={self.shape})"

    def _cells(self, points: Tensor) -> Tensor:
        cells = torch.zeros(len(points), dtype=torch.int64, device="cpu")
        for column, count in zip(points.unbind(dim=1), self.shape, strict=True):
            cells = cells * count + (column * count).long().clamp_max(count - 1)
        return cells


class CVTArchive(Archive):
    """Niches around centroids that are spread evenly, for descriptors of many dimensions.

    Centroidal Voronoi tessellation (Vassiliades, Chatzilygeroudis and Mouret 2018, arXiv 1610.05729),
    by Lloyd's algorithm on points drawn uniformly between the bounds.

    Args:
        low: lower bound of each dimension of a descriptor.
        high: upper bound of each dimension; what lies outside counts as on the border.
        num_cells: number of niches.
        seed: of the points; the same one gives the same niches.
        num_points: drawn points.
    """

    def __init__(
        self,
        low: Sequence[float],
        high: Sequence[float],
        num_cells: int = 256,
        *,
        seed: int = 0,
        num_points: int = 10_000,
    ) -> None:
        super().__init__(low, high)
        self.num_cells, self.seed = at_least("num_cells", num_cells, 1), seed
        self.num_points = at_least("num_points", num_points, self.num_cells)
        generator = make_generator(seed, "cvt")
        shape = (self.num_points, len(self.low))
        points = torch.rand(shape, generator=generator, dtype=torch.float64, device="cpu")
        self.centroids = _lloyd(points, self.num_cells)
        """float64 `[num_cells, dimensions]`, in the unit cube."""

    def __repr__(self) -> str:
        return (
            f"CVTArchive(low={self.low}, high={self.high}, num_cells={self.num_cells}, "
            f"seed={self.seed}, num_points={self.num_points})"
        )

    def _cells(self, points: Tensor) -> Tensor:
        return _nearest(points, self.centroids)


def _nearest(points: Tensor, centroids: Tensor) -> Tensor:
    """Return the nearest centroid of each point, ties to the lower, whoever else is in the batch."""
    chunks = torch.split(points, max(1, 2**22 // centroids.numel()))
    return torch.cat([((p[:, None] - centroids) ** 2).sum(dim=2).argmin(dim=1) for p in chunks])


def _lloyd(points: Tensor, count: int, rounds: int = 20) -> Tensor:
    """Return centroids of `points`, beginning at the first ones; an empty niche stays where it is."""
    centroids = points[:count].clone()
    for _ in range(rounds):
        nearest = _nearest(points, centroids)
        sizes = torch.bincount(nearest, minlength=count)
        sums = torch.zeros_like(centroids).index_add_(0, nearest, points)
        held = sizes > 0
        centroids[held] = sums[held] / sizes[held, None]
    return centroids
