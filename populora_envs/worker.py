"""What a local worker does: it owns some slots and plays whole episodes of whoever is sent.

It is opened once from a plan. An order then names a task; weights and statistics lie in shared memory, and
of a policy that was sent before only their numbers have changed.
"""

from __future__ import annotations

import fcntl
import os
import pickle
import traceback
import warnings
from dataclasses import dataclass
from multiprocessing import reduction
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, NamedTuple

import cloudpickle
import numpy as np
import torch

from populora_envs.adapter import close_all
from populora_envs.jobs import JobQueue
from populora_envs.parts import Part, columns
from populora_envs.processes import leave_interrupts_to_parent
from populora_envs.seeds import derive_seed, seed_globals
from populora_envs.shared import Block, Place, unpack
from populora_envs.slots import Slots
from populora_envs.sources import Source
from populora_envs.spaces import Encoder
from populora_envs.stage import Shown, Stage, Task

if TYPE_CHECKING:
    from populora_envs.jobs import Job, TakeJob


@dataclass(frozen=True)
class Plan:
    """What a worker is made from."""

    number: int
    count: int
    """How many workers there are."""
    sources: list[tuple[Any, int | None]]
    """Of each entry: its environments, or what makes them, and how many are made."""
    flatten: bool
    """How observations are encoded."""
    most_slots: int
    seed: int

    def control_size(self) -> int:
        """Return the bytes of the memory that all workers and the main process share."""
        return 8 * (len(self.sources) + self.count * (1 + 2 * self.most_slots))

    def counters(self, control: Block) -> np.ndarray:
        """Return the next job of each entry, int64."""
        return control.array((len(self.sources),), np.int64)

    def seats(self, control: Block) -> np.ndarray:
        """Return who plays where, int64 `[workers, 1 + 2 * slots]`: entry, then pairs per slot."""
        shape = (self.count, 1 + 2 * self.most_slots)
        return control.array(shape, np.int64, 8 * len(self.sources))


class Order(NamedTuple):
    """What a worker is to play."""

    task: Task
    only: list[list[int]] | None
    """Numbers of the jobs of each entry that are left to play; None means all."""
    slots: int
    """Most slots of an entry, where it may have more than it has."""
    actor: bytes
    key: int
    """Number of the policy."""
    structure: bytes | None
    """Of a policy that was not sent before; its memory follows."""
    places: list[Place]
    forget: list[int]
    """Policies that will not be asked for again."""


class Reply(NamedTuple):
    """What a worker played, or what went wrong."""

    parts: list[Part]
    seconds_env: float
    seconds_forward: float
    drew_globals: bool
    warnings: list[tuple[str, type[Warning], str, int]]
    error: Exception | None = None
    where: str = ""
    """Traceback of the error."""


def run_spawned(descriptor: int) -> None:
    """Serve the process that has spawned this one."""
    channel = Connection(descriptor)
    leave_interrupts_to_parent()
    sent = channel.recv_bytes()
    descriptor = reduction.recv_handle(channel)
    try:
        plan = cloudpickle.loads(sent)
    except Exception as error:
        _send(channel, _failed(error))
        return
    serve(channel, plan, Block(plan.control_size(), descriptor))


def serve(channel: Connection, plan: Plan, control: Block) -> None:
    """Open the environments and play orders until the channel closes."""
    torch.set_num_threads(1)
    seed_globals(derive_seed(plan.seed, "worker", plan.number))
    worker: _Worker | None = None
    try:
        try:
            worker = _Worker(channel, plan, control)
            reply: Reply | None = None
        except Exception as error:
            reply = _failed(error)
        _send(channel, reply)
        while worker is not None:
            order = cloudpickle.loads(channel.recv_bytes())
            _send(channel, worker.obey(order))
    except (EOFError, OSError):
        pass
    finally:
        if worker is not None:
            close_all(worker.sources)


