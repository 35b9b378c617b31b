"""Who plays: this process, or as many workers as were asked for, or as pay."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import threading
import time
import types
from collections import Counter

import numpy as np
import pytest
import torch
from gymnasium.vector import SyncVectorEnv, VectorWrapper

from populora_envs import evolve_with_env, interact_with_env, players
from populora_envs.workers import Workers
from tests.clock import MODES, ClockVector, DuckClock, anyone
from tests.tiny import Aim, Clock, Record, linear, same, without_times

CARELESS = pytest.mark.filterwarnings("ignore:these environments cannot be seeded per episode")
VECTOR = "a vector environment is one simulator: pass what makes it, for each worker its own"
THREADS = (
    "environments given as instances are inherited by a fork, and 2 Python threads are running, "
    "and a fork would copy one of them alone"
)


class Slow(Clock):
    """A millisecond's work per step where it was made, and none in a copy of that process."""

    home = os.getpid()

    def step(self, action):
        time.sleep(0.001 * (os.getpid() == self.home))
        return super().step(action)


class SlowAim(Aim):
    def step(self, action):
        time.sleep(0.001 * (os.getpid() == Slow.home))
        return super().step(action)


@pytest.fixture
def thread():
    """Another thread that runs."""
    go = threading.Event()
    running = threading.Thread(target=go.wait)
    running.start()
    yield
    go.set()
    running.join()


@pytest.fixture
def eager(monkeypatch):
    """Two cores, on which workers are thought to cost nothing."""
    monkeypatch.setattr(players, "usable_cores", lambda: 2)
    monkeypatch.setattr(players, "SECONDS_TO_FORK", 0.0)


def evaluate(interactor, times=1, pop_size=8):
    population = anyone(interactor, pop_size)
    return [interactor.evaluate(population, horizon=99).tolist() for _ in range(times)]


def chosen(envs, times=1, pop_size=8):
    """What "auto" says after some evaluations."""
    with interact_with_env(envs, num_workers="auto") as interactor:
        evaluate(interactor, times, pop_size)
        return interactor.players.num_workers, interactor.players.choice


# --- a number that is given


@pytest.mark.parametrize(
    ("num_workers", "error", "message"),
    [
        (-1, ValueError, "num_workers must be at least 0, not -1"),
        (1.5, TypeError, "num_workers must be a whole number, not 1.5"),
        ("two", ValueError, "num_workers must be a whole number or 'auto', not 'two'"),
        (True, TypeError, "num_workers must be a whole number, not True"),
    ],
)
def test_what_is_no_number_of_workers_is_refused_and_what_was_opened_closed(
    num_workers, error, message
):
    record = Record()
    with pytest.raises(error, match=f"^{message}$"):
        interact_with_env(lambda: Clock(record=record), num_workers=num_workers)
    assert (record.made, record.closed) == (1, 1)


@pytest.mark.parametrize(
    ("envs", "settings", "most"),
    [
        (lambda: [Clock(), Clock()], {}, 2),
        (lambda: Clock(), {}, 1),
        (lambda: Clock, {"num_envs": 2}, 2),
        (lambda: [Clock, Clock], {}, 2),
        (lambda: {"a": [Clock(), Clock()], "b": [Clock()], "c": Clock}, {}, 1),
    ],
    ids=["instances", "instance", "copies", "classes", "dict"],
)
def test_more_workers_than_environments_are_refused(envs, settings, most):
    message = f"num_workers=3 are more than the {most} environments: pass at most {most}"
    with pytest.raises(ValueError, match=message):
        interact_with_env(envs(), num_workers=3, **settings)
    with interact_with_env(envs(), num_workers=most, **settings) as interactor:
        assert interactor.players.num_workers == most


def test_of_a_class_there_may_be_any_number_of_workers():
    with interact_with_env(Clock, num_workers=np.int64(99)) as interactor:
        assert interactor.players.num_workers == 99


@CARELESS
def test_one_vector_environment_cannot_be_shared():
    env = ClockVector([3, 3], MODES[0])
    with pytest.raises(ValueError, match=f"num_workers=2 cannot be: {VECTOR}; pass num_workers=0"):
        interact_with_env(env, num_workers=2)
    assert env.closes == 0


