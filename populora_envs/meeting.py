"""Where ranks meet: a small store on rank 0 that knows nothing of ranks which have died.

torchrun starts ranks anew with the store of its agent, in which the addresses of the dead ones still stand;
a group that is made of them waits for ever. So rank 0 opens a store of its own each time and says where,
and who finds a dead one looks again.
"""

from __future__ import annotations

import os
import secrets
import time
from datetime import timedelta
from typing import Any, NamedTuple, Self

import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

PATIENCE = timedelta(hours=2)
"""How long a rank waits for the others. One that has died is noticed at once."""

_SHORT = timedelta(seconds=3)
_TOKEN, _WHERE = "token", "populora/meeting"


class Counter(NamedTuple):
    """Whole numbers that are given out once, in order, to whoever asks from any process.

    Attributes:
        host: where rank 0 keeps them.
        port: of it.
        key: of this one.
    """

    host: str
    port: int
    key: str

    def next(self, name: str) -> int:
        """Return the next number under `name`, from 0 on."""
        address = (self.host, self.port, os.getpid())
        if address not in _stores:
            _stores.clear()  # those of the process that this one is a copy of
            _stores[address] = _open(self.host, self.port, PATIENCE)
        return int(_stores[address].add(f"{self.key}/{name}", 1)) - 1


_stores: dict[tuple[str, int, int], Any] = {}


class Meeting(NamedTuple):
    """The store on rank 0, seen from one rank.

    Attributes:
        store: of the ranks of this start.
        address: its host and port.
        agent: the launcher's store. Without torchrun it lives on rank 0, and ends when that one lets go.
    """

    store: Any
    address: tuple[str, int]
    agent: Any = None

    @classmethod
    def begun(cls, host: str) -> Self:
        """Open it on this rank, which others reach as `host`."""
        store = _open(host, 0, PATIENCE, is_server=True)
        return cls(store, (host, int(store.port)))

    @classmethod
    def joined(cls, host: str, port: int, patience: timedelta = PATIENCE) -> Self:
        """Connect to it."""
        return cls(_open(host, port, patience), (host, port))

    def close(self) -> None:
        """Leave it; the counters of this process close too."""
        _stores.clear()


def _open(host: str, port: int, patience: timedelta, *, is_server: bool = False) -> Any:
    make: Any = dist.TCPStore  # type: ignore[attr-defined] # public, but not exported by name
    return make(host, port, None, is_server, patience, wait_for_workers=False)


def meet() -> Meeting:
    """Return the store that rank 0 has opened for this start of the job; torchrun says where to look."""
    agent, rank, _ = next(rendezvous("env://"))
    if rank == 0:
        meeting = Meeting.begun(os.environ["MASTER_ADDR"])
        token = secrets.token_hex(8)
        meeting.store.set(_TOKEN, token)
        host, port = meeting.address
        agent.set(_WHERE, f"{host} {port} {token}")
        return meeting._replace(agent=agent)
    deadline = time.monotonic() + PATIENCE.total_seconds()
    while time.monotonic() < deadline:
        found = _found(*agent.get(_WHERE).decode().split())
        if found is not None:
            return found
        time.sleep(0.05)
    message = f"rank {rank} has waited {PATIENCE} for rank 0"
    raise TimeoutError(message)


def _found(host: str, port: str, token: str) -> Meeting | None:
    """Return the store at an address, None where it is not there, or another is."""
    try:
        meeting = Meeting.joined(host, int(port), _SHORT)
        same = meeting.store.get(_TOKEN).decode() == token
    except RuntimeError:
        return None
    meeting.store.set_timeout(PATIENCE)
    return meeting if same else None
