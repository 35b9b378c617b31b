"""Processes that work for this one and never outlive it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from populora_envs import processes
from populora_envs.processes import (
    Forked,
    Spawned,
    describe_exit,
    end_all,
    kill_all,
    usable_cores,
    why_no_fork,
)

PATIENCE = 20.0
ECHO = """
from multiprocessing.connection import Connection
{imports}

def run_spawned(descriptor):
    channel = Connection(descriptor)
    {first}
    try:
        while True:
            channel.send(("echo", channel.recv()))
    except EOFError:
        pass
"""
SCRIPT = """
import os, sys, time
from populora_envs.processes import Forked, Spawned

def busy(channel):
    channel.send("ready")
    time.sleep(60)

workers = [Forked(busy), Spawned("echo_of_parent")]
workers[0].channel.recv()
workers[1].channel.send(1)
workers[1].channel.recv()
print(*[worker.pid for worker in workers], flush=True)
sys.stdin.read()
"""


def echo(channel):
    try:
        while True:
            channel.send(("echo", channel.recv()))
    except EOFError:
        pass


def deaf(channel):
    channel.send("ready")
    time.sleep(60)


@pytest.fixture
def modules(tmp_path, monkeypatch):
    """Modules that a fresh interpreter finds: one that echoes, and one that belongs to its parent."""
    (tmp_path / "echo_module.py").write_text(ECHO.format(imports="", first=""))
    belongs = {
        "imports": "from populora_envs.processes import leave_interrupts_to_parent",
        "first": "leave_interrupts_to_parent()",
    }
    (tmp_path / "echo_of_parent.py").write_text(ECHO.format(**belongs))
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.fixture
def start(modules):
    """Starts workers that are gone when the test is over."""
    started = []

    def begin(kind, target=echo):
        worker = Forked(target) if kind == "forked" else Spawned("echo_module")
        started.append(worker)
        return worker

    yield begin
    kill_all(started)


def ask(worker, thing):
    worker.channel.send(thing)
    assert worker.channel.poll(PATIENCE), "no answer"
    return worker.channel.recv()


def ends(pid):
    """Whether a process that is no child of this one is gone before long, or nobody's zombie."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":
            return True
        time.sleep(0.02)
    return False


# --- both kinds

