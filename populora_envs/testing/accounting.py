"""Return and length of episodes: what `Slots` makes of an adapter against loops by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from populora_envs.adapter import team_of
from populora_envs.slots import Slots
from populora_envs.spaces import Encoder
from populora_envs.testing.driver import ActionTable
from populora_envs.testing.ledger import Counted, Ledger
from populora_envs.testing.rules import require

if TYPE_CHECKING:
    from collections.abc import Sequence

    from populora_envs.adapter import Adapter, Transition

NUM_KEPT = 10
"""Steps whose observations are kept until the end of a play."""

FIRST_SEED = 500


def check_accounting(adapter: Adapter, steps: int) -> None:
    """Check that episodes are counted as loops by hand count them, to the last bit.

    Half as many again are played as there is room for, so slots begin anew beside others that are in
    the middle of an episode, and some rest in the end.

    Args:
        adapter: whose episodes are played.
        steps: most steps of an episode.
    """
    num_teams = adapter.num_slots // len(team_of(adapter))
    num_jobs = num_teams + (num_teams + 1) // 2
    table = ActionTable(adapter.action_space, adapter.num_slots * steps)
    played = _play(adapter, num_jobs, table, steps)
    require(
        all(np.array_equal(batch, copy, equal_nan=True) for batch, copy in played.kept),
        "observations that were kept stay what they were when the simulator goes on",
    )
    _require_equal(played.by_slots, played.by_hand, "a loop by hand over the same steps")
    if adapter.seeds_slots:
        _check_again(adapter, played, num_jobs, table, steps)


class _Played(NamedTuple):
    """Episodes of the members of a team one after another, job by job, counted in two ways."""

    by_slots: list[Counted]
    by_hand: list[Counted]
    kept: list[tuple[np.ndarray, np.ndarray]]
    """Observations `[N, *obs]` of the first steps, and what they were when they came."""


def _check_again(
    adapter: Adapter, played: _Played, num_jobs: int, table: ActionTable, horizon: int
) -> None:
    again = _play(adapter, num_jobs, table, horizon)
    pairs = zip(played.kept, again.kept, strict=True)
    require(
        all(np.array_equal(one[0], other[0], equal_nan=True) for one, other in pairs),
        "with seeds_slots observations that were kept are those of a second play",
    )
    _require_equal(played.by_slots, again.by_slots, "a second play")
    team = len(team_of(adapter))
    for job in sorted({0, 1, num_jobs - 1} & set(range(num_jobs))):
        alone = _play_alone(adapter, job, table, horizon)
        inside = played.by_slots[job * team : (job + 1) * team]
        _require_equal(inside, alone, "a loop by hand that plays it alone, in another slot")


def _require_equal(counted: Sequence[Counted], other: Sequence[Counted], whose: str) -> None:
    require(
        len(counted) == len(other), f"{len(counted)} episodes begin, {whose} found {len(other)}"
    )
    for one, two in zip(counted, other, strict=True):
        require(
            np.array_equal(one, two, equal_nan=True),
            f"an episode has one return and length: the core counted {_words(one)}, {whose} "
            f"{_words(two)}",
        )


def _words(counted: Counted) -> str:
    end = "terminated" if counted.terminated else "truncated" if counted.truncated else "cut"
    return f"{counted.total!r} in {counted.length} steps ({end})"


def _numbers(job: np.ndarray | int, member: np.ndarray, length: np.ndarray | int) -> np.ndarray:
    """Return the numbers of the actions in the table: they depend on job, member and step alone."""
    numbers: np.ndarray = 131 * np.asarray(job) + 17 * member + length
    return numbers


class Watched:
    """An adapter whose steps are counted by hand on their way.

    Args:
        adapter: the one that does the work.
        ledger: what counts.
    """

    def __init__(self, adapter: Adapter, ledger: Ledger) -> None:
        self.num_slots = adapter.num_slots
        self.observation_space, self.action_space = adapter.observation_space, adapter.action_space
        self.autoreset, self.seeds_slots = adapter.autoreset, adapter.seeds_slots
        self.time_limit, self.team = adapter.time_limit, team_of(adapter)
        self._adapter, self._ledger = adapter, ledger

    def reset(self, seeds: Sequence[int] | None = None, slots: np.ndarray | None = None) -> Any:
        """Reset the adapter."""
        self._ledger.reset(slots)
        return self._adapter.reset(seeds, slots)

    def step(self, actions: Any, slots: np.ndarray | None = None) -> Transition:
        """Step the adapter."""
        given = self._adapter.step(actions, slots)
        self._ledger.step(given.reward, given.terminated, given.truncated, slots)
        return given

    def close(self) -> None:
        """Close the adapter."""
        self._adapter.close()


def _play(adapter: Adapter, num_jobs: int, table: ActionTable, horizon: int) -> _Played:
    ledger = Ledger(adapter.num_slots, adapter.autoreset, horizon)
    play = _Play(Watched(adapter, ledger), num_jobs, table, horizon)
    play.run()
    size = num_jobs * play.slots.team
    by_hand = [episode.counted for episode in ledger.begun if episode.length]
    return _Played(play.counted, by_hand[:size], play.kept)


class _Play:
    """Jobs played in `Slots`: job k begins from the k-th seed and ends at the horizon."""

    def __init__(self, adapter: Adapter, num_jobs: int, table: ActionTable, horizon: int) -> None:
        count = adapter.num_slots
        self.slots = Slots(adapter, Encoder(adapter.observation_space), torch.device("cpu"))
        self.table, self.horizon = table, horizon
        self.counted = [Counted(0.0, 0, terminated=False, truncated=False)] * (
            num_jobs * self.slots.team
        )
        self.kept: list[tuple[np.ndarray, np.ndarray]] = []
        self._waiting = iter(range(num_jobs))
        self._job = np.zeros(count, dtype=np.int64)
        self._member = np.arange(count) % self.slots.team
        self._total, self._length = np.zeros(count), np.zeros(count, dtype=np.int64)

    def run(self) -> None:
        """Play all jobs."""
        while True:
            if self.slots.may_begin():
                self._begin()
            if not self.slots.num_acting:
                return
            self._step()

    def _begin(self) -> None:
        started = np.zeros(self.slots.num_slots, dtype=bool)
        size = self.slots.team
        ready = np.flatnonzero(self.slots.ready())[::size].tolist()
        for slot, job in zip(ready, self._waiting, strict=False):
            started[slot : slot + size] = True
            self._job[slot : slot + size] = job
        self._total[started], self._length[started] = 0.0, 0
        if started.any():
            self.slots.begin(started, (FIRST_SEED + self._job).tolist())

    def _step(self) -> None:
        slots = self.slots
        if len(self.kept) < NUM_KEPT:
            batch = slots.batch(slice(None)).numpy()
            self.kept.append((batch, batch.copy()))
        given = slots.step(self.table[_numbers(self._job, self._member, self._length)])
        self._total += given.reward
        self._length += 1
        over = given.terminated | given.truncated | (self._length >= self.horizon)
        over &= slots.acting
        for slot in np.flatnonzero(over).tolist():
            self.counted[self._job[slot] * slots.team + self._member[slot]] = Counted(
                float(self._total[slot]),
                int(self._length[slot]),
                bool(given.terminated[slot]),
                bool(given.truncated[slot]),
            )
        slots.rest(over)


def _play_alone(adapter: Adapter, job: int, table: ActionTable, horizon: int) -> list[Counted]:
    """Play one job from its seed while all other slots rest, and count by hand."""
    size, count = len(team_of(adapter)), adapter.num_slots
    first = (job + 1) * size % count
    totals, lengths = [0.0] * size, [0] * size
    ends = [(False, False)] * size
    acting = np.zeros(count, dtype=bool)
    acting[first : first + size] = True
    members = np.arange(count) % size
    adapter.reset([FIRST_SEED + job] * count, None if acting.all() else acting.copy())
    for step in range(horizon):
        actions = table[_numbers(job, members, step)]
        given = adapter.step(actions, None if acting.all() else acting.copy())
        for member in range(size):
            slot = first + member
            if acting[slot]:
                totals[member] += float(given.reward[slot])
                lengths[member] += 1
                ends[member] = bool(given.terminated[slot]), bool(given.truncated[slot])
                acting[slot] = not any(ends[member])
        if not acting.any():
            break
    found = zip(totals, lengths, ends, strict=True)
    return [Counted(total, length, *end) for total, length, end in found]
