"""Jobs that all ranks play together, each some of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from populora_envs.lockstep import check_digests
from populora_envs.parts import Part, Score, columns
from populora_envs.stage import Share, Shown

if TYPE_CHECKING:
    from collections.abc import Callable

    from populora_envs.ranks import Ranks
    from populora_envs.stage import Task


class _Played(NamedTuple):
    """What one rank has played."""

    parts: list[Part]
    seconds_env: float
    seconds_forward: float
    drew_globals: bool
    digest: Any


def play_together(
    ranks: Ranks,
    play: Callable[[Task], Shown],
    task: Task,
    num_entries: int,
    digest: Callable[[], Any],
) -> Shown:
    """Play a task on all ranks; return all results on each of them.

    Jobs that nobody has played in the end, for a worker of some rank has died, are played again.

    Args:
        ranks: of the job.
        play: plays the share of this rank.
        task: equal on all ranks.
        num_entries: of the dict of environments.
        digest: gives what must be equal on all ranks, or they have drifted apart.

    Raises:
        RankFailedError: where another rank has failed; on the rank itself its own error.
        RuntimeError: where ranks have drifted apart, or jobs are lost again and again.
    """
    score = Score(task.jobs(), num_entries)
    told: list[_Played] = []
    left: list[list[int]] | None = None
    while left is None or any(left):
        share = Share(ranks.rank, ranks.size, ranks.counter(), left)
        round_ = ranks.together(lambda: _mine(play, task._replace(share=share), digest))  # noqa: B023
        check_digests([played.digest for played in round_])
        for played in round_:
            score.add(played.parts)
        told += round_
        before, left = left, score.left()
        if any(left) and left == before:
            message = f"the episodes {left} were lost twice: workers die while they play them"
            raise RuntimeError(message)
    return Shown(
        score.results(),
        sum(played.seconds_env for played in told),
        sum(played.seconds_forward for played in told),
        any(played.drew_globals for played in told),
    )


def _mine(play: Callable[[Task], Shown], task: Task, digest: Callable[[], Any]) -> _Played:
    shown = play(task)
    parts = [columns(results, task) for results in shown.results]
    return _Played(parts, shown.seconds_env, shown.seconds_forward, shown.drew_globals, digest())