KINDS = ["forked", "spawned"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_worker_is_another_process_that_answers_over_its_channel(kind, start):
    worker = start(kind)
    assert worker.pid != os.getpid()
    assert ask(worker, {"a": [1, 2]}) == ("echo", {"a": [1, 2]})
    assert worker.wait(0) is None


@pytest.mark.parametrize("kind", KINDS)
def test_a_worker_ends_by_itself_when_its_channel_closes(kind, start):
    worker = start(kind)
    ask(worker, 1)
    worker.channel.close()
    assert worker.wait(PATIENCE) == 0
    assert worker.wait(0) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_worker_says_by_what_and_its_channel_ends(kind, start):
    worker = start(kind)
    ask(worker, 1)
    worker.kill()
    assert worker.wait(PATIENCE) == -signal.SIGKILL
    assert describe_exit(worker.wait(0)) == "was killed by SIGKILL"
    with pytest.raises((EOFError, OSError)):
        worker.channel.recv()
    worker.kill()


@pytest.mark.parametrize("kind", KINDS)
def test_several_workers_end_together(kind, start):
    workers = [start(kind), start("forked")]
    assert [ask(worker, i) for i, worker in enumerate(workers)] == [("echo", 0), ("echo", 1)]
    end_all(workers)
    assert [worker.wait(0) for worker in workers] == [0, 0]
    assert all(worker.channel.closed for worker in workers)


# --- copies


def test_a_copy_has_what_lies_in_this_process(start):
    secret = {"number": 41, "function": lambda x: x + 1}

    def answer(channel):
        channel.send(secret["function"](secret["number"]))

    worker = start("forked", answer)
    assert worker.channel.recv() == 42
    assert worker.wait(PATIENCE) == 0


@pytest.mark.parametrize("code", [0, 3])
def test_the_exit_code_is_that_of_the_copy(code, start):
    worker = start("forked", lambda channel: os._exit(code))
    assert worker.wait(PATIENCE) == code


def test_an_error_in_a_copy_is_an_exit_code(start, capfd):
    def fail(channel):
        raise ValueError("so it ends")

    worker = start("forked", fail)
    assert worker.wait(PATIENCE) == 1
    assert "so it ends" in capfd.readouterr().err


def test_a_later_copy_does_not_keep_the_channels_of_earlier_ones_open(start):
    first = start("forked")
    second = start("forked")
    ask(second, 1)
    first.channel.close()
    assert first.wait(PATIENCE) == 0
    assert ask(second, 2) == ("echo", 2)


def test_an_interrupt_from_the_keyboard_leaves_a_copy_alone_and_a_request_to_end_does_not(start):
    worker = start("forked")
    ask(worker, 1)
    os.kill(worker.pid, signal.SIGINT)
    assert ask(worker, 2) == ("echo", 2)
    os.kill(worker.pid, signal.SIGTERM)
    assert worker.wait(PATIENCE) == -signal.SIGTERM


def test_handlers_of_the_parent_do_not_run_in_a_copy(start):
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        worker = start("forked")
        ask(worker, 1)
        os.kill(worker.pid, signal.SIGTERM)
        assert worker.wait(PATIENCE) == -signal.SIGTERM
    finally:
        signal.signal(signal.SIGTERM, before)


# --- fresh interpreters


def test_a_fresh_interpreter_has_a_group_of_its_own_so_the_keyboard_does_not_reach_it(start):
    worker = start("spawned")
    ask(worker, 1)
    assert os.getpgid(worker.pid) == worker.pid != os.getpgid(0)


def test_a_fresh_interpreter_that_cannot_begin_ends_with_an_error(modules, capfd):
    worker = Spawned("no_such_module")
    try:
        assert worker.wait(PATIENCE) == 1
        with pytest.raises(EOFError):
            worker.channel.recv()
    finally:
        kill_all([worker])
    assert "no_such_module" in capfd.readouterr().err


def test_a_worker_lives_on_when_the_thread_that_started_it_ends(modules):
    started = []

    def begin():
        started.append(Spawned("echo_of_parent"))
        ask(started[0], 1)

    thread = threading.Thread(target=begin)
    thread.start()
    thread.join()
    try:
        assert started[0].wait(0.3) is None
        assert ask(started[0], 2) == ("echo", 2)
    finally:
        kill_all(started)


# --- the end


def test_workers_that_do_not_listen_are_killed_after_a_moment(start, monkeypatch):
    monkeypatch.setattr(processes, "SECONDS_TO_END", 0.2)
    worker = start("forked", deaf)
    assert worker.channel.recv() == "ready"
    end_all([worker])
    assert worker.wait(0) == -signal.SIGKILL


def test_killing_everyone_closes_the_channels_and_may_be_repeated(start):
    workers = [start("forked", deaf), start("forked", deaf)]
    kill_all(workers)
    assert [worker.wait(0) for worker in workers] == [-signal.SIGKILL] * 2
    assert all(worker.channel.closed for worker in workers)
    kill_all(workers)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends the children of a dead parent")
def test_workers_in_the_middle_of_something_do_not_outlive_a_parent_that_is_killed(modules):
    script = f"import sys; sys.path[:] = {sys.path!r}\n{SCRIPT}"
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == 2
        parent.kill()
        parent.wait(PATIENCE)
    assert [ends(pid) for pid in pids] == [True, True]


# --- words


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (None, "closed its channel"),
        (0, "ended with exit code 0"),
        (3, "ended with exit code 3"),
        (-9, "was killed by SIGKILL"),
        (-11, "was killed by SIGSEGV"),
        (-200, "was killed by signal 200"),
    ],
)
def test_an_end_is_said_in_words(code, words):
    assert describe_exit(code) == words


def test_running_threads_are_why_there_is_no_fork():
    go = threading.Event()
    threads = [threading.Thread(target=go.wait) for _ in range(2)]
    assert why_no_fork() is None
    for thread in threads:
        thread.start()
    try:
        assert why_no_fork() == (
            "3 Python threads are running, and a fork would copy one of them alone"
        )
    finally:
        go.set()
        for thread in threads:
            thread.join()
    assert why_no_fork() is None


def test_an_accelerator_in_use_is_why_there_is_no_fork(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert why_no_fork() == "CUDA is in use, which does not survive a fork"


def test_a_system_without_fork_is_why_there_is_none(monkeypatch):
    monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda: ["spawn"])
    assert why_no_fork() == f"{sys.platform} cannot fork processes"


def test_the_usable_cores_are_those_of_this_process(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {2, 5, 7}, raising=False)
    assert usable_cores() == 3


@pytest.mark.parametrize(("count", "expected"), [(6, 6), (None, 1)])
def test_without_an_affinity_all_cores_count_and_one_where_nobody_knows(
    count, expected, monkeypatch
):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: count)
    assert usable_cores() == expected
