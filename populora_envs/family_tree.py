"""A picture of who descends from whom."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from populora_envs.plots import BLUE, GREY, RED, add_legend, new_figure

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Rows = Sequence[Mapping[str, Any]]

CENTRE = -1
"""The id that stands for the policy a search samples around."""

MOST_GENERATIONS = 60
"""Generations in the picture, the last ones."""

MOST_RANKS = 64
"""Individuals of a generation in the picture, the best ones."""


class Dot(NamedTuple):
    """One individual in one generation."""

    generation: int
    rank: int
    """Among the individuals of the generation, 1 for the best; 0 for the centre of a search."""


class Line(NamedTuple):
    """From a parent, or the same individual, in the generation before."""

    start: Dot
    end: Dot


def lineage_figure(rows: Rows) -> Any:
    """Draw individuals by rank over the generations, with lines from their parents.

    The ancestors of the last generation's best are drawn in colour. Individuals that a search samples
    around its centre descend from that, a dot above the ranks.

    Args:
        rows: of ``population.csv``.
    """
    figure, axes = new_figure("generation", "rank (1 is the best)")
    places = _places(rows)
    lines = _lines(rows, places)
    ancestry = _ancestry(lines)
    dots = [dot for generation in places.values() for dot in generation.values()]
    axes.scatter(*_columns(dots), s=6, color=GREY, alpha=0.6, lw=0, label="an individual")
    _draw(axes, [line for line in lines if line not in ancestry], GREY, 0.35, "")
    _draw(axes, ancestry, RED, 1.3, "ancestors of the last generation's best")
    centres = sorted({line.start for line in lines if not line.start.rank})
    if centres:
        axes.scatter(*_columns(centres), s=14, color=BLUE, lw=0, label="centre of the search")
    axes.invert_yaxis()
    add_legend(figure)
    return figure


def _places(rows: Rows) -> dict[int, dict[int, Dot]]:
    """Return the dots by generation and id."""
    last = max(row["generation"] for row in rows)
    by_generation: dict[int, list[Mapping[str, Any]]] = {}
    for row in rows:
        if row["generation"] > last - MOST_GENERATIONS:
            by_generation.setdefault(row["generation"], []).append(row)
    return {
        generation: {
            row["id"]: Dot(generation, rank)
            for rank, row in enumerate(sorted(members, key=_worst_last)[:MOST_RANKS], 1)
        }
        for generation, members in by_generation.items()
    }


def _worst_last(row: Mapping[str, Any]) -> tuple[float, int]:
    fitness = row["fitness"]
    return (math.inf if math.isnan(fitness) else -fitness, row["individual"])


def _lines(rows: Rows, places: dict[int, dict[int, Dot]]) -> list[Line]:
    found: list[Line] = []
    for row in rows:
        generation = row["generation"]
        here = places.get(generation, {}).get(row["id"])
        before = places.get(generation - 1)
        if here is None or before is None:
            continue
        for parent in [row["id"]] if row["id"] in before else row["parents"]:
            start = Dot(generation - 1, 0) if parent == CENTRE else before.get(parent)
            found += [] if start is None else [Line(start, here)]
    centres = sorted({line.start for line in found if not line.start.rank})
    return found + [Line(*pair) for pair in pairwise(centres)]


def _ancestry(lines: list[Line]) -> set[Line]:
    """Return the lines that lead to the last generation's best; the centre leads back to itself."""
    ends: dict[Dot, list[Line]] = {}
    for line in lines:
        ends.setdefault(line.end, []).append(line)
    found: set[Line] = set()
    waiting = [max(ends, key=lambda dot: (dot.generation, -dot.rank))] if ends else []
    while waiting:
        for line in ends.get(waiting.pop(), ()):
            found.add(line)
            waiting.append(line.start)
    return found


def _draw(axes: Any, lines: Any, colour: str, width: float, label: str) -> None:
    from matplotlib.collections import LineCollection

    segments = [tuple((dot.generation, dot.rank) for dot in line) for line in sorted(lines)]
    axes.add_collection(LineCollection(segments, colors=colour, linewidths=width, label=label))


def _columns(dots: list[Dot]) -> tuple[list[int], list[int]]:
    return [dot.generation for dot in dots], [dot.rank for dot in dots]
