"""Judges: what a generation scores, and what a few individuals score on fresh episodes."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch
from torch import Tensor

from populora_envs.adapter import noted
from populora_envs.calls import call_on_ranks
from populora_envs.fitness import nonfinite_last
from populora_envs.seeds import Purpose, job_seeds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from populora_envs.evaluation import Evaluated, Evaluation
    from populora_envs.fitness import FitnessFunction
    from populora_envs.population import Population


class Judged(NamedTuple):
    """What a generation scored."""

    fitnesses: Tensor
    """float32 `[P]`; -inf where it was not finite."""
    episodes: int
    """Of all individuals together; calls of a fitness function."""
    cost: int
    """In the judge's unit: env steps, or calls of a fitness function."""
    env_steps: int
    seconds_env: float
    seconds_forward: float
    evaluated: Evaluated | None = None
    """All that the episodes gave, where some were played."""


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
        episodes = range(self.num_episodes)
        seeds = job_seeds(self.seed, Purpose.SELECTION, population.generation, episodes)
        evaluated = self.evaluation.of_population(population, seeds)
        return Judged(
            evaluated.fitnesses,
            evaluated.lengths.numel(),
            evaluated.env_steps,
            evaluated.env_steps,
            evaluated.seconds_env,
            evaluated.seconds_forward,
            evaluated,
        )

    def trial(self, population: Population, purpose: Purpose, episodes: Sequence[int]) -> Trial:
        """Play fresh episodes."""
        seeds = job_seeds(self.seed, purpose, 0, episodes)
        with noted(f"in a trial of generation {population.generation}"):
            evaluated = self.trials(
                population.routed, population.pop_size, seeds, digest=population.digest
            )
        return Trial(evaluated.returns, evaluated.env_steps, evaluated.env_steps)


class FunctionJudge:
    """Calls a fitness function of the user; a fresh episode is a call with another `eval_seed`.

    A function that does not look at it, draws from no global generator and gives the same twice is called
    no further.
    """

    def __init__(self, fitness: FitnessFunction) -> None:
        self.fitness = fitness

    def judge(self, population: Population) -> Judged:
        """Call the function for everyone."""
        start = perf_counter()
        values, _ = call_on_ranks(self.fitness, population)
        seconds = perf_counter() - start
        count = population.pop_size
        return Judged(nonfinite_last(values), count, count, 0, seconds, 0.0)

    def trial(self, population: Population, purpose: Purpose, episodes: Sequence[int]) -> Trial:
        """Call the function once per episode on a population of its own."""
        columns: list[Tensor] = []
        for episode in episodes:
            # Generations count from 0; these never meet them.
            population.generation = -1 - (episode * len(Purpose) + purpose)
            values, may_draw = call_on_ranks(self.fitness, population)
            columns.append(values.double())
            if not may_draw and len(columns) == 2 and torch.equal(*columns):
                break
        calls = len(columns) * population.pop_size
        columns += columns[-1:] * (len(episodes) - len(columns))
        return Trial(torch.stack(columns, dim=1), calls, 0)
