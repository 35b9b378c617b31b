"""Processes that work for this one and never outlive it."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import warnings
import weakref
from typing import TYPE_CHECKING, Protocol

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from multiprocessing.connection import Connection

    Target = Callable[[Connection], None]

SECONDS_TO_END = 1.0
"""How long a process that was asked to end may take."""

_DIE_WITH_PARENT = "sys.platform == 'linux' and ctypes.CDLL(None).prctl(1, 9)"
"""Let the system send SIGKILL when the parent ends (PR_SET_PDEATHSIG), before anything is imported."""

_OPEN: weakref.WeakSet[Connection] = weakref.WeakSet()
"""Channels to workers of this process, which no copy of it may keep open."""


class Worker(Protocol):
    """A running process and the channel to it."""

    channel: Connection
    pid: int

    def wait(self, seconds: float) -> int | None:
        """Wait for its end; return its exit code, minus the signal that killed it, None while it runs."""
        ...

    def kill(self) -> None:
        """End it at once."""
        ...


class Forked:
    """A copy of this process, with everything in it.

    Args:
        target: called in the copy with its end of the channel.
    """

    def __init__(self, target: Target) -> None:
        self.channel, theirs = multiprocessing.Pipe()
        _OPEN.add(self.channel)
        mine = list(_OPEN)

        def run() -> None:
            for channel in mine:
                channel.close()
            leave_interrupts_to_parent()
            if sys.platform == "linux":
                ctypes.CDLL(None).prctl(1, signal.SIGKILL)
            target(theirs)

        self._process = multiprocessing.get_context("fork").Process(target=run, daemon=True)
        with warnings.catch_warnings():
            # Later Pythons warn of threads, which those of BLAS are too; they are idle and not used.
            warnings.simplefilter("ignore", DeprecationWarning)
            self._process.start()
        theirs.close()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def wait(self, seconds: float) -> int | None:
        """Wait for its end; return its exit code, None while it runs."""
        self._process.join(seconds)
        return self._process.exitcode

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()


class Spawned:
    """A fresh interpreter, which needs no guard in the user's script.

    Args:
        module: whose function `run_spawned` is called with its end of the channel.
    """

    def __init__(self, module: str) -> None:
        self.channel, theirs = multiprocessing.Pipe()
        _OPEN.add(self.channel)
        # By its parent the system means the thread that starts it; where this is another than the main
        # one, the closed channel must do.
        is_main = threading.current_thread() is threading.main_thread()
        command = (
            f"import ctypes, sys; sys.path[:] = {sys.path!r}; {_DIE_WITH_PARENT if is_main else None}; "
            f"import {module} as module; module.run_spawned({theirs.fileno()})"
        )
        # Its own group: an interrupt from the keyboard reaches this process alone.
        self._process = subprocess.Popen(
            [sys.executable, "-c", command],
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            process_group=0,
        )
        theirs.close()
        self.pid = self._process.pid

    def wait(self, seconds: float) -> int | None:
        """Wait for its end; return its exit code, None while it runs."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()


def why_no_fork() -> str | None:
    """Return why this process cannot be copied, None where it can."""
    if "fork" not in multiprocessing.get_all_start_methods():
        return f"{sys.platform} cannot fork processes"
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return "CUDA is in use, which does not survive a fork"
    # tqdm's watching thread only sleeps, and a worker draws no bar.
    count = sum(type(thread).__name__ != "TMonitor" for thread in threading.enumerate())
    if count > 1:
        return f"{count} Python threads are running, and a fork would copy one of them alone"
    return None


def leave_interrupts_to_parent() -> None:
    """Let this process leave interrupts to its parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def describe_exit(code: int | None) -> str:
    """Say how a process ended."""
    if code is None:
        return "closed its channel"
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def end_all(workers: Sequence[Worker]) -> None:
    """End processes: close their channels, give them a moment, then kill them."""
    for worker in workers:
        worker.channel.close()
    for worker in workers:
        if worker.wait(SECONDS_TO_END) is None:
            worker.kill()
            worker.wait(SECONDS_TO_END)


def kill_all(workers: Sequence[Worker]) -> None:
    """End processes at once, whatever they do."""
    for worker in workers:
        worker.kill()
    for worker in workers:
        worker.channel.close()
        worker.wait(SECONDS_TO_END)


def usable_cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