def test_instances_are_not_forked_while_threads_run(thread):
    with pytest.raises(ValueError, match=f"num_workers=2 cannot be: {THREADS}; pass num_workers=0"):
        interact_with_env([Clock(), Clock()], num_workers=2)
    with interact_with_env([Clock, Clock], num_workers=2) as interactor:
        assert interactor.players.num_workers == 2


def test_there_are_no_workers_on_windows(monkeypatch):
    monkeypatch.setattr(players, "sys", types.SimpleNamespace(platform="win32"))
    with pytest.raises(ValueError, match="cannot be: local workers need a POSIX system"):
        interact_with_env(Clock, num_workers=1)


# --- how many environments there are


def census(folder):
    """A class that notes in which process each of its environments was made."""

    class Noted(Clock):
        def __init__(self):
            super().__init__()
            (folder / f"{os.getpid()}-{time.monotonic_ns()}").touch(exist_ok=False)

    return Noted


def evaluated_and_counted(envs, folder, **settings):
    """How many were made here, and how many in each worker."""
    with interact_with_env(envs, num_workers=2, **settings) as interactor:
        for _ in range(2):
            assert evaluate(interactor, 1, 6) == [[6.0] * 6]
        made = Counter(int(file.name.partition("-")[0]) for file in folder.iterdir())
        return made.pop(os.getpid()), sorted(made.values())


def test_a_number_of_copies_is_spread_over_the_workers_and_one_is_made_here(tmp_path):
    assert evaluated_and_counted(census(tmp_path), tmp_path, num_envs=5) == (1, [2, 3])


def test_as_many_copies_as_are_of_use_are_made_in_the_workers_and_one_here(tmp_path):
    # Instances are inherited by a fork, which is quicker.
    envs = {"made": census(tmp_path), "instances": [Clock(), Clock()]}
    assert evaluated_and_counted(envs, tmp_path) == (1, [3, 3])


def test_stepping_by_hand_makes_the_copies_here():
    record = Record()
    settings = {"num_envs": 3, "num_workers": 2}
    with interact_with_env(lambda: Clock(record=record), **settings) as interactor:
        assert (interactor.num_envs, record.made) == (3, 1)
        assert interactor.reset().shape == (3, 1)
        assert interactor.step(torch.zeros(3, dtype=torch.int64))[1].tolist() == [1.0] * 3
    assert (record.made, record.closed) == (3, 3)


def test_environments_of_workers_are_not_touched_here():
    record = Record()
    envs = [Clock(record=record) for _ in range(4)]
    with interact_with_env(envs, num_workers=2) as interactor:
        assert evaluate(interactor, 2) == [[6.0] * 8] * 2
        assert len(multiprocessing.active_children()) == 2
    assert (record.steps, record.seeds, record.closed) == (0, [], 0)
    assert not multiprocessing.active_children()
    interactor.close()


# --- "auto"


def test_quick_work_stays_in_this_process(monkeypatch):
    monkeypatch.setattr(players, "usable_cores", lambda: 2)
    count, choice = chosen([Clock() for _ in range(4)], times=3)
    assert count == 0
    assert choice == "not yet" or choice.startswith("0: ")


@pytest.mark.parametrize(("pop_size", "expected"), [(3, 0), (4, 2)])
def test_an_evaluation_of_few_jobs_says_nothing_of_those_to_come(pop_size, expected, eager):
    assert chosen([Slow(), Slow()], 1, pop_size) == (expected, "not yet")


@pytest.mark.parametrize(("evaluations", "expected"), [(1, 0), (1000, 2), (None, 2)])
def test_workers_are_started_where_something_is_still_to_come(evaluations, expected, eager):
    with interact_with_env([Slow(), Slow()], num_workers="auto") as interactor:
        if evaluations is not None:
            interactor.players.expect(evaluations)
        evaluate(interactor)
        assert interactor.players.num_workers == expected


@CARELESS
@pytest.mark.parametrize(
    ("envs", "reason"),
    [
        (lambda: VectorWrapper(SyncVectorEnv([Slow, Slow])), VECTOR),
        (lambda: [DuckClock()], "results would depend on it, for slots cannot be seeded"),
        (lambda: Slow(), "there is one core, or one environment"),
    ],
    ids=["vector", "unseeded", "one"],
)
def test_it_says_why_there_can_be_no_workers(envs, reason, eager):
    assert chosen(envs()) == (0, f"0: {reason}")


