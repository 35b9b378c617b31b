"""Rollouts: slots play jobs until none is left.

The path of the data, one timestep:

    adapter.reset / step      observation [N, *obs]    numpy or tensor, any dtype
    slots                     batch       [B, *obs]    on the population's device; B slots act now
    forward(batch, ids)       output      [B, out]     ids [B]: which individual sits in each slot
    action head               action      [B, *act]    in head.range, e.g. (-1, 1)
    rescale                   action      [B, *act]    in the simulator's [low, high]
    slots.step(action)        reward [N] summed in float64, terminated / truncated [N] bool
    rollout                   return      per job, closed when the episode ends
"""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from populora_envs.adapter import blamed, team_of
from populora_envs.normalizer import moments_of
from populora_envs.seating import Seating
from populora_envs.teams import JobResult, Teams

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from populora_envs.jobs import Job, TakeJob
    from populora_envs.slots import Slots

    Forward = Callable[[Any, Tensor], Any]
    Act = Callable[[Any, Callable[[], Tensor], int], tuple[Any, np.ndarray]]


MOST_NAMED = 8
"""Most jobs that an error names, where the simulator does not say which slot failed."""


def play(  # noqa: PLR0913 - keywords say what is wanted beside the returns
    slots: Slots,
    forward: Forward,
    act: Act,
    take_job: TakeJob,
    horizon: int,
    *,
    with_moments: bool = False,
    with_infos: bool = False,
    seats: np.ndarray | None = None,
    at_once: int | None = None,
) -> Played:
    """Play jobs until `take_job` returns None.

    A slot whose job has ended takes the next one; when none is left it leaves the batch. An error of
    the simulator comes out as it is, with notes that name slot, individual and episode.

    Args:
        slots: whoever acts in them is sent away first; they are idle afterwards.
        forward: ``(batch [B, *obs], ids [B]) -> output [B, out]``.
        act: ``(output, keys, B) -> (actions nested [B, *act], finite [B] bool)``, where ``keys()``
            gives int64 `[B, 2]`, the seed of each row's job and the step.
        take_job: returns the next job or None.
        horizon: most steps of an episode.
        with_moments: return the moments of each job's observations.
        with_infos: return what the simulator told of each job's last step.
        seats: int64 `[at least N, 2]`, where individual and episode of each slot are shown to who
            looks on from another process; -1 at rest.
        at_once: most slots that act, where others wait for jobs too; None means all.
    """
    slots.stop()
    run = _Run(slots, forward, act, take_job, horizon, with_moments=with_moments)
    run.seats, run.with_infos = seats, with_infos
    run.at_once = slots.num_slots if at_once is None else at_once
    try:
        with torch.inference_mode():
            return run.play()
    finally:
        slots.stop()


class Played(NamedTuple):
    """What a rollout gave, and what it cost."""

    results: list[JobResult]
    seconds_env: float
    seconds_forward: float


