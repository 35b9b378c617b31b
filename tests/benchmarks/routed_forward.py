"""What routing costs: ``python -m tests.benchmarks.routed_forward [--compile] [--device cuda]``.

One row per individual goes through the routed model, and through the plain base model, by turns in one
run. "routed" is given the same ids every time, as in most steps of a rollout; "new ids" is given others
at every call, shuffled and with repeats, so that weights are gathered anew. Ratios are to the plain
model, medians over the rounds. On a CPU torch uses one thread.
"""

from __future__ import annotations

import argparse
import itertools
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import nn

from populora_envs import Population
from populora_envs.invariance import one_thread
from tests.benchmarks.table import (
    machine_line,
    megabytes_of_individuals,
    print_table,
    time_in_turns,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

HEADER = [
    *("individuals", "sizes", "rank", "plain us", "routed us", "ratio", "limit", "verdict"),
    *("new ids us", "ratio", "MB"),
]
COMPILED = ["compiled us", "ratio"]
LEAST_SECONDS = 0.02
"""How long a turn takes at least."""

SHUFFLES = 16
"""Ids that take turns as new ids."""


class Case(NamedTuple):
    pop_size: int
    sizes: tuple[int, ...]
    low_rank: int
    limit: float | None = None
    """Highest ratio of the routed forward to the plain one that is accepted."""


CASES = (
    Case(16, (5, 32, 2), 16, 1.2),
    Case(64, (4, 32, 2), 8, 2.0),
    Case(64, (17, 64, 64, 6), 4, 2.0),
    Case(256, (17, 256, 256, 6), 4, 3.0),
    Case(1024, (17, 64, 64, 6), 4),
    Case(16, (105, 512, 512, 21), 8, 3.0),
    Case(1024, (17, 256, 256, 6), 4),
)


def make_model(sizes: Sequence[int]) -> nn.Sequential:
    """Linear layers with tanh between them."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for fan_in, fan_out in pairwise(sizes):
        layers += [nn.Linear(fan_in, fan_out), nn.Tanh()]
    return nn.Sequential(*layers[:-1])


def make_population(case: Case, device: str, **settings: bool) -> Population:
    model = make_model(case.sizes)
    return Population(
        model, pop_size=case.pop_size, low_rank=case.low_rank, device=device, seed=0, **settings
    )


def takes_compile() -> bool:
    try:
        make_population(Case(1, (1, 1), 1), "cpu", compile=True)
    except TypeError as error:
        print(f"no compiled column, for Population does not take compile=True: {error}")
        return False
    return True


def make_calls(case: Case, populations: Sequence[Population], device: str) -> list[Callable]:
    """The plain forward, the routed one with new ids, and each population's with the same ids."""
    plain = make_model(case.sizes).to(device)
    batch = torch.randn(case.pop_size, case.sizes[0], device=device)
    ids = torch.arange(case.pop_size, device=device)
    shuffles = itertools.cycle(
        [torch.randint(case.pop_size, ids.shape, device=device) for _ in range(SHUFFLES)]
    )
    shuffled = make_population(case, device)
    routed = [lambda p=population: p.routed(batch, ids) for population in populations]
    return [lambda: plain(batch), lambda: shuffled.routed(batch, next(shuffles)), *routed]


def measure(case: Case, rounds: int, device: str, compile: bool) -> list[str]:
    populations = [make_population(case, device)]
    if compile:
        populations.append(make_population(case, device, compile=True))
    wait = torch.cuda.synchronize if torch.device(device).type == "cuda" else lambda: None
    with torch.inference_mode(), one_thread():
        calls = make_calls(case, populations, device)
        timings = time_in_turns(calls, rounds, LEAST_SECONDS, wait)
    plain, new_ids, routed, *compiled = timings
    verdict = "-" if case.limit is None else "ok" if routed.ratio <= case.limit else "over"
    return [
        *(str(case.pop_size), "-".join(map(str, case.sizes)), str(case.low_rank)),
        *(f"{plain.seconds * 1e6:.1f}", f"{routed.seconds * 1e6:.1f}", f"{routed.ratio:.2f}"),
        *("-" if case.limit is None else f"{case.limit:.1f}", verdict),
        *(f"{new_ids.seconds * 1e6:.1f}", f"{new_ids.ratio:.2f}"),
        f"{megabytes_of_individuals(populations[0]):.2f}",
        *(cell for c in compiled for cell in (f"{c.seconds * 1e6:.1f}", f"{c.ratio:.2f}")),
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--cases", type=int, default=len(CASES), help="how many, from the first")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--compile", action="store_true", help="add Population(compile=True)")
    options = parser.parse_args(arguments)
    print(f"{machine_line()}, {options.device}, {options.rounds} rounds")
    compile = options.compile and takes_compile()
    rows = [
        measure(case, options.rounds, options.device, compile) for case in CASES[: options.cases]
    ]
    print_table(HEADER + COMPILED * compile, rows)


if __name__ == "__main__":
    main()
