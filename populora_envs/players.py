"""Who plays the jobs of an evaluation: this process, or local workers when they pay."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING

import torch

from populora_envs.adapter import close_all
from populora_envs.processes import usable_cores, why_no_fork
from populora_envs.settings import at_least
from populora_envs.slots import Slots
from populora_envs.sources import must_fork
from populora_envs.stage import Shown, Stage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from populora_envs.actor import Actor
    from populora_envs.rollout import Forward
    from populora_envs.sources import Source
    from populora_envs.spaces import Encoder
    from populora_envs.stage import Task
    from populora_envs.workers import Workers

MAX_COPIES = 64
"""Most copies of an id, class or factory that are made without being asked for."""

SECONDS_TO_FORK, SECONDS_TO_SPAWN = 0.2, 1.5
"""About how long workers take until they play."""

EFFICIENCY = 0.9
"""About what a worker gains, as a share of what it costs."""


class Players:
    """The slots of this process and, where they pay, workers with slots of their own.

    Args:
        sources: of each entry.
        encoder: of their observations.
        num_workers: 0 plays in this process, ``"auto"`` finds out what is faster.
        seed: of the global generators in workers.

    Attributes:
        num_workers: how many workers play now.
        choice: what ``"auto"`` has found, in words.

    Raises:
        ValueError: where these environments cannot be shared by so many workers.
    """

    def __init__(
        self, sources: Sequence[Source], encoder: Encoder, num_workers: int | str, seed: int
    ) -> None:
        self.sources, self.encoder, self._seed = sources, encoder, seed
        self.num_workers, self.choice = 0, ""
        self._trial: _Trial | None = None
        self._workers: Workers | None = None
        self._forks = must_fork(sources)
        self.entries = self._make_entries()
        if isinstance(num_workers, str) and num_workers != "auto":
            message = f"num_workers must be a whole number or 'auto', not {num_workers!r}"
            raise ValueError(message)
        if num_workers == "auto":
            self._trial, self.choice = _Trial(), "not yet"
        elif at_least("num_workers", num_workers, 0):
            self._check(int(num_workers))
            self.num_workers = int(num_workers)

    def _make_entries(self) -> list[Slots]:
        device = torch.device("cpu")
        return [Slots(source.adapter, self.encoder, device) for source in self.sources]

    def _check(self, count: int) -> None:
        reason = self._why_no_workers()
        if reason is not None:
            message = f"num_workers={count} cannot be: {reason}; pass num_workers=0"
            raise ValueError(message)
        most = self._most_workers()
        if most is not None and count > most:
            message = (
                f"num_workers={count} are more than the {most} environments: pass at most {most}"
            )
            raise ValueError(message)

    def _why_no_workers(self) -> str | None:
        if sys.platform == "win32":
            return "local workers need a POSIX system"
        for source in self.sources:
            reason = source.why_not_shared()
            if reason is not None:
                return reason
        reason = why_no_fork() if self._forks else None
        return reason and f"environments given as instances are inherited by a fork, and {reason}"

    def _most_workers(self) -> int | None:
        known = [s.most_slots // s.team for s in self.sources if s.most_slots is not None]
        return min(known, default=None)

    def expect(self, evaluations: int) -> None:
        """Say how many evaluations like the next one will follow, for ``"auto"``."""
        if self._trial is not None:
            self._trial.expected = evaluations

    def here(self, copies: int, device: torch.device) -> list[Slots]:
        """Return the slots of this process, grown to at most `copies` where they may."""
        grown = [source.grow(min(copies, MAX_COPIES)) for source in self.sources]
        if any(grown):
            self.entries = self._make_entries()
        for slots in self.entries:
            slots.device = device
        return self.entries

    def play(
        self, forward: Forward, task: Task, actor: Actor, device: torch.device, copies: int
    ) -> Shown:
        """Play a task for a policy on `device`, on at most `copies` of an id, class or factory.

        Raises:
            ValueError: where workers were asked for and the policy is on an accelerator.
        """
        start = perf_counter()
        if self.num_workers:
            self._check_device(device)
            each = -(-min(copies, MAX_COPIES) // self.num_workers)
            shown = self._crew().play(forward, task, actor, each)
        else:
            stage = Stage(self.here(copies, device), actor)
            shown = stage.play(
                forward,
                task,
                lambda entry: task.taker(entry, seeds_slots=self._seeds_slots(entry)),
                task.global_seed(),
                at_once=[task.at_once(entry) for entry in range(len(self.sources))],
            )
        if self._trial is not None:
            self._learn(task, shown, perf_counter() - start, device)
        return shown

    def _seeds_slots(self, entry: int) -> bool:
        return self.sources[entry].adapter.seeds_slots

    def _check_device(self, device: torch.device) -> None:
        if device.type != "cpu":
            message = (
                f"workers play on the CPU and the policy is on {device}: pass num_workers=0 and a "
                "vector environment, or device='cpu'"
            )
            raise ValueError(message)

    def _crew(self) -> Workers:
        if self._workers is None:
            from populora_envs.workers import Workers  # which imports what only POSIX has

            known = [s.most_slots or MAX_COPIES * s.team for s in self.sources]
            own = [s.adapter.num_slots for s in self.sources]
            self._workers = Workers(
                self.sources,
                flatten=not self.encoder.nested,
                count=self.num_workers,
                most_slots=max(known + own),
                seed=self._seed,
            )
        return self._workers

    def _learn(self, task: Task, shown: Shown, seconds: float, device: torch.device) -> None:
        """Settle, as soon as that can be told, how many workers play from here on."""
        trial = self._trial
        assert trial is not None
        steps = sum(result.length for entry in shown.results for result in entry)
        count = task.num_jobs
        if self.num_workers:
            if count == trial.num_jobs and trial.workers_have_begun:
                self._compare(trial.rate, steps / seconds)
            trial.workers_have_begun = True
        elif trial.note(count, steps / seconds, seconds):
            self._consider(trial, device)

    def _consider(self, trial: _Trial, device: torch.device) -> None:
        reason = self._why_no_workers()
        if device.type != "cpu":
            reason = f"the policy is on {device}"
        elif not all(source.adapter.seeds_slots for source in self.sources):
            reason = "results would depend on it, for slots cannot be seeded"
        most = self._most_workers()
        count = usable_cores() if most is None else min(usable_cores(), most)
        if reason is None and count < 2:
            reason = "there is one core, or one environment"
        if reason is not None:
            self._settle(f"0: {reason}")
            return
        cost = SECONDS_TO_FORK if self._forks else SECONDS_TO_SPAWN
        if trial.gain(count) > 2 * cost:
            self.num_workers = count
        else:
            self.choice = "0: there was too little work for more"

    def _compare(self, here: float, there: float) -> None:
        figures = f"{there:.0f} env-steps/s against {here:.0f} in this process"
        if there > here:
            self._settle(f"{self.num_workers}: {figures}")
            return
        self._settle(f"0: {self.num_workers} workers gave {figures}")
        self.num_workers = 0
        self._close_workers()

    def _settle(self, choice: str) -> None:
        self.choice, self._trial = choice, None

    def _close_workers(self) -> None:
        workers, self._workers = self._workers, None
        if workers is not None:
            workers.close()

    def close(self) -> None:
        """End the workers and close what was opened; a second call is harmless."""
        try:
            self._close_workers()
        finally:
            close_all(self.sources)


@dataclass
class _Trial:
    """What ``"auto"`` has measured so far, of the evaluations with the most jobs."""

    expected: int | None = None
    num_jobs: int = 0
    rate: float = 0.0
    """Steps per second in this process."""
    last: float = 0.0
    total: float = 0.0
    done: int = 0
    workers_have_begun: bool = False
    """Whether what follows is free of what it takes to start."""

    def note(self, num_jobs: int, rate: float, seconds: float) -> bool:
        """Note an evaluation; return whether it says something of those to come."""
        if num_jobs < max(self.num_jobs, 2 * usable_cores()):
            return False
        if num_jobs > self.num_jobs:
            self.num_jobs, self.total, self.done = num_jobs, 0.0, 0
        self.rate, self.last = rate, seconds
        self.total += seconds
        self.done += 1
        return True

    def gain(self, count: int) -> float:
        """Return the seconds that `count` workers would save, as far as one can tell.

        Where nothing is known of what is to come, as much again as there was.
        """
        ahead = self.total if self.expected is None else self.last * (self.expected - self.done)
        return ahead * (1 - 1 / max(1.0, EFFICIENCY * count))
