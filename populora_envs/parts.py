"""Results on their way from one process to another: column by column, for many small things travel slowly."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from populora_envs.normalizer import Moments
from populora_envs.teams import JobResult

if TYPE_CHECKING:
    from collections.abc import Sequence

    from populora_envs.jobs import Job
    from populora_envs.stage import Task
    from populora_envs.teams import Info


class Part(NamedTuple):
    """Results of one entry."""

    numbers: np.ndarray
    """Of the jobs."""
    returns: np.ndarray
    lengths: np.ndarray
    ends: list[str]
    counts: list[int]
    """Observations in the moments."""
    moments: np.ndarray | None
    """float64 `[results, 2, D]`: mean and squares."""
    finals: np.ndarray | None
    """`[results, D]`, where all of them are known."""
    infos: list[Info | None]


def columns(results: Sequence[JobResult], task: Task) -> Part:
    """Return results of one entry as columns."""
    known = [result.moments for result in results if result.moments is not None]
    finals = [result.final for result in results if result.final is not None]
    moments = [torch.stack([moment.mean, moment.squares]) for moment in known]
    return Part(
        np.array([task.number_of(r.job) for r in results], dtype=np.int64),
        np.array([r.episode_return for r in results]),
        np.array([r.length for r in results], dtype=np.int64),
        [r.end for r in results],
        [moment.count for moment in known],
        torch.stack(moments).numpy() if moments else None,
        np.stack(finals) if finals and len(finals) == len(results) else None,
        [result.info for result in results],
    )


def rows(part: Part, jobs: list[Job]) -> dict[int, JobResult]:
    """Return the results of a part by the numbers of their jobs."""
    found: dict[int, JobResult] = {}
    for i, number in enumerate(part.numbers.tolist()):
        moments = None
        length = int(part.lengths[i])
        if part.moments is not None:
            mean, squares = torch.from_numpy(part.moments[i]).unbind()
            moments = Moments(part.counts[i], mean, squares)
        final = None if part.finals is None else part.finals[i]
        total = float(part.returns[i])
        found[number] = JobResult(
            jobs[number], total, length, part.ends[i], moments, final, part.infos[i]
        )
    return found


class Score:
    """What has come back of an evaluation so far.

    Args:
        jobs: of each entry.
        num_entries: of a dict of environments.
    """

    def __init__(self, jobs: list[Job], num_entries: int) -> None:
        self._jobs = jobs
        self._found: list[dict[int, JobResult]] = [{} for _ in range(num_entries)]

    def add(self, parts: Sequence[Part]) -> None:
        """Take over what somebody has played."""
        for entry, part in zip(self._found, parts, strict=True):
            entry.update(rows(part, self._jobs))

    def left(self) -> list[list[int]]:
        """Return the numbers of the jobs of each entry that nobody has played."""
        return [[i for i in range(len(self._jobs)) if i not in entry] for entry in self._found]

    def results(self) -> list[list[JobResult]]:
        """Return everything, entry by entry."""
        return [list(entry.values()) for entry in self._found]