class _Worker:
    def __init__(self, channel: Connection, plan: Plan, control: Block) -> None:
        self.channel, self.plan, self.control = channel, plan, control
        self.sources = [Source(envs, count) for envs, count in plan.sources]
        self.counters, seats = plan.counters(control), plan.seats(control)[plan.number]
        self.entry, self.seats = seats[:1], seats[1:].reshape(plan.most_slots, 2)
        self.parent = os.getppid()
        space = self.sources[0].adapter.observation_space
        self.encoder = Encoder(space, flatten=plan.flatten)
        self.entries = self._make_entries()
        self.forwards: dict[int, Any] = {}
        self.blocks: dict[int, Block] = {}
        self.actor: tuple[bytes, Any] = (b"", None)

    def _make_entries(self) -> list[Slots]:
        who, device = (self.plan.number, self.plan.count), torch.device("cpu")
        return [Slots(source.adapter, self.encoder, device, who) for source in self.sources]

    def obey(self, order: Order) -> Reply:
        """Play an order; an error comes back in the reply."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("default")
            try:
                self._prepare(order)
                shown = self._play(order)
            except Exception as error:
                return _failed(error)
        said = [(str(w.message), w.category, w.filename, w.lineno) for w in caught]
        parts = [columns(results, order.task) for results in shown.results]
        return Reply(parts, shown.seconds_env, shown.seconds_forward, shown.drew_globals, said)

    def _prepare(self, order: Order) -> None:
        """Take over what the order brings: policy, actor, more slots."""
        for key in order.forget:
            self.forwards.pop(key, None)
            self.blocks.pop(key, None)
        if order.structure is not None:
            size = max((place.end for place in order.places), default=0)
            self.blocks[order.key] = block = Block(size, reduction.recv_handle(self.channel))
            self.forwards[order.key] = unpack(order.structure, order.places, block)
        self.forwards[order.key].forget()
        if order.actor != self.actor[0]:
            self.actor = (order.actor, cloudpickle.loads(order.actor))
        grown = [source.grow(order.slots) for source in self.sources]
        if any(grown):
            self.entries = self._make_entries()

    def _play(self, order: Order) -> Shown:
        task, plan = order.task, self.plan
        queues = [task.queue(entry) for entry in range(len(self.entries))]
        if order.only is not None:
            jobs = task.jobs()
            queues = [[jobs[i] for i in numbers] for numbers in order.only]
        stage = Stage(self.entries, self.actor[1])
        seed = task.global_seed(plan.number)
        self.seats[:] = -1
        forward = self.forwards[order.key]
        # Few jobs are shared out: one worker does not take them all.
        ranks = 1 if task.share is None else task.share.size
        at_once = [-(-len(queue) // (ranks * plan.count)) for queue in queues]
        return stage.play(
            forward, task, lambda e: self._taker(task, e, queues[e]), seed, self.seats, at_once
        )

    def _taker(self, task: Task, entry: int, jobs: list[Job]) -> TakeJob:
        """Return what hands out jobs: from a common counter, or this worker's fixed share."""
        self.entry[0] = entry
        seeds_slots = self.sources[entry].adapter.seeds_slots
        if task.share is not None:
            who = {"worker": self.plan.number, "workers": self.plan.count}
            return self._while_parent_lives(task.taker(entry, seeds_slots=seeds_slots, **who))
        if not seeds_slots:
            return JobQueue(jobs[self.plan.number :: self.plan.count]).take
        counters, file = self.counters, self.control.descriptor

        def take() -> Job | None:
            # The system frees this lock when a process dies, whatever it was doing.
            fcntl.lockf(file, fcntl.LOCK_EX)
            number = int(counters[entry])
            counters[entry] = number + 1
            fcntl.lockf(file, fcntl.LOCK_UN)
            return jobs[number] if number < len(jobs) else None

        return self._while_parent_lives(take)

    def _while_parent_lives(self, take: TakeJob) -> TakeJob:
        """Return what ends this process where it would work for nobody."""

        def take_or_end() -> Job | None:
            if os.getppid() != self.parent:
                os._exit(1)
            return take()

        return take_or_end


def _send(channel: Connection, reply: Reply | None) -> None:
    channel.send_bytes(_pickled(reply))


def _pickled(thing: Any) -> bytes:
    """Return bytes in which classes of the user's script stay the ones that the main process has."""
    try:
        return pickle.dumps(thing)
    except Exception:
        copied: bytes = cloudpickle.dumps(thing)
        return copied


def _failed(error: Exception) -> Reply:
    """Return a reply that carries an error, or one with its words where it cannot travel."""
    where = "".join(traceback.format_exception(error))
    try:
        carried: Exception = cloudpickle.loads(_pickled(error))
    except Exception:
        carried = RuntimeError(f"{type(error).__name__}: {error}")
    for note in getattr(error, "__notes__", []):
        if note not in getattr(carried, "__notes__", []):
            carried.add_note(note)
    return Reply([], 0.0, 0.0, False, [], carried, where)
