"""Teams: slots that are the agents of one environment, all played by one individual."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, NamedTuple

from populora_envs.normalizer import merge_moments
from populora_envs.seeds import derive_seed

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from populora_envs.jobs import Job
    from populora_envs.normalizer import Moments


Info = dict[str, "float | np.ndarray"]
"""Numbers and small arrays by their names."""


class JobResult(NamedTuple):
    """What one episode gave."""

    job: Job
    episode_return: float
    """Sum of the rewards; nan where an action was not finite."""
    length: int
    """Steps from the reset to the end."""
    end: str
    """``"terminated"``, ``"truncated"`` or ``"horizon"``."""
    moments: Moments | None
    """Of the encoded observations the policy acted on, where they were asked for."""
    final: np.ndarray | None = None
    """The encoded observation of the last step; None for images, nested ones, and where a simulator
    that resets itself does not show it."""
    info: Info | None = None
    """The numbers that the simulator told of the last step, where they were asked for."""


_ENDS = ("terminated", "truncated", "horizon")


class Teams:
    """Puts the results of the members of a team together.

    Args:
        weights: of the members' returns in the return of the team.
    """

    def __init__(self, weights: Sequence[float]) -> None:
        self.weights = tuple(weights)
        self._waiting: dict[int, dict[int, JobResult]] = {}

    def seeds(self, seed: int) -> list[int]:
        """Return what the noise of each member's actions is drawn from; of the first, the job's seed."""
        return [seed, *(derive_seed("agent", seed, k) for k in range(1, len(self.weights)))]

    def note(self, slot: int, result: JobResult) -> JobResult | None:
        """Take the result of a member; return that of its team when this was the last one."""
        if len(self.weights) == 1:
            return result
        team, member = divmod(slot, len(self.weights))
        members = self._waiting.setdefault(team, {})
        members[member] = result
        if len(members) < len(self.weights):
            return None
        del self._waiting[team]
        return self._together([members[k] for k in range(len(self.weights))])

    def _together(self, members: Sequence[JobResult]) -> JobResult:
        weighted = zip(self.weights, members, strict=True)
        moments = [result.moments for result in members if result.moments is not None]
        return JobResult(
            members[0].job,
            sum(weight * result.episode_return for weight, result in weighted),
            max(result.length for result in members),
            max((result.end for result in members), key=_ENDS.index),
            reduce(merge_moments, moments) if moments else None,
            members[0].final,
            members[0].info,
        )
