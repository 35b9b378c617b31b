"""How close rollouts come to the bare simulator: ``python -m tests.benchmarks.rollout [--only dm_control]``.

Each case plays one generation in this process and records every reset and action. A round then times the
same resets and actions on the bare environments, shared out among as many processes as ours has workers,
and the same generation through the interactor. The ratio, bare to our seconds, is taken within a round;
figures are medians over the rounds, shares those of the time of all workers.

"wanted" is the least ratio, or the most microseconds per step of a vector environment that are neither
environment nor forward ("rest"). Only steps of episodes that count are counted, not those of idle slots.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import sys
import time
import warnings
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import gymnasium
import numpy as np
import torch
from torch import nn

from populora_envs import interact_with_env
from populora_envs.adapter import close_all
from tests.benchmarks.table import machine_line, print_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from populora_envs import EnvInteractor, Population
    from populora_envs.evaluation import Evaluated

    Begin = Callable[[Any, int], Any]
    Made = tuple[list[Any], Begin]

HEADER = ["case", "workers", "bare steps/s", "ours steps/s", "ratio", "wanted"]
HEADER += ["env", "forward", "rest", "us/vector step"]


def begin_gym(env: Any, seed: int) -> None:
    env.reset(seed=seed)


def begin_dm(env: Any, seed: int) -> None:
    env.task.random.seed(seed)
    env.reset()


def gym_list(env_id: str, count: int) -> Made:
    return [gymnasium.make(env_id) for _ in range(count)], begin_gym


def mujoco_list(env_id: str, count: int) -> Made:
    """The same, without MuJoCo's warnings about the model."""
    import mujoco

    mujoco.set_mju_user_warning(lambda message: None)
    return gym_list(env_id, count)


def gym_vector(env_id: str, count: int) -> Made:
    env = gymnasium.make_vec(env_id, num_envs=count, vectorization_mode="vector_entry_point")
    return [env], begin_gym


def dm_list(domain: str, task: str, count: int) -> Made:
    from dm_control import suite

    return [suite.load(domain, task) for _ in range(count)], begin_dm


def envpool_vector(env_id: str, count: int) -> Made:
    import envpool

    env = envpool.make(env_id, env_type="gymnasium", num_envs=count)
    return [env], lambda env, seed: env.reset()


def puffer_cartpole(count: int) -> Made:
    from pufferlib import ocean

    return [ocean.env_creator("puffer_cartpole")(num_envs=count)], begin_gym


class Case(NamedTuple):
    """One workload; what is made are single environments, or one vector environment."""

    name: str
    make: partial[Made]
    wanted: str = "-"
    hidden: tuple[int, ...] = (32,)  # one layer with ReLU, or several with tanh
    low_rank: int = 4
    pop_size: int = 16
    num_episodes: int = 1
    horizon: int | None = None
    generations: int = 0  # most, of training before anything is measured
    lasting: float = float("inf")  # length of episodes from which on the best is put everywhere

    def play(self, interactor: EnvInteractor, population: Population) -> Evaluated:
        return interactor.rollout(population, horizon=self.horizon, num_episodes=self.num_episodes)


BALANCE = partial(dm_list, "cartpole", "balance", 16)
CHEETAH = partial(dm_list, "cheetah", "run", 16)
POLES = partial(gym_list, "CartPole-v1", 16)
LANDERS = partial(gym_list, "LunarLander-v3", 64)
VECTOR, LARGE = (partial(gym_vector, "CartPole-v1", count) for count in (64, 1024))
HALF_CHEETAH = partial(mujoco_list, "HalfCheetah-v5", 16)
LASTING = {"num_episodes": 6, "generations": 100, "lasting": 475}
CASES = [
    Case("16 dm_control cartpole balance", BALANCE, "0.90", low_rank=16, horizon=500),
    Case("16 dm_control cheetah run", CHEETAH, "0.90", (64, 64), horizon=500),
    Case("16 CartPole-v1, 16 that last", POLES, "0.75", **LASTING),
    Case("16 CartPole-v1, 64 evolved", POLES, "0.75", pop_size=64, num_episodes=8, generations=5),
    Case("64 LunarLander-v3", LANDERS, "0.90", (64, 64), pop_size=64, num_episodes=3),
    Case("CartPoleVectorEnv 64", VECTOR, "40 us", pop_size=64, num_episodes=16, generations=5),
    Case("CartPoleVectorEnv 1,024", LARGE, "100 us", pop_size=1024, num_episodes=2, generations=5),
    Case("16 HalfCheetah-v5", HALF_CHEETAH, "0.90", (64, 64), horizon=500),
    Case("EnvPool HalfCheetah 16", partial(envpool_vector, "HalfCheetah-v5", 16), hidden=(64, 64)),
    Case("pufferlib native cartpole 64", partial(puffer_cartpole, 64), pop_size=64, generations=5),
]


class Event(NamedTuple):
    """What reached one of the environments: an action, or a reset with a seed."""

    env: int
    action: Any
    seed: int | None


class Recorder:
    """An adapter that notes what reaches the simulator."""

    def __init__(self, adapter: Any, *, is_vector: bool) -> None:
        self.adapter, self.is_vector = adapter, is_vector
        self.events: list[Event] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.adapter, name)

    def _chosen(self, slots: np.ndarray | None) -> list[int]:
        if self.is_vector:
            return [0]
        return list(range(self.num_slots)) if slots is None else np.flatnonzero(slots).tolist()

    def reset(self, seeds, slots=None):
        self.events += [Event(i, None, int(seeds[i])) for i in self._chosen(slots)]
        return self.adapter.reset(seeds, slots)

    def step(self, actions, slots=None):
        kept = [actions.copy()] if self.is_vector else actions.copy()
        self.events += [Event(i, kept[i], None) for i in self._chosen(slots)]
        return self.adapter.step(actions, slots)


