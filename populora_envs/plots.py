"""Pictures of runs, with matplotlib (the extra ``plots``); each function returns a Figure.

Colours are Okabe and Ito's, which people with any kind of colour vision can tell apart.
"""

from __future__ import annotations

import io
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from populora_envs.extras import wanted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Entries = Sequence[Mapping[str, Any]]

BLUE, ORANGE, GREEN, RED, PURPLE, SKY = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#D55E00",
    "#CC79A7",
    "#56B4E9",
)
COLOURS = (BLUE, ORANGE, GREEN, RED, PURPLE, SKY)
GREY = "#8C8C8C"

SIZE = (6.0, 3.9)
"""Inches of a picture."""


def fitness_figure(histories: Mapping[str, Entries]) -> Any:
    """Draw fitness over the environment steps of training, or over generations where there were none.

    Args:
        histories: one history by the name of its run. A single one shows best, median, spread and
            champion; several show champions alone.

    Raises:
        ImportError: where matplotlib is not installed.
        ValueError: where a history is empty.
    """
    for name, history in histories.items():
        if not history:
            message = f"the history of {name or 'this run'} is empty: there is nothing to draw"
            raise ValueError(message)
    by_steps = all(_training_steps(history)[-1] > 0 for history in histories.values())
    figure, axes = new_figure(
        "environment steps of training" if by_steps else "generation", "return"
    )
    for number, (name, history) in enumerate(histories.items()):
        x = _training_steps(history) if by_steps else _column(history, "generation")
        if len(histories) > 1:
            _draw_champion(axes, x, history, COLOURS[number % len(COLOURS)], name)
        else:
            _draw_generations(axes, x, history)
            _draw_champion(axes, x, history, RED, "champion, with its standard error")
    add_legend(figure)
    return figure


def _training_steps(history: Entries) -> np.ndarray:
    steps = _column(history, "env_steps") - _column(history, "env_steps_validation")
    return np.where(np.isnan(steps), 0.0, steps)


def _draw_generations(axes: Any, x: np.ndarray, history: Entries) -> None:
    mean, spread = _column(history, "mean_fitness"), _column(history, "std_fitness")
    label = "mean and standard deviation"
    axes.fill_between(x, mean - spread, mean + spread, color=SKY, alpha=0.3, lw=0, label=label)
    axes.plot(x, _column(history, "median_fitness"), color=BLUE, lw=1.5, label="median")
    axes.plot(x, _column(history, "best_fitness"), color=ORANGE, lw=1.5, label="best")


def _draw_champion(axes: Any, x: np.ndarray, history: Entries, colour: str, label: str) -> None:
    mean = _column(history, "champion_mean")
    error = np.nan_to_num(_column(history, "champion_se"))
    axes.fill_between(x, mean - error, mean + error, color=colour, alpha=0.25, lw=0)
    # a run of one generation is a dot
    axes.plot(x, mean, color=colour, lw=2, label=label, marker="o" if len(x) == 1 else None)


def population_figure(rows: Entries) -> Any:
    """Draw the fitness of every individual over the generations.

    Args:
        rows: of ``population.csv``, with ``generation`` and ``fitness``.
    """
    figure, axes = new_figure("generation", "return of each individual")
    x, y = _column(rows, "generation"), _column(rows, "fitness")
    is_finite = np.isfinite(y)
    x, y = x[is_finite], y[is_finite]
    many = len(x) > 5_000
    axes.scatter(
        x,
        y,
        s=3 if many else 12,
        alpha=0.15 if many else 0.5,
        color=BLUE,
        lw=0,
        label="an individual",
    )
    generations = np.unique(x)
    best = [y[x == generation].max() for generation in generations]
    axes.plot(generations, best, color=ORANGE, lw=1.5, label="best")
    add_legend(figure)
    return figure


def diversity_figure(history: Entries) -> Any:
    """Draw how far apart the individuals' weights are over the generations."""
    figure, axes = new_figure("generation", "distance from the mean (weights)")
    x, y = _column(history, "generation"), _column(history, "diversity")
    axes.plot(x, y, color=GREEN, lw=2, marker="o" if len(x) == 1 else None)
    axes.set_ylim(bottom=0)
    return figure


def new_figure(x: str, y: str) -> tuple[Any, Any]:
    """Return an empty picture with its labels; no window and no global state are touched."""
    with wanted("matplotlib", "a plot"):
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator

    class Picture(Figure):
        def _repr_png_(self) -> bytes:
            """Show it in a notebook, without a backend."""
            data = io.BytesIO()
            self.savefig(data, format="png")
            return data.getvalue()

    figure = Picture(figsize=SIZE, dpi=150, layout="constrained")
    axes = figure.subplots()
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(alpha=0.25, lw=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    if x == "generation":
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    else:
        axes.xaxis.set_major_formatter(_thousands)
    return figure, axes


def add_legend(figure: Any) -> None:
    """Put the legend above the axes, where it hides nothing."""
    figure.legend(loc="outside upper left", ncols=2, frameon=False, fontsize=9)


def _thousands(number: float, _: Any) -> str:
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= size:
            return f"{number / size:g}{letter}"
    return f"{number:g}"


def _column(entries: Entries, name: str) -> np.ndarray:
    return np.array([float(entry.get(name, math.nan)) for entry in entries])
