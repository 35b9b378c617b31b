"""Local workers: processes that play jobs, started once, replaced when they die."""

from __future__ import annotations

import os
import warnings
import weakref
from functools import partial
from multiprocessing import connection, reduction
from typing import TYPE_CHECKING, Any, NamedTuple

import cloudpickle

from populora_envs import processes
from populora_envs.adapter import noted
from populora_envs.parts import Score
from populora_envs.processes import Forked, Spawned, describe_exit
from populora_envs.shared import Block, Packed
from populora_envs.sources import must_fork
from populora_envs.stage import Shown
from populora_envs.worker import Order, Plan, Reply, serve

if TYPE_CHECKING:
    from collections.abc import Sequence

    from populora_envs.actor import Actor
    from populora_envs.processes import Worker
    from populora_envs.rollout import Forward
    from populora_envs.sources import Source
    from populora_envs.stage import Task

POLICIES_KEPT = 8
"""Most policies of different structure whose memory workers keep."""

_SPAWNED_MODULE = "populora_envs.worker"


class WorkerDiedError(RuntimeError):
    """A worker died and its episodes cannot be played again."""


class _RemoteTraceback(Exception):  # noqa: N818 - it is the cause of an error, none itself
    """Where an error happened in a worker, shown as its cause."""

    def __init__(self, text: str) -> None:
        super().__init__(f'\n"""\n{text}"""')


class _Sent(NamedTuple):
    """A policy whose memory the workers have."""

    key: int
    block: Block
    receivers: set[int]
    """Processes that have it."""