class _Run:
    """One rollout: per slot its job, return and length."""

    def __init__(
        self,
        slots: Slots,
        forward: Forward,
        act: Act,
        take_job: TakeJob,
        horizon: int,
        *,
        with_moments: bool,
    ) -> None:
        count = slots.num_slots
        self.slots, self.forward, self.act = slots, forward, act
        self.take_job, self.horizon = take_job, horizon
        self.jobs: list[Job | None] = [None] * count
        self.returns = np.zeros(count)
        self.lengths = np.zeros(count, dtype=np.int64)
        self.seeds = np.zeros(count, dtype=np.int64)
        self.noise_seeds = np.zeros(count, dtype=np.int64)
        self.teams = Teams(team_of(slots.adapter))
        self.individuals = np.zeros(count, dtype=np.int64)
        self.exhausted = False
        self.steps_left = 0
        takes_arrays = getattr(forward, "takes_arrays", False) and slots.encoder.is_vector
        self.by_arrays = takes_arrays and slots.device.type == "cpu"
        self.seating = Seating(count, slots.device, may_rest=self.by_arrays)
        self.sums: np.ndarray | None = None
        self.seats: np.ndarray | None = None
        self.at_once = count
        self.with_infos = False
        if with_moments:
            self.sums = np.zeros((2, count, *(slots.encoder.shape or ())))
        self.results: list[JobResult] = []
        self.seconds_forward = 0.0

    def play(self) -> Played:
        before = self.slots.seconds
        try:
            while self._fill():
                self._step()
        except Exception as error:
            self._explain(error)
            raise
        return Played(self.results, self.slots.seconds - before, self.seconds_forward)

    def _explain(self, error: Exception) -> None:
        for slot in blamed(error)[:MOST_NAMED]:
            job = self.jobs[slot]
            if job is not None:
                error.add_note(
                    f"individual {job.individual}, episode {job.episode}, "
                    f"step {self.lengths[slot]}, seed {job.seed}"
                )

    def _fill(self) -> bool:
        """Give jobs to ready slots; return whether any slot acts."""
        has_room = not self.exhausted and self.slots.num_acting < self.at_once
        if has_room and self.slots.may_begin():
            self._begin(self.slots.ready())
        return self.slots.num_acting > 0

    def _begin(self, ready: np.ndarray) -> None:
        started = np.zeros_like(ready)
        size = self.slots.team
        room = self.at_once - -(-self.slots.num_acting // size)
        for slot in np.flatnonzero(ready)[::size][:room].tolist():
            job = self.take_job()
            if job is None:
                self.exhausted = True
                break
            started[slot : slot + size] = True
            self._seat(slice(slot, slot + size), job)
        self.returns[started] = 0.0
        self.lengths[started] = 0
        if self.sums is not None:
            self.sums[:, started] = 0.0
        if started.any():
            self.slots.begin(started, self.seeds.tolist())
        self._choose_rows()

    def _seat(self, team: slice, job: Job) -> None:
        """Note whose job it is that begins in the slots of a team, most often one slot."""
        self.jobs[team] = [job] * self.slots.team
        if self.seats is not None:
            self.seats[team] = job.individual, job.episode
        self.seeds[team], self.individuals[team] = job.seed, job.individual
        self.noise_seeds[team] = self.teams.seeds(job.seed)

    def _choose_rows(self) -> None:
        """Seat those who act, and note when the first of them reaches the horizon."""
        acting = self.slots.acting
        self.seating.choose(acting, self.slots.num_acting, self.individuals)
        self.steps_left = self.horizon - int(self.lengths[acting].max(initial=0))

    def _step(self) -> None:
        """Advance who acts; the numbers of idle slots go on meaning nothing."""
        if self.sums is not None:
            self._look(self.sums)
        actions, finite = self._decide()
        transition = self.slots.step(self.seating.spread(actions))
        # Infinity and then minus infinity are no number: the fitness says so, not a warning of NumPy.
        with np.errstate(invalid="ignore", over="ignore"):
            self.returns += transition.reward
        self.lengths += 1
        self.steps_left -= 1
        if np.count_nonzero(finite) < len(finite):
            self.returns[self.seating.slots[~finite]] = np.nan
        ends = np.count_nonzero(transition.terminated) + np.count_nonzero(transition.truncated)
        if ends or not self.steps_left:
            self._close(transition.terminated, transition.truncated)

    def _look(self, sums: np.ndarray) -> None:
        """Add what is seen now, and its square; what is not finite is left out later."""
        seen = self.slots.seen(slice(None)).astype(np.float64)
        with np.errstate(invalid="ignore", over="ignore"):
            sums[0] += seen
            sums[1] += seen * seen

    def _decide(self) -> tuple[Any, np.ndarray]:
        start = perf_counter()
        seating, slots = self.seating, self.slots
        if self.by_arrays:
            batch: Any = seating.cover(slots.array(seating.rows))
        else:
            batch = slots.batch(seating.rows)
        output = self.forward(batch, seating.ids)
        decided = self.act(output, self._keys, len(seating.slots))
        self.seconds_forward += perf_counter() - start
        return decided

    def _keys(self) -> Tensor:
        """Return what the noise of each row depends on: the seed of its job and the step."""
        slots = self.seating.slots
        keys = np.stack([self.noise_seeds[slots], self.lengths[slots]], axis=1)
        return torch.from_numpy(keys).to(self.slots.device)

    def _close(self, terminated: np.ndarray, truncated: np.ndarray) -> None:
        """Note the result of every job that has ended and let its slot rest."""
        over = (terminated | truncated | (self.lengths >= self.horizon)) & self.slots.acting
        for slot in np.flatnonzero(over).tolist():
            job = self.jobs[slot]
            assert job is not None
            end = (
                "terminated" if terminated[slot] else "truncated" if truncated[slot] else "horizon"
            )
            length = int(self.lengths[slot])
            moments = None
            if self.sums is not None:
                moments = moments_of(length, self.sums[0, slot], self.sums[1, slot])
            final = self.slots.final(slot)
            info = self.slots.info(slot) if self.with_infos else None
            total = float(self.returns[slot])
            own = JobResult(job, total, length, end, moments, final, info)
            result = self.teams.note(slot, own)
            if result is not None:
                self.results.append(result)
            if self.seats is not None:
                self.seats[slot] = -1
        self.slots.rest(over)
        self._choose_rows()
