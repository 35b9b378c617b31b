"""What the benchmarks share: the line about the machine, calls timed in turns, aligned tables."""

from __future__ import annotations

import os
import platform
import statistics
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import gymnasium
import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from populora_envs import Population


def machine_line() -> str:
    """What a figure depends on: the machine, its load and the versions."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")
    return (
        f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, load {load:.2f}, "
        f"Python {platform.python_version()}, torch {torch.__version__}, numpy {np.__version__}, "
        f"gymnasium {gymnasium.__version__}"
    )


class Timing(NamedTuple):
    """Medians over the rounds, of one call; the ratio is to the first call of the round."""

    seconds: float
    ratio: float


def time_in_turns(
    calls: Sequence[Callable[[], Any]],
    rounds: int,
    least_seconds: float = 0.0,
    wait: Callable[[], Any] = lambda: None,
) -> list[Timing]:
    """Time every call once per round, one after the other.

    Args:
        calls: what to time, after one call to warm up.
        least_seconds: repeat a short call until its turn takes about as long.
        wait: for the device to be done.
    """
    for call in calls:
        call()
    repeats = [max(1, round(least_seconds / seconds_of(call, 3, wait))) for call in calls]
    turns = [
        [seconds_of(call, count, wait) for call, count in zip(calls, repeats, strict=True)]
        for _ in range(rounds)
    ]
    return [
        Timing(statistics.median(column), median_ratio(column, [turn[0] for turn in turns]))
        for column in zip(*turns, strict=True)
    ]


def seconds_of(call: Callable[[], Any], repeats: int, wait: Callable[[], Any]) -> float:
    wait()
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    wait()
    return (time.perf_counter() - start) / repeats


def median_ratio(values: Sequence[float], references: Sequence[float]) -> float:
    """The median of the ratios of values that belong to the same round."""
    return statistics.median(v / r for v, r in zip(values, references, strict=True))


def megabytes_of_individuals(population: Population) -> float:
    return sum(w.down.nbytes + w.up.nbytes for w in population.individuals.values()) / 1e6


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print columns as wide as their widest cell, the first flush left."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    for row in (header, *rows):
        first, *others = (cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join([first.strip().ljust(widths[0]), *others]))