class Workers:
    """Processes that play the jobs of an evaluation, each on its share of the slots.

    Args:
        sources: of each entry; `why_not` says whether they can be shared.
        flatten: how observations are encoded.
        count: of the workers.
        most_slots: most slots that one worker will have.
        seed: of the global generators in the workers.
    """

    def __init__(
        self, sources: Sequence[Source], *, flatten: bool, count: int, most_slots: int, seed: int
    ) -> None:
        self.count = count
        self._sources, self._forks = sources, must_fork(sources)
        self._plans = [
            Plan(k, count, [s.share(k, count) for s in sources], flatten, most_slots, seed)
            for k in range(count)
        ]
        self._control = Block(self._plans[0].control_size())
        self._counters = self._plans[0].counters(self._control)
        self._seats = self._plans[0].seats(self._control)
        self._workers: dict[int, Worker] = {}
        self._sent: dict[Any, _Sent] = {}
        self._keys = 0
        self._said: set[tuple[str, type[Warning]]] = set()
        weakref.finalize(self, _end, self._workers, os.getpid())

    def play(self, forward: Forward, task: Task, actor: Actor, slots: int) -> Shown:
        """Play a task; whatever happens, no worker is left in the middle of it.

        Args:
            forward: picklable by cloudpickle, with `forget()`.
            task: what to play.
            actor: from outputs to actions, picklable by cloudpickle.
            slots: most slots of an entry in one worker, where it may have more than it has.
        """
        try:
            self._start()
            return self._play(forward, task, actor, slots)
        except BaseException:
            self.kill()
            raise

    def _play(self, forward: Forward, task: Task, actor: Actor, slots: int) -> Shown:
        with noted("the policy cannot be sent to workers"):
            packed = Packed(forward)
        sent, dropped = self._publish(packed)
        with noted("the action function cannot be sent to workers"):
            acting = cloudpickle.dumps(actor)
        order = Order(task, None, slots, acting, sent.key, None, packed.places, dropped)
        score = Score(task.jobs(), len(self._sources))
        replies: list[Reply] = []
        while True:
            self._counters[:] = 0
            told, died = self._round(order, packed, sent)
            replies += told
            for reply in told:
                score.add(reply.parts)
            left = score.left()
            # What a rank has not played, others have, or all of them will play again.
            if task.share is not None or not any(left):
                self._bury(died)
                return _shown(score, replies)
            if order.only == left:
                raise self._failure(died, "a second time, with nothing played in between")
            self._bury(died)
            self._start()
            order = order._replace(only=left, forget=[])

    def _bury(self, died: dict[int, Worker]) -> None:
        for number, worker in died.items():
            processes.kill_all([worker])
            del self._workers[number]

    def _round(
        self, order: Order, packed: Packed, sent: _Sent
    ) -> tuple[list[Reply], dict[int, Worker]]:
        """Send an order to everyone; return what comes back, and who died."""
        replies: list[Reply] = []
        died: dict[int, Worker] = {}
        waiting: dict[Any, int] = {}
        for number, worker in self._workers.items():
            if self._send_order(worker, order, packed, sent):
                waiting[worker.channel] = number
            else:
                died[number] = worker
        self._check_can_go_on(died)
        while waiting:
            for channel in connection.wait(list(waiting)):
                number = waiting.pop(channel)
                reply = self._receive(self._workers[number])
                if reply is None:
                    died[number] = self._workers[number]
                else:
                    self._warn(reply)
                    replies.append(reply)
            self._check_can_go_on(died)
        return replies, died

    def _send_order(self, worker: Worker, order: Order, packed: Packed, sent: _Sent) -> bool:
        """Return whether the worker lives to read it."""
        is_new = worker.pid not in sent.receivers
        order = order._replace(structure=packed.structure) if is_new else order
        try:
            worker.channel.send_bytes(cloudpickle.dumps(order))
            if is_new:
                reduction.send_handle(worker.channel, sent.block.descriptor, worker.pid)
                sent.receivers.add(worker.pid)
        except OSError:
            return False
        return True

    def _receive(self, worker: Worker) -> Reply | None:
        """Return a reply, None where the worker has died; raise what it raised."""
        try:
            reply: Reply = cloudpickle.loads(worker.channel.recv_bytes())
        except (EOFError, OSError):
            return None
        if reply is not None and reply.error is not None:
            raise reply.error from _RemoteTraceback(reply.where)
        return reply

    def _warn(self, reply: Reply) -> None:
        """Give the warnings of a worker, each once."""
        for message, category, filename, line in reply.warnings:
            if (message, category) not in self._said:
                self._said.add((message, category))
                warnings.warn_explicit(message, category, filename, line)

    def _publish(self, packed: Packed) -> tuple[_Sent, list[int]]:
        """Write a policy's numbers where workers read them; return it, and whom they may forget."""
        dropped: list[int] = []
        sent = self._sent.pop(packed.key, None)
        if sent is None:
            self._keys += 1
            sent = _Sent(self._keys, Block(packed.size), set())
            if len(self._sent) >= POLICIES_KEPT:
                oldest = next(iter(self._sent))
                dropped.append(self._sent.pop(oldest).key)
        self._sent[packed.key] = sent
        packed.write(sent.block)
        return sent, dropped

    def _start(self) -> None:
        """Start the workers that are missing, all at once."""
        self._check_fork()
        missing = [plan for plan in self._plans if plan.number not in self._workers]
        for plan in missing:
            self._workers[plan.number] = self._launch(plan)
        for plan in missing:
            worker = self._workers[plan.number]
            try:
                reply = worker.channel.recv_bytes()
            except (EOFError, OSError):
                how = describe_exit(worker.wait(processes.SECONDS_TO_END))
                message = f"worker {plan.number} {how} while it opened its environments"
                raise WorkerDiedError(message) from None
            opened: Reply | None = cloudpickle.loads(reply)
            if opened is not None and opened.error is not None:
                raise opened.error from _RemoteTraceback(opened.where)

    def _check_fork(self) -> None:
        """Refuse to copy this process where that became impossible since it was asked."""
        reason = self._why_no_fork()
        if len(self._workers) < self.count and reason is not None:
            message = f"workers cannot inherit these environments: {reason}"
            raise ValueError(message)

    def _why_no_fork(self) -> str | None:
        return processes.why_no_fork() if self._forks else None

    def _launch(self, plan: Plan) -> Worker:
        if self._forks:
            return Forked(partial(serve, plan=plan, control=self._control))
        worker = Spawned(_SPAWNED_MODULE)
        self._workers[plan.number] = worker
        worker.channel.send_bytes(cloudpickle.dumps(plan))
        reduction.send_handle(worker.channel, self._control.descriptor, worker.pid)
        return worker

    def _check_can_go_on(self, died: dict[int, Worker]) -> None:
        """Raise where the episodes of workers that died cannot be played again."""
        if not died:
            return
        if not all(source.adapter.seeds_slots for source in self._sources):
            raise self._failure(died, "and its environments cannot be seeded, so cannot be rebuilt")
        reason = self._why_no_fork()
        if reason is not None:
            raise self._failure(died, f"and its environments cannot be rebuilt: {reason}")

    def _failure(self, died: dict[int, Worker], why: str) -> WorkerDiedError:
        number, worker = next(iter(died.items()))
        how = describe_exit(worker.wait(processes.SECONDS_TO_END))
        error = WorkerDiedError(
            f"worker {number} {how} in the middle of its episodes {why}. "
            "What was written before is intact: resume from the last checkpoint"
        )
        entry, seats = int(self._seats[number, 0]), self._seats[number, 1:].reshape(-1, 2)
        for slot, (individual, episode) in enumerate(seats.tolist()):
            if individual >= 0:
                where = f"slot {number + slot * self.count}"
                error.add_note(
                    f"it was playing in {where} of entry {entry}: individual {individual}, "
                    f"episode {episode}"
                )
        return error

    def kill(self) -> None:
        """End all workers at once."""
        workers = list(self._workers.values())
        self._workers.clear()
        self._sent.clear()
        processes.kill_all(workers)

    def close(self) -> None:
        """Let all workers close their environments and end; a second call is harmless."""
        self._sent.clear()
        _end(self._workers, os.getpid())


def _end(workers: dict[int, Worker], owner: int) -> None:
    """End workers, but not from a copy of the process that they belong to."""
    if os.getpid() != owner:
        return
    ending = list(workers.values())
    workers.clear()
    processes.end_all(ending)


def _shown(score: Score, replies: Sequence[Reply]) -> Shown:
    return Shown(
        score.results(),
        sum(reply.seconds_env for reply in replies),
        sum(reply.seconds_forward for reply in replies),
        any(reply.drew_globals for reply in replies),
    )
