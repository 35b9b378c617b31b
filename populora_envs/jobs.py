"""Jobs: who plays which episode of which environment from which seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple


class Job(NamedTuple):
    """One episode of one individual."""

    individual: int
    episode: int
    seed: int


TakeJob = Callable[[], Job | None]


def make_jobs(pop_size: int, episode_seeds: Sequence[int]) -> list[Job]:
    """Return every (individual, episode), episode by episode: neighbours face one start state."""
    return [
        Job(individual, episode, seed)
        for episode, seed in enumerate(episode_seeds)
        for individual in range(pop_size)
    ]


class JobQueue:
    """A list of jobs that is handed out once, in order."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._jobs = jobs
        self._next = 0

    def take(self) -> Job | None:
        """Return the next job, None when all are taken."""
        if self._next >= len(self._jobs):
            return None
        self._next += 1
        return self._jobs[self._next - 1]
