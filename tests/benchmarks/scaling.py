"""What a generation costs as it grows: ``python -m tests.benchmarks.scaling [--only slots]``.

One table per setting, each varied alone from the base point, on single Pendulum-v1 environments whose
episodes last exactly `horizon` steps. A generation is one `rollout` and one `evolve_`. The cases of a
table take turns; every figure is the median over the rounds, "to first" that of the ratios of
microseconds per env step to the first row's. The last table, `large`, is a policy with two layers of
256: its cost per individual should be flat, and `evolve_` below 5 %.
"""

from __future__ import annotations

import argparse
import time
from contextlib import ExitStack
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

import gymnasium
from torch import nn

from populora_envs import interact_with_env
from populora_envs.invariance import one_thread
from tests.benchmarks.routed_forward import make_model
from tests.benchmarks.table import (
    machine_line,
    median_ratio,
    megabytes_of_individuals,
    print_table,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from populora_envs import EnvInteractor, Population

HEADER = [
    *("env steps", "us/step", "to first", "ms/individual", "env", "forward", "rest"),
    *("evolve_ ms", "evolve_", "MB"),
]
OBSERVATION, ACTION = 3, 1
"""Numbers of Pendulum-v1."""


class Case(NamedTuple):
    """The base point; the policy has two hidden layers."""

    pop_size: int = 64
    slots: int = 16
    horizon: int = 100
    hidden: int = 64
    rank: int = 4


LARGE = Case(slots=64, horizon=200, hidden=256)
TABLES: dict[str, list[Case]] = {
    "pop_size": [Case(pop_size=count) for count in (16, 64, 256, 1024)],
    "slots": [Case(slots=count) for count in (1, 4, 16, 64)],
    "horizon": [Case(horizon=steps) for steps in (50, 200, 800)],
    "hidden": [Case(hidden=width) for width in (16, 64, 256)],
    "rank": [Case(rank=rank) for rank in (1, 4, 16, 64)],
    "large": [LARGE, LARGE._replace(pop_size=1024)],
}


class Cost(NamedTuple):
    """One generation, in seconds."""

    env_steps: int
    rollout: float
    env: float
    forward: float
    evolve: float

    @property
    def total(self) -> float:
        return self.rollout + self.evolve

    @property
    def per_step(self) -> float:
        return self.total / self.env_steps


def open_case(case: Case) -> tuple[EnvInteractor, Population]:
    envs = [
        gymnasium.make("Pendulum-v1", max_episode_steps=case.horizon) for _ in range(case.slots)
    ]
    interactor = interact_with_env(envs)
    layers = make_model((OBSERVATION, case.hidden, case.hidden, ACTION))
    model = nn.Sequential(*layers, nn.Tanh())
    return interactor, interactor.population(model, pop_size=case.pop_size, low_rank=case.rank)


def play_generation(interactor: EnvInteractor, population: Population) -> Cost:
    start = time.perf_counter()
    played = interactor.rollout(population)
    between = time.perf_counter()
    population.evolve_(played.fitnesses)
    end = time.perf_counter()
    return Cost(
        played.env_steps,
        between - start,
        played.seconds_env,
        played.seconds_forward,
        end - between,
    )


def make_row(name: str, costs: list[Cost], first: list[Cost], population: Population) -> list[str]:
    to_first = median_ratio([c.per_step for c in costs], [c.per_step for c in first])
    return [
        name,
        str(costs[0].env_steps),
        f"{median(c.per_step for c in costs) * 1e6:.2f}",
        f"{to_first:.2f}",
        f"{median(c.total for c in costs) * 1e3 / population.pop_size:.3f}",
        f"{median(c.env / c.total for c in costs):.0%}",
        f"{median(c.forward / c.total for c in costs):.0%}",
        f"{median((c.rollout - c.env - c.forward) / c.total for c in costs):.0%}",
        f"{median(c.evolve for c in costs) * 1e3:.2f}",
        f"{median(c.evolve / c.total for c in costs):.1%}",
        f"{megabytes_of_individuals(population):.2f}",
    ]


def measure(cases: Sequence[tuple[str, Case]], rounds: int) -> list[list[str]]:
    """One row per named case, from generations that the cases play in turns."""
    with ExitStack() as stack:
        opened = [open_case(case) for _, case in cases]
        for interactor, _ in opened:
            stack.enter_context(interactor)
        turns = [[play_generation(*pair) for pair in opened] for _ in range(rounds)]
        columns = [list(column) for column in zip(*turns, strict=True)]
        return [
            make_row(name, costs, columns[0], population)
            for (name, _), costs, (_, population) in zip(cases, columns, opened, strict=True)
        ]


def named(table: str, cases: Sequence[Case]) -> list[tuple[str, Case]]:
    """Each case under the number that the table varies."""
    setting = table if table in Case._fields else "pop_size"
    return [(str(getattr(case, setting)), case) for case in cases]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=TABLES, help="one table")
    parser.add_argument("--cases", type=int, default=4, help="how many rows, from the first")
    options = parser.parse_args(arguments)
    print(f"{machine_line()}, {options.rounds} rounds\nbase: {Case()}\nlarge: {LARGE}")
    for table in [options.only] if options.only else TABLES:
        print()
        with one_thread():
            rows = measure(named(table, TABLES[table][: options.cases]), options.rounds)
        label = table if table in Case._fields else f"{table}, pop_size"
        print_table([label, *HEADER], rows)


if __name__ == "__main__":
    main()
