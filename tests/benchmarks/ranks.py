"""What ranks gain and cost: ``python -m tests.benchmarks.ranks``.

Starts itself under torchrun with one and with two ranks; ratios are of env-steps/s, medians over rounds that
take turns. The overhead is what a generation of 256 individuals takes beside playing: the counter, the
checksum of the individuals and the exchange of results.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import warnings
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from populora_envs import interact_with_env, is_main_rank, sync
from tests.benchmarks.table import machine_line, print_table

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone"]


class Uneven(gymnasium.Env):
    """One episode in eight is twenty times as long as the others; a step takes about 100 us."""

    observation_space = spaces.Box(-1.0, 1.0, (4,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self) -> None:
        self._left, self._matrix = 0, np.ones((90, 90))

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._left = 400 if self.np_random.uniform() < 1 / 8 else 20
        return np.zeros(4, np.float32), {}

    def step(self, action: Any) -> Any:
        self._matrix @ self._matrix
        self._left -= 1
        return np.zeros(4, np.float32), 1.0, self._left == 0, False, {}


class Instant(gymnasium.Env):
    """Episodes of one step that cost nothing."""

    observation_space = spaces.Box(-1.0, 1.0, (4,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(4, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.zeros(4, np.float32), 1.0, True, False, {}


CASES: dict[str, Any] = {
    "dm_control cartpole": ("dm_control/cartpole-balance", {"num_episodes": 2, "horizon": 200}),
    "uneven episodes": (Uneven, {"num_episodes": 8, "horizon": 1000}),
}


def rates(name: str, rounds: int) -> list[float]:
    """Env-steps/s of a case, one number per round."""
    env, settings = CASES[name]
    found = []
    with interact_with_env(env, num_envs=8) as interactor:
        population = interactor.population(pop_size=16)
        for _ in range(1 + rounds):
            sync()
            start = time.perf_counter()
            played = interactor.rollout(population, **settings)
            found.append(played.env_steps / (time.perf_counter() - start))
            population.generation += 1
    return found[1:]


def seconds_beside_playing(rounds: int) -> float:
    """Of a generation of 256 individuals on this many ranks."""
    found = []
    with interact_with_env(Instant, num_envs=64) as interactor:
        population = interactor.population(pop_size=256, low_rank=16)
        for _ in range(3 + rounds):
            sync()
            start = time.perf_counter()
            interactor.rollout(population, horizon=1)
            found.append(time.perf_counter() - start)
            population.generation += 1
    return median(found[3:])


def inner(path: Path, rounds: int) -> None:
    warnings.simplefilter("ignore")
    told: dict[str, Any] = {name: rates(name, rounds) for name in CASES}
    told["instant"] = seconds_beside_playing(20)
    if is_main_rank():
        path.write_text(json.dumps(told))


def launch(ranks: int, folder: Path, rounds: int) -> dict[str, Any]:
    """Run the cases on some ranks, without torchrun where `ranks` is 0."""
    path = folder / "told.json"
    launcher = [*TORCHRUN, f"--nproc-per-node={ranks}"] if ranks else [sys.executable]
    command = ["-m", "tests.benchmarks.ranks", "--inner", str(path), "--rounds", str(rounds)]
    variables = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([*launcher, *command], check=True, env=variables)
    told: dict[str, Any] = json.loads(path.read_text())
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--inner", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inner is not None:
        inner(options.inner, options.rounds)
        return
    print(machine_line())
    with TemporaryDirectory() as folder:
        turns = [[launch(n, Path(folder), options.rounds) for n in (0, 1, 2)] for _ in range(3)]
    rows = []
    for name in CASES:
        one, two = (median(median(turn[k][name]) for turn in turns) for k in (1, 2))
        rows.append([name, f"{one:.0f}", f"{two:.0f}", f"{two / one:.2f}"])
    print_table(["case", "1 rank", "2 ranks", "ratio"], rows)
    alone, two = (median(turn[k]["instant"] for turn in turns) * 1e3 for k in (0, 2))
    print(
        f"256 episodes of one step: {alone:.1f} ms without ranks, {two:.1f} ms on 2 ranks, of which "
        f"{two - alone / 2:.1f} ms are not half of the former"
    )


if __name__ == "__main__":
    main()
