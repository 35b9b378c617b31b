"""The same job elsewhere: ``python -m tests.benchmarks.peers --peer-python PYTHON``.

Env-steps/s of `evolve_with_env`, of populora's function of that name, and of EvoTorch's GymNE under SNES,
which steps one environment at a time. Peers run in the interpreter PYTHON, as far as it can import them:
``pip install torch populora==0.4.5 evotorch "gymnasium[classic-control]" dm-control "mujoco<4"``.

"bare" steps the same environments with random actions and resets those that end. All take turns, with one
thread of torch; figures are medians over the rounds, ratios are taken within a round. Only the steps of
episodes that are scored count, of ours also those that validate the champion.
"""

from __future__ import annotations

import argparse
import importlib
import json
import subprocess
import time
import warnings
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

import gymnasium
import numpy as np
import torch
from torch import nn

from populora_envs.invariance import one_thread
from tests.benchmarks.table import machine_line, median_ratio, print_table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

OURS, PEERS = "populora_envs", ("populora", "evotorch")
ROOT = Path(__file__).parents[2]
HEADER = ["library", "env steps", "env-steps/s", "of bare", "ours to it"]


def make_balance() -> Any:
    from dm_control import suite

    return suite.load("cartpole", "balance")


class BalanceEnv(gymnasium.Env):
    """The same for GymNE, with two actions."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (5,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self) -> None:
        self.env = make_balance()

    def reset(self, *, seed=None, options=None):
        return np.hstack(list(self.env.reset().observation.values())), {}

    def step(self, action):
        step = self.env.step(action * 2 - 1)
        return np.hstack(list(step.observation.values())), step.reward, False, step.last(), {}


class Job(NamedTuple):
    """What every library is asked to do, with as many environments as individuals."""

    generations: int = 5
    horizon: int = 500
    pop_size: int = 64
    low_rank: int = 8
    observation: int = 4
    action: Callable[[torch.Tensor], torch.Tensor] = lambda logits: logits.argmax(-1)
    make: Callable[[], Any] = lambda: gymnasium.make("CartPole-v1")
    is_vector: bool = False

    def envs(self) -> Any:
        makers = [self.make] * self.pop_size
        return gymnasium.vector.SyncVectorEnv(makers) if self.is_vector else [m() for m in makers]

    def model(self) -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(self.observation, 32), nn.ReLU(), nn.Linear(32, 2))


JOBS = {
    "16 dm_control balance": Job(2, 1000, 16, 16, 5, lambda x: x.argmax(-1) * 2 - 1, make_balance),
    "64 CartPole-v1, list": Job(),
    "64 CartPole-v1, SyncVectorEnv": Job(is_vector=True),
}


def play_bare(job: Job, steps: int = 8000) -> tuple[int, float]:
    """Step the environments by turns; return the number of steps and the seconds."""
    actions = job.action(torch.randn(steps // job.pop_size, job.pop_size, 2)).numpy()
    envs = [job.envs()] if job.is_vector else job.envs()
    for env in envs:
        env.reset()
    start = time.perf_counter()
    for row in actions:
        for env, action in zip(envs, [row] if job.is_vector else row, strict=True):
            step = env.step(action)
            if not job.is_vector and (step.last() if len(step) == 4 else step[2] or step[3]):
                env.reset()
    return actions.size, time.perf_counter() - start


def play_low_rank(library: str, job: Job) -> tuple[int, float]:
    """Evolve with a library that has an `evolve_with_env`."""
    evolve = partial(importlib.import_module(library).evolve_with_env, pop_size=job.pop_size)
    evolve = partial(evolve, low_rank=job.low_rank, action=job.action, return_history=True)
    envs, model = job.envs(), job.model()
    start = time.perf_counter()
    _, history = evolve(envs, model, num_generations=job.generations, horizon=job.horizon)
    seconds = time.perf_counter() - start
    if "env_steps" in history[-1]:
        return history[-1]["env_steps"], seconds
    # Balancing lasts to the horizon, and CartPole gives 1 for every step.
    means = [job.horizon if job.make is make_balance else e["mean_fitness"] for e in history]
    return round(sum(means) * job.pop_size), seconds


def play_gymne(job: Job) -> tuple[int, float]:
    from evotorch.algorithms import SNES
    from evotorch.neuroevolution import GymNE

    make = BalanceEnv if job.make is make_balance else job.make
    problem = GymNE(make, job.model, episode_length=job.horizon)
    problem.get_env()  # made here, outside the time
    search = SNES(problem, popsize=job.pop_size, stdev_init=0.5)
    start = time.perf_counter()
    search.run(job.generations)
    return int(problem.interaction_count), time.perf_counter() - start


def play(library: str, name: str, horizon: int) -> tuple[int, float]:
    """Do a job, cut to `horizon`, with a library that this interpreter has."""
    job = JOBS[name]._replace(horizon=min(horizon, JOBS[name].horizon))
    players = {"bare": play_bare, "evotorch": play_gymne}
    with one_thread():
        return players.get(library, partial(play_low_rank, library))(job)


def value_from(python: str, imports: str, expression: str) -> Any:
    """Return a plain value that another interpreter finds; RuntimeError with its last error."""
    command = [python, "-c", f"{imports}; import json; print(json.dumps({expression}))"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{python}: {(done.stderr.strip() or 'failed').splitlines()[-1]}")
    return json.loads(done.stdout.splitlines()[-1])


def find_peers(python: str) -> dict[str, str]:
    """Return the version of each peer that the interpreter can import."""
    found = {}
    for peer in PEERS:
        imports = f"import {peer}; from importlib.metadata import version"
        try:
            found[peer] = value_from(python, imports, f"version({peer!r})")
        except (RuntimeError, OSError) as error:
            print(f"without {peer}: {error}")
    return found


def make_rows(players: dict[str, Callable[[], tuple[int, float]]], rounds: int) -> list[list[str]]:
    """Let all play by turns; the first is the bare simulator, the second is ours."""
    turns = [[play() for play in players.values()] for _ in range(rounds)]
    columns = list(zip(*turns, strict=True))
    rates = [[steps / seconds for steps, seconds in column] for column in columns]
    return [
        [
            *(label, f"{median(steps for steps, _ in column):.0f}", f"{median(rate):.0f}"),
            *(f"{median_ratio(rate, rates[0]):.3f}", f"{median_ratio(rates[1], rate):.2f}"),
        ]
        for label, column, rate in zip(players, columns, rates, strict=True)
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer-python", help="an interpreter that has the peers")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=JOBS, help="one job")
    parser.add_argument("--horizon", type=int, default=1000, help="most steps of an episode")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    print(f"{machine_line()}, {options.rounds} rounds")
    if not options.peer_python:
        print("no peer was asked for: name an interpreter that has them by --peer-python")
    peers = find_peers(options.peer_python) if options.peer_python else {}
    for name in [options.only] if options.only else JOBS:
        players = {who: partial(play, who, name, options.horizon) for who in ("bare", OURS)}
        for peer, version in peers.items():
            call = ("from tests.benchmarks.peers import play", f"play{peer, name, options.horizon}")
            players[f"{peer} {version}"] = partial(value_from, options.peer_python, *call)
        print(f"\n{name}, {JOBS[name].generations} generations")
        print_table(HEADER, make_rows(players, options.rounds))


if __name__ == "__main__":
    main()
