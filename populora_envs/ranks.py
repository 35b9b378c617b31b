"""Several processes as one job, under torchrun or in a group of the caller's: what they tell each other.

Nothing but small things on the CPU is exchanged: results of episodes, fitnesses, settings, and once the
weights of rank 0. So a gloo group serves policies on any device; beside a group with another backend,
which the caller has made, one of gloo is made.
"""

from __future__ import annotations

import atexit
import os
import socket
import traceback
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch.distributed as dist

from populora_envs import distributed
from populora_envs.meeting import PATIENCE, Counter, Meeting, meet

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")


class RankFailedError(RuntimeError):
    """Another rank has failed; its error is the cause."""


class _RemoteError(Exception):
    """An error as another rank has told it, with its traceback."""

    def __init__(self, text: str) -> None:
        super().__init__(f'\n"""\n{text}"""')


class _Told(NamedTuple):
    """What one rank tells the others: a value, or its error."""

    value: Any
    error: str = ""
    trace: str = ""


class Ranks:
    """All processes of the job. Every method but `leave` is called by all of them, in the same order.

    Args:
        meeting: where the process group was made, None where the caller has made it.

    Attributes:
        rank: number of this process.
        size: how many there are.
    """

    def __init__(self, meeting: Meeting | None) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        # A reference to the group would let it outlive torch's own, and abort the process at its end.
        self._world = id(dist.group.WORLD)
        self._is_own, self._counters = meeting is not None, 0
        is_gloo = dist.get_backend() == "gloo"
        self._group = None if is_gloo else dist.new_group(backend="gloo", timeout=PATIENCE)
        self._meeting = self._arrange() if meeting is None else meeting

    def _arrange(self) -> Meeting:
        """Open the store of the counters on rank 0, where all find it."""
        hosts = self.together(socket.gethostname)
        here = "127.0.0.1" if len(set(hosts)) == 1 else hosts[0]
        own: list[Meeting] = []

        def serve() -> tuple[str, int]:
            own.append(Meeting.begun(os.environ.get("MASTER_ADDR", here)))
            return own[0].address

        host, port = self.on_main(serve)
        return own[0] if own else Meeting.joined(host, port)

    @property
    def is_main(self) -> bool:
        """Whether this process writes files and draws the bar."""
        return self.rank == 0

    def exchange(self, mine: T) -> list[T]:
        """Return what every rank gives, in their order; it must be picklable."""
        everyone: list[Any] = [None] * self.size
        try:
            dist.all_gather_object(everyone, mine, group=self._group)
        except RuntimeError as error:
            raise _gone() from error
        return everyone

    def together(self, work: Callable[[], T]) -> list[T]:
        """Do `work` on every rank and return what it gives on each.

        Raises:
            RankFailedError: where it failed on another rank; on the rank itself its own error.
        """
        own: Exception | None = None
        try:
            told = _Told(work())
        except Exception as error:
            own = error
            text = "".join(traceback.format_exception(error))
            told = _Told(None, f"{type(error).__name__}: {error}", text)
        everyone = self.exchange(told)
        if own is not None:
            raise own
        for rank, other in enumerate(everyone):
            if other.error:
                message = f"rank {rank} failed: {other.error}"
                raise RankFailedError(message) from _RemoteError(other.trace)
        return [other.value for other in everyone]

    def on_main(self, work: Callable[[], T]) -> T:
        """Do `work` on rank 0 and return what it gives on every rank, or raise its error."""
        done: list[Any] = []
        self.together(lambda: done.append(work()) if self.is_main else None)
        result: Any = self.broadcast(done[0] if self.is_main else None)
        return result  # type: ignore[no-any-return]

    def broadcast(self, thing: T) -> T:
        """Return what rank 0 gives."""
        given = [thing]
        try:
            dist.broadcast_object_list(given, src=0, group=self._group)
        except RuntimeError as error:
            raise _gone() from error
        return given[0]

    def counter(self) -> Counter:
        """Return a new counter, the same one on every rank."""
        self._counters += 1
        return Counter(*self._meeting.address, f"populora/{self._counters}")

    def leave(self) -> None:
        """End what was opened here, so that a rank that waits for this one fails at once."""
        self._group = None
        if self._is_own and self.is_open():
            dist.destroy_process_group()
        self._meeting.close()

    def is_open(self) -> bool:
        """Whether the process group is the one that this was made with."""
        return dist.is_initialized() and id(dist.group.WORLD) == self._world


def _gone() -> RankFailedError:
    return RankFailedError("another rank has gone in the middle of the work: see what it says")


_ranks: Ranks | None = None


@contextmanager
def together_or_not_at_all() -> Iterator[None]:
    """Leave the other ranks when the block fails, so that they do not wait for this one."""
    try:
        yield
    except BaseException:
        if _ranks is not None:
            _ranks.leave()
        raise


def broadcast(thing: T) -> T:
    """Return what rank 0 gives, on every rank; alone it gives `thing` back.

    Args:
        thing: anything that can be pickled; of other ranks than 0 it is not looked at.

    Raises:
        RankFailedError: where another rank has gone.
    """
    together = ranks()
    return thing if together is None else together.broadcast(thing)


def sync() -> None:
    """Wait until every rank is here; alone it does nothing."""
    together = ranks()
    if together is not None:
        together.exchange(None)


def ranks() -> Ranks | None:
    """Return the ranks of this job, None where this process is the only one.

    The group that the caller has made is used, and left alive; else torchrun's environment says how one
    is made, which is destroyed at exit. The first call is made by all ranks.
    """
    global _ranks
    is_open = dist.is_available() and dist.is_initialized()
    if _ranks is not None and _ranks.is_open():
        return _ranks
    _ranks = None
    if is_open:
        _ranks = Ranks(None) if dist.get_world_size() > 1 else None
    elif distributed.world_size() > 1:
        meeting = meet()
        dist.init_process_group(
            "gloo",
            store=meeting.store,
            rank=distributed.rank(),
            world_size=distributed.world_size(),
            timeout=PATIENCE,
        )
        _ranks = Ranks(meeting)
        atexit.register(_ranks.leave)
    return _ranks
