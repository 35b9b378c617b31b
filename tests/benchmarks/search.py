"""What each search solves, and in how many steps: ``python -m tests.benchmarks.search``.

A run is `evolve_with_env` with its defaults, a target, a budget and a seed. The policy that it returns plays
100 episodes that the run has not touched; "solved" counts the runs in which their mean reaches the task's
score, "honest" those whose own report lies within two standard errors of it. Runs go on in parallel, each
appends a row to the CSV file as it ends, and rows that are there already are not run again.

With ``--peer-python`` EvoTorch's SNES, sb3-contrib's ARS and populora are scored in the same way, as far as
that interpreter can import them.
"""

from __future__ import annotations

import argparse
import csv
import itertools
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from statistics import mean, median
from typing import TYPE_CHECKING, get_type_hints

from tests.benchmarks import search_peers
from tests.benchmarks.runs import run
from tests.benchmarks.table import machine_line, print_table
from tests.benchmarks.tasks import TASKS, Row

if TYPE_CHECKING:
    from collections.abc import Sequence

HEADER = [
    *("task", "search", "solved", "training steps", "with looks", "looks", "honest"),
    *("score", "worst", "seconds"),
]

Key = tuple[str, str, int]


def read(path: Path) -> dict[Key, Row]:
    """The rows of a file by task, search and seed."""
    if not path.exists():
        return {}
    kinds = get_type_hints(Row).values()
    with path.open(newline="") as file:
        lines = list(csv.reader(file))[1:]
    rows = [Row(*(kind(cell) for kind, cell in zip(kinds, line, strict=True))) for line in lines]
    return {(row.task, row.search, row.seed): row for row in rows}


def append(path: Path, row: Row) -> None:
    is_new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        if is_new:
            writer.writerow(Row._fields)
        writer.writerow(row)


def play(keys: Sequence[Key], path: Path, jobs: int) -> None:
    """Run what the file lacks."""
    missing = [key for key in keys if key not in read(path)]
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        futures = [pool.submit(run, *key) for key in missing]
        for future in as_completed(futures):
            row, curve = future.result()
            append(path, row)
            solved = "" if TASKS[row.task].solved is None else f", solved {row.is_solved}"
            print(
                f"{row.task} {row.search} seed {row.seed}: {row.score:.1f} +- {row.score_se:.1f}, "
                f"reported {row.reported:.1f}, {row.train_steps} training steps{solved}",
                *([f"by 500k steps: {curve}"] if len(curve) > 2 else []),
                flush=True,
            )


def summary(rows: Sequence[Row]) -> list[list[str]]:
    """One line per task and search."""
    lines = []
    for (task, search), group in itertools.groupby(rows, lambda row: row[:2]):
        runs = list(group)
        solved = sum(row.is_solved for row in runs)
        scores = [row.score for row in runs]
        lines.append(
            [
                *(task, search, f"{solved}/{len(runs)}" if TASKS[task].solved else "-"),
                f"{median(row.train_steps for row in runs) / 1e3:.1f}k",
                f"{median(row.env_steps for row in runs) / 1e3:.1f}k",
                f"{mean(row.look_steps / row.train_steps for row in runs):.0%}",
                f"{sum(row.is_honest for row in runs)}/{len(runs)}",
                *(f"{median(scores):.1f}", f"{min(scores):.1f}"),
                f"{median(row.seconds for row in runs):.0f}",
            ]
        )
    return lines


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS)[:5])
    parser.add_argument("--searches", nargs="+", default=["default"], help="default, es, ga, ...")
    parser.add_argument("--seeds", type=int, default=10, help="runs of each")
    parser.add_argument("--first-seed", type=int, default=1000)
    parser.add_argument("--csv", type=Path, default=Path("search.csv"))
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    parser.add_argument(
        "--table", action="store_true", help="print what the file holds, run nothing"
    )
    parser.add_argument("--peer-python", help="an interpreter that has the peers")
    options = parser.parse_args(arguments)
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    print(machine_line())
    if not options.table:
        keys = list(itertools.product(options.tasks, options.searches, seeds))
        play(keys, options.csv, options.jobs)
    if options.peer_python:
        search_peers.play(options.peer_python, options.tasks, seeds, options.csv, append)
    order = list(TASKS)
    rows = sorted(read(options.csv).values(), key=lambda row: (order.index(row.task), row.search))
    print_table(HEADER, summary(rows))


if __name__ == "__main__":
    main()
