"""Judges: what a generation scores, and what a few individuals score on fresh episodes."""

from __future__ import annotations

from contextlib import contextmanager
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch
from torch import Tensor

from populora_envs.fitness import call_fitness
from populora_envs.seeds import Purpose, job_seed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from populora_envs.evaluation import Evaluation
    from populora_envs.fitness import FitnessFunction
    from populora_envs.population import Population


class Judged(NamedTuple):
    """What a generation scored."""

    fitnesses: Tensor
    """float32 `[P]`; -inf where it was not finite."""
    cost: int
    """In the judge's unit: env steps, or calls of a fitness function."""
    env_steps: int
    seconds_env: float
    seconds_forward: float


class Trial(NamedTuple):
    """What individuals scored on fresh episodes."""

    returns: Tensor
    """float64 `[P, episodes]`."""
    cost: int
    env_steps: int


class Judge(Protocol):
    """Scores populations."""

    def judge(self, population: Population) -> Judged:
        """Score everyone on the episodes of this generation."""
        ...

    def trial(self, population: Population, purpose: Purpose, episodes: Sequence[int]) -> Trial:
        """Score everyone on numbered episodes that no generation plays; heads do not draw."""
        ...


class RolloutJudge:
    """Plays episodes.

    Args:
        evaluation: of a generation.
        trials: the same without drawing actions.
        seed: of the episodes.
        num_episodes: of each individual in a generation.
    """

    def __init__(
        self, evaluation: Evaluation, trials: Evaluation, seed: int, num_episodes: int
    ) -> None:
        self.evaluation, self.trials = evaluation, trials
        self.seed, self.num_episodes = seed, num_episodes

    def judge(self, population: Population) -> Judged:
        """Play the generation; what it saw is proposed to the normaliser."""
        seeds = [
            job_seed(self.seed, Purpose.SELECTION, population.generation, episode)
            for episode in range(self.num_episodes)
        ]
        with noted(f"in generation {population.generation}"):
            evaluated = self.evaluation.of_population(population, seeds)
        return Judged(
            evaluated.fitnesses,
            evaluated.env_steps,
            evaluated.env_steps,
            evaluated.seconds_env,
            evaluated.seconds_forward,
        )

    def trial(self, population: Population, purpose: Purpose, episodes: Sequence[int]) -> Trial:
        """Play fresh episodes."""
        seeds = [job_seed(self.seed, purpose, 0, episode) for episode in episodes]
        with noted(f"in a trial of generation {population.generation}"):
            evaluated = self.trials(population.routed, population.pop_size, seeds)
        return Trial(evaluated.returns, evaluated.env_steps, evaluated.env_steps)


@contextmanager
def noted(note: str) -> Iterator[None]:
    """Add `note` to an error that comes out of the block."""
    try:
        yield
    except Exception as error:
        error.add_note(note)
        raise


class FunctionJudge:
    """Calls a fitness function of the user; a fresh episode is a call with another `eval_seed`."""

    def __init__(self, fitness: FitnessFunction) -> None:
        self.fitness = fitness

    def judge(self, population: Population) -> Judged:
        """Call the function for everyone."""
        start = perf_counter()
        values = self._call(population)
        seconds = perf_counter() - start
        fitnesses = torch.where(values.isfinite(), values, -torch.inf)
        return Judged(fitnesses, population.pop_size, 0, seconds, 0.0)

    def trial(self, population: Population, purpose: Purpose, episodes: Sequence[int]) -> Trial:
        """Call the function once per episode on a population of its own."""
        columns = []
        for episode in episodes:
            # Generations count from 0; these never meet them.
            population.generation = -1 - (episode * len(Purpose) + purpose)
            columns.append(self._call(population).double())
        returns = torch.stack(columns, dim=1)
        return Trial(returns, returns.numel(), 0)

    def _call(self, population: Population) -> Tensor:
        return call_fitness(self.fitness, population, range(population.pop_size))