def test_it_says_that_threads_run(thread, eager):
    assert chosen([Slow(), Slow()]) == (0, f"0: {THREADS}")


def test_it_says_that_there_is_one_core(eager, monkeypatch):
    monkeypatch.setattr(players, "usable_cores", lambda: 1)
    assert chosen(Clock) == (0, "0: there is one core, or one environment")


def test_no_more_workers_than_environments_are_started(eager, monkeypatch):
    monkeypatch.setattr(players, "usable_cores", lambda: 3)
    assert chosen([Slow(), Slow()])[0] == 2


def test_long_work_goes_to_workers_with_the_same_results(eager):
    with interact_with_env([Slow(40) for _ in range(4)], num_workers="auto") as interactor:
        assert interactor.players.choice == "not yet"
        results = evaluate(interactor, 3)
        assert interactor.players.num_workers == 2
        assert re.fullmatch(
            r"2: \d+ env-steps/s against \d+ in this process", interactor.players.choice
        )
    assert results == [[820.0] * 8] * 3


def test_workers_that_are_slower_are_ended(eager, monkeypatch):
    play = Workers.play

    def slowly(self, *arguments):
        time.sleep(0.3)
        return play(self, *arguments)

    monkeypatch.setattr(Workers, "play", slowly)
    record = Record()
    with interact_with_env(
        [Slow(record=record) for _ in range(4)], num_workers="auto"
    ) as interactor:
        assert evaluate(interactor, 4) == [[6.0] * 8] * 4
        assert interactor.players.num_workers == 0
        assert interactor.players.choice.startswith("0: 2 workers gave ")
        assert not multiprocessing.active_children()
        record.steps = 0
        evaluate(interactor)
    assert record.steps == 8 * 3


def test_the_time_that_workers_take_to_start_does_not_count_against_them(eager, monkeypatch):
    start = Workers._start

    def slowly(self):
        if not self._workers:
            time.sleep(1.0)
        start(self)

    monkeypatch.setattr(Workers, "_start", slowly)
    assert chosen([Slow(30) for _ in range(4)], 4)[0] == 2


def test_finding_out_makes_no_extra_steps_and_no_extra_episodes(monkeypatch):
    monkeypatch.setattr(players, "usable_cores", lambda: 2)
    records = []
    for num_workers in (0, "auto"):
        records.append(Record())
        envs = [Clock(record=records[-1]) for _ in range(3)]
        with interact_with_env(envs, num_workers=num_workers) as interactor:
            evaluate(interactor, 3)
    assert records[0] == records[1]
    assert records[1].steps == 3 * 8 * 3
    assert len(records[1].seeds) == 3 * 8


# --- runs


def evolved(num_workers, envs, **settings):
    model, history = evolve_with_env(
        envs,
        linear(),
        pop_size=6,
        low_rank=2,
        num_generations=4,
        horizon=99,
        num_workers=num_workers,
        return_history=True,
        **settings,
    )
    return model.model.state_dict(), without_times(history)


def test_a_run_gives_the_same_whoever_plays_it(eager):
    weights, history = evolved(0, [Aim() for _ in range(3)])
    for num_workers in (1, 3, "auto"):
        other_weights, other_history = evolved(num_workers, [Aim() for _ in range(3)])
        assert same(weights, other_weights)
        assert history == other_history


@pytest.mark.parametrize(
    ("num_workers", "kind", "workers", "words"),
    [(0, Aim, 0, ""), (2, Aim, 2, ""), ("auto", SlowAim, 2, "2: ")],
)
def test_the_choice_lands_in_the_config(num_workers, kind, workers, words, eager, tmp_path):
    envs = [kind(length=40) for _ in range(4)]
    evolved(num_workers, envs, checkpoint_dir=str(tmp_path), standardize=False)
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["num_workers"], config["workers"]) == (num_workers, workers)
    assert config["workers_chosen"].startswith(words)
    assert bool(config["workers_chosen"]) is bool(words)


def test_a_run_of_quick_work_says_so_in_the_config(tmp_path):
    evolved("auto", [Aim(), Aim()], checkpoint_dir=str(tmp_path))
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["workers"] == 0
    assert config["workers_chosen"] == "not yet" or config["workers_chosen"].startswith("0: ")
