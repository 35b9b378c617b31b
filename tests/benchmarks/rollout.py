"""How close rollouts come to the bare simulator: ``python -m tests.benchmarks.rollout``.

Each case plays one generation and records every reset and action. A round then times the same resets
and actions on the bare environments and the same generation through the interactor, one after the
other; the ratio is taken within the round and the median over the rounds is printed.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import time
import warnings
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import torch

from populora_envs import EnvInteractor, Population, interact_with_env
from populora_envs.slot_actions import make_picker

if TYPE_CHECKING:
    from collections.abc import Callable

Event = tuple[str, int, Any]


@dataclass
class Recorder:
    """An adapter that notes what reaches the simulator."""

    adapter: Any
    events: list[Event] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.adapter, name)

    def reset(self, seeds=None, slots=None):
        chosen = np.ones(self.adapter.num_slots, bool) if slots is None else slots
        if self.is_vector:
            self.events.append(("reset", -1, seeds[0]))
        else:
            self.events += [("reset", int(i), seeds[i]) for i in np.flatnonzero(chosen)]
        return self.adapter.reset(seeds, slots)

    def step(self, actions, slots=None):
        if self.is_vector:
            self.events.append(("step", -1, actions.copy()))
        else:
            chosen = np.ones(self.adapter.num_slots, bool) if slots is None else slots
            pick = make_picker(self.adapter.action_space)
            self.events += [("step", int(i), pick(actions, i)) for i in np.flatnonzero(chosen)]
        return self.adapter.step(actions, slots)

    @property
    def is_vector(self) -> bool:
        return hasattr(self.adapter, "_env")


@dataclass
class Case:
    """One workload: `make()` gives what the interactor takes and the bare environments."""

    name: str
    make: Callable[[], tuple[Any, list[Any]]]
    begin: Callable[[Any, int], Any]
    sizes: tuple[int, ...]
    pop_size: int = 16
    evolve: int = 0


def gym_list(env_id: str, count: int) -> Callable[[], tuple[Any, list[Any]]]:
    def make():
        envs = [gymnasium.make(env_id) for _ in range(count)]
        return envs, envs

    return make


def gym_vector(env_id: str, count: int) -> Callable[[], tuple[Any, list[Any]]]:
    def make():
        env = gymnasium.make_vec(env_id, num_envs=count, vectorization_mode="vector_entry_point")
        return env, [env]

    return make


def dm_list(domain: str, task: str, count: int) -> Callable[[], tuple[Any, list[Any]]]:
    def make():
        from dm_control import suite

        envs = [suite.load(domain, task) for _ in range(count)]
        return envs, envs

    return make


def begin_gym(env: Any, seed: int) -> None:
    env.reset(seed=seed)


def begin_dm(env: Any, seed: int) -> None:
    env.task.random.seed(seed)
    env.reset()


CASES = [
    Case("16 dm_control cartpole balance", dm_list("cartpole", "balance", 16), begin_dm, (32,)),
    Case("16 CartPole-v1", gym_list("CartPole-v1", 16), begin_gym, (32,), evolve=5),
    Case("CartPoleVectorEnv 64", gym_vector("CartPole-v1", 64), begin_gym, (32,), 64, evolve=5),
    Case("16 HalfCheetah-v5", gym_list("HalfCheetah-v5", 16), begin_gym, (64, 64)),
]


def build(interactor: EnvInteractor, case: Case) -> Population:
    """Return a population of small policies, evolved a little where episodes would be too short."""
    sizes = (interactor.encoder.shape[0], *case.sizes)
    space = interactor.action_space
    out = int(space.n) if hasattr(space, "n") else int(np.prod(space.shape))
    torch.manual_seed(0)
    layers: list[Any] = []
    for fan_in, fan_out in pairwise(sizes):
        layers += [torch.nn.Linear(fan_in, fan_out), torch.nn.Tanh()]
    layers.append(torch.nn.Linear(sizes[-1], out))
    if not hasattr(space, "n"):
        layers.append(torch.nn.Tanh())
    population = interactor.population(
        torch.nn.Sequential(*layers), pop_size=case.pop_size, low_rank=4
    )
    for _ in range(case.evolve):
        population.evolve_(interactor.evaluate(population))
    return population


def record(interactor: EnvInteractor, population: Population) -> list[Event]:
    source = interactor._sources[""]
    recorder = Recorder(source.adapter)
    source.adapter = recorder
    interactor._entries = interactor._make_entries()
    interactor.evaluate(population)
    source.adapter = recorder.adapter
    interactor._entries = interactor._make_entries()
    return recorder.events


def replay(events: list[Event], envs: list[Any], begin: Callable[[Any, int], Any]) -> float:
    """Return the seconds that the recorded events take on bare environments."""
    start = time.perf_counter()
    for kind, slot, what in events:
        if kind == "step":
            envs[slot].step(what)
        else:
            begin(envs[slot], what)
    return time.perf_counter() - start


def measure(case: Case, rounds: int) -> str:
    envs, bare = case.make()
    with interact_with_env(envs) as interactor:
        population = build(interactor, case)
        events = record(interactor, population)
        ratios, raws, ours, shares = [], [], [], []
        for _ in range(rounds):
            raw = replay(events, bare, case.begin)
            start = time.perf_counter()
            played = interactor.rollout(population)
            total = time.perf_counter() - start
            ratios.append(raw / total)
            raws.append(played.env_steps / raw)
            ours.append(played.env_steps / total)
            shares.append((played.seconds_env / total, played.seconds_forward / total))
        for env in bare:
            env.close()
    env_share, forward_share = (statistics.median(column) for column in zip(*shares, strict=True))
    rest = 1 - env_share - forward_share
    return (
        f"{case.name:32s} {statistics.median(raws):10.0f} {statistics.median(ours):10.0f} "
        f"{statistics.median(ratios):7.3f} {env_share:6.0%} {forward_share:8.0%} {rest:6.0%}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="part of a case's name")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    print(
        f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, Python "
        f"{platform.python_version()}, torch {torch.__version__}, gymnasium {gymnasium.__version__}, "
        f"numpy {np.__version__}, {options.rounds} rounds"
    )
    print(
        f"{'':32s} {'bare':>10s} {'ours':>10s} {'ratio':>7s} {'env':>6s} {'forward':>8s} {'rest':>6s}"
    )
    for case in CASES:
        if options.only in case.name:
            print(measure(case, options.rounds), flush=True)


if __name__ == "__main__":
    main()
