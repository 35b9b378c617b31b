"""Evaluation: jobs in, fitness out; the same path for populations, champions and policies."""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from populora_envs.adapter import noted
from populora_envs.fitness import nonfinite_last
from populora_envs.jobs import JobQueue, make_jobs
from populora_envs.rollout import JobResult, play
from populora_envs.seeds import derive_seed, seeded_globals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy as np

    from populora_envs.jobs import Job
    from populora_envs.normalizer import Moments
    from populora_envs.policy import Actor
    from populora_envs.population import Population
    from populora_envs.rollout import Forward
    from populora_envs.slots import Slots


class Evaluated(NamedTuple):
    """What an evaluation gave.

    P is the number of individuals, E that of episodes, times the entries of a dict of environments.
    """

    fitnesses: Tensor
    """float32 `[P]`, the mean return; -inf where a reward or an action was not finite."""
    returns: Tensor
    """float64 `[P, E]`; nan where an action was not finite."""
    lengths: Tensor
    """int64 `[P, E]`, steps."""
    ends: list[list[str]]
    """`[P][E]`: ``"terminated"``, ``"truncated"`` or ``"horizon"``."""
    moments: list[Moments]
    """Of the observations of each job, in the order of the jobs, where they were asked for."""
    env_steps: int
    seconds_env: float
    seconds_forward: float


class Evaluation:
    """Plays jobs on all entries of a dict of environments.

    Args:
        entries: the slots of each entry.
        actor: from outputs to actions.
        horizon: most steps of an episode, per entry.
        sample: whether heads draw their actions; None leaves it to the head.
    """

    def __init__(
        self, entries: Sequence[Slots], actor: Actor, horizon: Sequence[int], sample: bool | None
    ) -> None:
        self.entries = entries
        self.actor = actor
        self.horizon = horizon
        self.draws = actor.draws if sample is None else sample

    def __call__(
        self,
        forward: Forward,
        pop_size: int,
        episode_seeds: Sequence[int],
        *,
        with_moments: bool = False,
    ) -> Evaluated:
        """Play every individual on every seed in every entry.

        User code that draws from global generators does so under ones seeded here; they are restored
        afterwards, and a warning says that such numbers depend on how episodes are spread.
        """
        jobs = make_jobs(pop_size, episode_seeds)
        global_seed = derive_seed("globals", *episode_seeds) % 2**31
        with _one_thread(), seeded_globals(global_seed) as drew:
            played = [
                play(
                    slots, forward, self._act, JobQueue(jobs).take, most, with_moments=with_moments
                )
                for slots, most in zip(self.entries, self.horizon, strict=True)
            ]
        if drew[0] and not self.actor.warned_of_globals:
            self.actor.warned_of_globals = True
            _warn_of_globals()
        results = [_in_order(entry.results, jobs) for entry in played]
        seconds = (sum(p.seconds_env for p in played), sum(p.seconds_forward for p in played))
        return _gathered(results, pop_size, *seconds)

    def of_population(self, population: Population, episode_seeds: Sequence[int]) -> Evaluated:
        """Play a population; what it saw is proposed to its normaliser, where it has one.

        Episodes with an observation that is not finite are left out of the statistics.
        """
        normalizer = population.normalizer
        with noted(f"in generation {population.generation}"):
            evaluated = self(
                population.routed,
                population.pop_size,
                episode_seeds,
                with_moments=normalizer is not None,
            )
        if normalizer is not None:
            normalizer.propose_(m for m in evaluated.moments if m.squares.isfinite().all())
        return evaluated

    def _act(self, output: Any, keys: Callable[[], Tensor], count: int) -> tuple[Any, np.ndarray]:
        return self.actor.act(output, keys() if self.draws else None, count)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Let torch use one thread, as numbers may depend on how many share a product.

    Policies of a few rows are also faster so: threads that wait for a busy core cost milliseconds.
    """
    count = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(count)


def _in_order(results: list[JobResult], jobs: list[Job]) -> list[JobResult]:
    by_job = {result.job: result for result in results}
    return [by_job[job] for job in jobs]


def _gathered(
    results: list[list[JobResult]], pop_size: int, seconds_env: float, seconds_forward: float
) -> Evaluated:
    """Put the results of all entries together; jobs run episode by episode in each entry."""
    every = [result for entry in results for result in entry]
    returns = _by_individual([r.episode_return for r in every], pop_size, torch.float64)
    lengths = _by_individual([r.length for r in every], pop_size, torch.int64)
    mean = returns.mean(dim=1).to(torch.float32)
    return Evaluated(
        fitnesses=nonfinite_last(mean),
        returns=returns,
        lengths=lengths,
        ends=[[r.end for r in every[i::pop_size]] for i in range(pop_size)],
        moments=[r.moments for r in every if r.moments is not None],
        env_steps=int(lengths.sum()),
        seconds_env=seconds_env,
        seconds_forward=seconds_forward,
    )


def _by_individual(values: list[Any], pop_size: int, dtype: torch.dtype) -> Tensor:
    return torch.tensor(values, dtype=dtype).reshape(-1, pop_size).T.contiguous()


def _warn_of_globals() -> None:
    warnings.warn(
        "the action function, the policy or the environment drew from a global generator of Python, "
        "NumPy or torch: such numbers depend on how episodes are spread over slots",
        stacklevel=4,
    )
