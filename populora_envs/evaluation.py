"""Evaluation: jobs in, fitness out; the same path for populations, champions and policies."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from populora_envs.adapter import noted
from populora_envs.fitness import nonfinite_last
from populora_envs.ranks import ranks
from populora_envs.sharing import play_together
from populora_envs.stage import Task

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np

    from populora_envs.actor import Actor
    from populora_envs.normalizer import Moments
    from populora_envs.players import Players
    from populora_envs.population import Population
    from populora_envs.rollout import Forward
    from populora_envs.stage import Shown
    from populora_envs.teams import Info, JobResult


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
    """Spent in the simulator, added up over workers."""
    seconds_forward: float
    """Spent on policies and actions, added up over workers."""
    finals: list[np.ndarray | None]
    """Of each job, in the order of the jobs, the encoded observation that its last step gave; None for
    images, and where a simulator that resets itself does not show it."""
    infos: list[Info | None]
    """Of each job, what the simulator told of its last step, where that was asked for."""


class Evaluation:
    """Plays jobs on all entries of a dict of environments.

    Args:
        players: who plays them.
        actor: from outputs to actions.
        horizons: most steps of an episode, per entry.
        device: of the policies.
        sample: whether heads draw their actions; None leaves it to the head.
        copies: most copies of an id, class or factory that its jobs ask for; None means one per job.
    """

    def __init__(
        self,
        players: Players,
        actor: Actor,
        horizons: Sequence[int],
        device: torch.device,
        sample: bool | None,
        copies: int | None = None,
    ) -> None:
        self.players, self.actor, self.device = players, actor, device
        self.horizons, self.copies = tuple(horizons), copies
        self.draws = actor.draws if sample is None else sample

    def __call__(
        self,
        forward: Forward,
        pop_size: int,
        episode_seeds: Sequence[int],
        *,
        with_moments: bool = False,
        with_infos: bool = False,
        digest: Callable[[], Any] | None = None,
    ) -> Evaluated:
        """Play every individual on every seed in every entry.

        With `digest`, all ranks of the job play together; without it this process plays alone. Where user code draws from global generators, a warning says that such numbers depend on how
        episodes are spread.
        """
        task = Task(pop_size, tuple(episode_seeds), self.horizons, self.draws, with_moments)
        task = task._replace(with_infos=with_infos)
        shown = self._play(forward, task, digest)
        if shown.drew_globals and not self.actor.warned_of_globals:
            self.actor.warned_of_globals = True
            _warn_of_globals()
        results = [sorted(e, key=lambda result: task.number_of(result.job)) for e in shown.results]
        return _gathered(results, pop_size, shown.seconds_env, shown.seconds_forward)

    def _play(self, forward: Forward, task: Task, digest: Callable[[], Any] | None) -> Shown:
        copies = self.copies or task.num_jobs
        together = None if digest is None else ranks()
        if together is None or digest is None:
            return self.players.play(forward, task, self.actor, self.device, copies)
        own = -(-copies // together.size)
        return play_together(
            together,
            lambda share: self.players.play(forward, share, self.actor, self.device, own),
            task,
            len(self.horizons),
            digest,
        )

    def of_population(self, population: Population, episode_seeds: Sequence[int]) -> Evaluated:
        """Play a population; what it saw is proposed to its normaliser, where it has one.

        Episodes with an observation that is not finite are left out of the statistics.
        """
        population.sync_()
        normalizer = population.normalizer
        with noted(f"in generation {population.generation}"):
            evaluated = self(
                population.routed,
                population.pop_size,
                episode_seeds,
                with_moments=normalizer is not None
                or (population.watched and self.players.encoder.is_vector),
                with_infos=population.watched,
                digest=population.digest,
            )
        if normalizer is not None:
            normalizer.propose_(m for m in evaluated.moments if m.squares.isfinite().all())
        return evaluated


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
        finals=[r.final for r in every],
        infos=[r.info for r in every],
    )


def _by_individual(values: list[Any], pop_size: int, dtype: torch.dtype) -> Tensor:
    return torch.tensor(values, dtype=dtype).reshape(-1, pop_size).T.contiguous()


def _warn_of_globals() -> None:
    warnings.warn(
        "the action function, the policy or the environment drew from a global generator of Python, "
        "NumPy or torch: such numbers depend on how episodes are spread over slots",
        stacklevel=4,
    )
