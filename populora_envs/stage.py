"""A stage: the slots of every entry of the environments, on which one process plays its share of jobs."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

from populora_envs.invariance import one_thread
from populora_envs.jobs import JobQueue, make_jobs
from populora_envs.rollout import play
from populora_envs.seeds import derive_seed, seeded_globals

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    from torch import Tensor

    from populora_envs.actor import Actor
    from populora_envs.jobs import Job, TakeJob
    from populora_envs.meeting import Counter
    from populora_envs.rollout import Forward
    from populora_envs.slots import Slots
    from populora_envs.teams import JobResult


class Share(NamedTuple):
    """Which of all jobs this rank plays: those that it takes from a counter before the others do.

    Where environments cannot be seeded per episode, it has every size-th one.
    """

    rank: int
    size: int
    counter: Counter
    only: list[list[int]] | None
    """Numbers of the jobs of each entry that are left to play; None means all."""


class Task(NamedTuple):
    """What an evaluation plays: every individual on every seed in every entry."""

    pop_size: int
    episode_seeds: tuple[int, ...]
    horizons: tuple[int, ...]
    """Most steps of an episode, per entry."""
    draws: bool
    """Whether heads draw their actions."""
    with_moments: bool
    """Whether the moments of the observations are wanted."""
    share: Share | None = None
    """Of this rank, None where there is one."""
    with_infos: bool = False
    """Whether it is wanted what the simulator told of the last step of each job."""

    @property
    def num_jobs(self) -> int:
        """How many jobs each entry has."""
        return self.pop_size * len(self.episode_seeds)

    def number_of(self, job: Job) -> int:
        """Return where a job stands in `jobs`."""
        return job.episode * self.pop_size + job.individual

    def jobs(self) -> list[Job]:
        """Return the jobs of each entry."""
        return make_jobs(self.pop_size, self.episode_seeds)

    def queue(self, entry: int) -> list[Job]:
        """Return the jobs of an entry that are to be played."""
        jobs = self.jobs()
        if self.share is None or self.share.only is None:
            return jobs
        return [jobs[number] for number in self.share.only[entry]]

    def taker(self, entry: int, *, seeds_slots: bool, worker: int = 0, workers: int = 1) -> TakeJob:
        """Return what hands out the jobs of an entry to this process.

        Args:
            entry: its number.
            seeds_slots: whether it does not matter who plays which.
            worker: number of this process on its rank.
            workers: how many play on each rank.
        """
        jobs, share = self.queue(entry), self.share
        if share is None or not seeds_slots:
            rank, size = (0, 1) if share is None else (share.rank, share.size)
            return JobQueue(jobs[rank::size][worker::workers]).take
        counter = share.counter

        def take() -> Job | None:
            number = counter.next(str(entry))
            return jobs[number] if number < len(jobs) else None

        return take

    def at_once(self, entry: int, workers: int = 1) -> int | None:
        """Return how many jobs of an entry one process begins with, so that all get some."""
        if self.share is None and workers == 1:
            return None
        ranks = 1 if self.share is None else self.share.size
        return -(-len(self.queue(entry)) // (ranks * workers))

    def global_seed(self, *who: int) -> int:
        """Return a seed for the global generators that user code may draw from."""
        who = who if self.share is None else (self.share.rank, *who)
        return derive_seed("globals", *self.episode_seeds, *who) % 2**31


class Shown(NamedTuple):
    """What a stage has played."""

    results: list[list[JobResult]]
    """Of each entry, in the order in which the jobs ended."""
    seconds_env: float
    seconds_forward: float
    drew_globals: bool
    """Whether user code drew from global generators."""


class Stage:
    """Plays the jobs that it takes, entry by entry.

    Args:
        entries: the slots of each entry.
        actor: from outputs to actions.
    """

    def __init__(self, entries: Sequence[Slots], actor: Actor) -> None:
        self.entries, self.actor = entries, actor

    def play(
        self,
        forward: Forward,
        task: Task,
        take: Callable[[int], TakeJob],
        global_seed: int,
        seats: np.ndarray | None = None,
        at_once: Sequence[int | None] | None = None,
    ) -> Shown:
        """Play until no entry has a job left.

        User code that draws from global generators does so under ones seeded here; they are restored
        afterwards.

        Args:
            forward: as `rollout.play` takes it.
            task: what to play.
            take: gives, for the number of an entry, the function that hands out its jobs.
            global_seed: of the global generators.
            seats: as `rollout.play` takes it, for as many slots as the largest entry has.
            at_once: most slots that act, per entry.
        """

        def act(output: Any, keys: Callable[[], Tensor], count: int) -> tuple[Any, np.ndarray]:
            return self.actor.act(output, keys() if task.draws else None, count)

        frozen = getattr(forward, "frozen", nullcontext)
        with one_thread(), frozen(), seeded_globals(global_seed) as drew:
            played = [
                play(
                    slots,
                    forward,
                    act,
                    take(i),
                    most,
                    with_moments=task.with_moments,
                    with_infos=task.with_infos,
                    seats=seats,
                    at_once=None if at_once is None else at_once[i],
                )
                for i, (slots, most) in enumerate(zip(self.entries, task.horizons, strict=True))
            ]
        return Shown(
            [entry.results for entry in played],
            sum(entry.seconds_env for entry in played),
            sum(entry.seconds_forward for entry in played),
            drew[0],
        )