def make_population(case: Case, interactor: EnvInteractor) -> Population:
    """Policies of the case, trained as far as it wants them."""
    torch.manual_seed(0)
    space = interactor.action_space
    is_box = isinstance(space, gymnasium.spaces.Box)
    out = int(np.prod(space.shape)) if is_box else int(space.n)
    layers: list[nn.Module] = []
    for fan_in, fan_out in pairwise((interactor.encoder.shape[0], *case.hidden)):
        layers += [nn.Linear(fan_in, fan_out), nn.ReLU() if len(case.hidden) == 1 else nn.Tanh()]
    layers += [nn.Linear(case.hidden[-1], out), *([nn.Tanh()] if is_box else [])]
    sizes = {"pop_size": case.pop_size, "low_rank": case.low_rank}
    population = interactor.population(nn.Sequential(*layers), **sizes)
    for _ in range(case.generations):
        played = case.play(interactor, population)
        best = int(played.fitnesses.argmax())
        if played.lengths[best].double().mean() >= case.lasting:
            return population.with_individuals([population.individual_state(best)] * case.pop_size)
        population.evolve_(played.fitnesses)
    return population


def record(case: Case, envs: list[Any]) -> tuple[Population, list[Event]]:
    """Return a population, and what reaches the environments while it plays a generation."""
    with interact_with_env(envs) as interactor:
        population = make_population(case, interactor)
        (slots,) = interactor.players.entries
        slots.adapter = recorder = Recorder(slots.adapter, is_vector=len(envs) == 1)
        case.play(interactor, population)
    return population, recorder.events


def replay(events: list[Event], envs: list[Any], begin: Begin) -> float:
    """Return the seconds that the events take on bare environments."""
    start = time.perf_counter()
    for env, action, seed in events:
        if seed is None:
            envs[env].step(action)
        else:
            begin(envs[env], seed)
    return time.perf_counter() - start


@contextmanager
def bare_player(events: list[Event], made: Made, workers: int) -> Iterator[Callable[[], float]]:
    """Give what replays the events and returns the seconds: here, or in processes started once."""
    if not workers:
        yield partial(replay, events, *made)
        return
    context, channels = multiprocessing.get_context("fork"), []

    def serve(channel: Any, own: list[Event]) -> None:
        while channel.recv():
            channel.send(replay(own, *made))

    def play() -> float:
        for channel in channels:
            channel.send(True)
        return max([channel.recv() for channel in channels])

    for number in range(workers):
        channel, theirs = context.Pipe()
        arguments = (theirs, [event for event in events if event.env % workers == number])
        context.Process(target=serve, args=arguments, daemon=True).start()
        theirs.close()
        channels.append(channel)
    yield play
    for channel in channels:
        channel.send(False)


def take_turns(bare: Callable[[], float], ours: Callable[[], Evaluated], rounds: int) -> np.ndarray:
    """Return bare and our seconds, those in environment and forward, and steps; one row per round."""
    turns = []
    for _ in range(1 + rounds):  # the first starts workers and warms up
        seconds = bare()
        start = time.perf_counter()
        played = ours()
        turns.append([seconds, time.perf_counter() - start])
        turns[-1] += [played.seconds_env, played.seconds_forward, played.env_steps]
    return np.array(turns[1:])


def make_row(case: Case, workers: int, turns: np.ndarray, vector_steps: int) -> list[str]:
    bare, ours, env, forward, steps = turns.T
    total = ours * max(1, workers)
    rest = total - env - forward
    return [
        *(case.name, str(workers)),
        *(f"{np.median(steps / seconds):.0f}" for seconds in (bare, ours)),
        *(f"{np.median(bare / ours):.3f}", case.wanted),
        *(f"{np.median(part / total):.0%}" for part in (env, forward, rest)),
        f"{np.median(rest) / vector_steps * 1e6:.1f}" if vector_steps else "-",
    ]


def measure(case: Case, rounds: int, workers: Sequence[int]) -> list[list[str]]:
    """One row per number of workers; a vector environment can have none."""
    made = envs, _ = case.make()
    is_vector, rows = len(envs) == 1, []
    try:
        population, events = record(case, envs)
        vector_steps = is_vector * sum(event.seed is None for event in events)
        for count in [0] if is_vector else workers:
            with (
                interact_with_env(envs, num_workers=count) as interactor,
                bare_player(events, made, count) as bare,
            ):
                turns = take_turns(bare, partial(case.play, interactor, population), rounds)
            rows.append(make_row(case, count, turns, vector_steps))
    finally:
        close_all(envs)
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="part of a case's name")
    parser.add_argument("--workers", default="0,1,2", help="numbers of workers, 0 for none")
    options = parser.parse_args(arguments)
    workers = [int(number) for number in options.workers.split(",")]
    warnings.simplefilter("ignore")
    logging.getLogger("absl").setLevel(logging.ERROR)  # dm_control's, about a model of its own
    print(f"{machine_line()}, {options.rounds} rounds")
    rows = []
    for case in [case for case in CASES if options.only in case.name]:
        print(f"playing {case.name}", file=sys.stderr, flush=True)
        try:
            rows += measure(case, options.rounds, workers)
        except (ImportError, NotImplementedError, gymnasium.error.DependencyNotInstalled) as error:
            print(f"left out {case.name}: {error}")
    print_table(HEADER, rows)


if __name__ == "__main__":
    main()
