"""Env-steps per second: a simulator alone, and with a population in it."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING

from populora_envs.interactor import EnvInteractor
from populora_envs.processes import usable_cores
from populora_envs.progress import counted
from populora_envs.settings import above_zero, at_least
from populora_envs.sources import open_sources
from populora_envs.testing.behaviour import measure_speed

if TYPE_CHECKING:
    from collections.abc import Iterator

EPISODES = 32
"""Of each individual in an evaluation: policies that know nothing end many episodes soon."""


def measured(env: str, num_envs: int, seconds: float) -> Iterator[str]:
    """Measure, and yield a line for each figure as it comes.

    Args:
        env: an id.
        num_envs: environments, and individuals that play in them.
        seconds: of each measurement, above 0.
    """
    at_least("num_envs", num_envs, 1)
    above_zero("seconds", seconds)
    bare = _bare(env, num_envs)
    yield f"{env}, {num_envs} environments"
    yield f"  simulator alone, random actions, one process: {counted(bare)} steps/s"
    for workers in dict.fromkeys((0, usable_cores())):
        rate = _played(env, num_envs, workers, seconds)
        where = f"{workers} workers" if workers else "this process"
        yield f"  {num_envs} individuals, {where}: {counted(rate)} steps/s, {rate / bare:.2f} of that"


def _bare(env: str, num_envs: int) -> float:
    (source,) = open_sources(env, num_envs).values()
    try:
        return measure_speed(source.adapter)
    finally:
        source.close()


def _played(env: str, num_envs: int, workers: int, seconds: float) -> float:
    """Return the rate of whole evaluations of a new population, the first one left out."""
    with EnvInteractor(env, num_envs=num_envs, num_workers=workers) as interactor:
        population = interactor.population(pop_size=num_envs)
        interactor.rollout(population, num_episodes=EPISODES)
        steps, start = 0, perf_counter()
        while perf_counter() - start < seconds:
            population.generation += 1
            steps += interactor.rollout(population, num_episodes=EPISODES).env_steps
        return steps / (perf_counter() - start)
