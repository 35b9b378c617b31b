"""How local workers end: errors, deaths, interrupts; nothing is lost and nobody is left."""

import ctypes
import faulthandler
import io
import os
import re
import signal
import sys
import threading
import time
import warnings
from functools import partial

import numpy as np
import pytest
import torch
from tqdm import tqdm

from populora_envs import interact_with_env
from populora_envs.workers import WorkerDiedError
from tests.clock import DuckClock
from tests.test_evolve import assert_same_end, run
from tests.test_workers import children
from tests.tiny import Aim, linear, same

SEEDS = (11, 12, 13)
SOON = 2.0
"""Seconds within which a death is noticed, and within which all have gone after an interrupt."""
pytestmark = pytest.mark.filterwarnings("ignore:these environments cannot be seeded")


@pytest.fixture(autouse=True)
def _nobody_is_left():
    before = set(children())
    yield
    assert children() <= before


def opened(envs, num_workers=2):
    """Return an interactor, and a population of three in its seventh generation."""
    interactor = interact_with_env(envs, num_workers=num_workers, seed=4, standardize=True)
    population = interactor.population(linear(), pop_size=3, low_rank=2)
    population.generation = 6
    return interactor, population


def rollout(envs, num_workers=2):
    interactor, population = opened(envs, num_workers)
    with interactor:
        return interactor.rollout(population, horizon=8, episode_seeds=SEEDS)


def notes_of(caught):
    return "\n".join(caught.value.__notes__)


# --- what happens in a worker


class NoLicenceError(Exception):
    pass


class StubbornError(Exception):
    """Cannot be put together again from what it says."""

    def __init__(self, number, words):
        super().__init__(f"{words} {number}")


def fail(number):
    message = f"expired in environment {number}"
    raise NoLicenceError(message)


def fail_stubbornly(number):
    raise StubbornError(number, "expired in environment")


def kill(number):
    os.kill(os.getpid(), signal.SIGKILL)


def segfault(number):
    faulthandler.disable()
    ctypes.string_at(0)


def leave(number):
    sys.exit(3)


def once_per_file(folder, happens):
    def happens_if_there_is_one(number):
        for file in folder.iterdir():
            try:
                file.unlink()
            except FileNotFoundError:
                continue
            happens(number)

    return happens_if_there_is_one


class Trap(Aim):
    """Something happens at the reset or at every step of episodes of some seeds."""

    def __init__(self, happens, where="step", number=0, seeds=SEEDS[-1:]):
        super().__init__()
        self.happens, self.where, self.number, self.seeds = happens, where, number, seeds

    def reset(self, *, seed=None, options=None):
        self.is_set = seed in self.seeds
        if self.is_set and self.where == "reset":
            self.happens(self.number)
        return super().reset(seed=seed)

    def step(self, action):
        if self.is_set and self.where == "step":
            self.happens(self.number)
        return super().step(action)


def open_here_only(main, happens=fail):
    if os.getpid() != main:
        happens(0)
    return Aim()


class Sealed:
    """A factory that can only be pickled."""

    def __call__(self):
        return Aim()

    def __reduce__(self):
        return open_here_only, (os.getpid(),)


class Grumbling(Aim):
    """Warns at every reset, and draws its rewards from a global generator."""

    def reset(self, *, seed=None, options=None):
        warnings.warn("low battery", RuntimeWarning, stacklevel=1)
        return super().reset(seed=seed)

    def step(self, action):
        observation, _, *rest = super().step(action)
        return observation, np.random.uniform(), *rest  # noqa: NPY002


# --- errors and warnings


@pytest.mark.parametrize("where", ["reset", "step"])
def test_error_in_a_worker_comes_out_as_it_is_and_says_where_it_was(where):
    interactor, population = opened([Trap(fail, where, i) for i in range(4)])
    before = set(children())
    with interactor:
        with pytest.raises(NoLicenceError, match="expired in environment") as caught:
            interactor.rollout(population, horizon=8, episode_seeds=SEEDS)
        assert children() == before
        shown = interactor.rollout(population, horizon=8, episode_seeds=SEEDS[:-1])
    number = int(str(caught.value).split()[-1])
    assert f"in slot {number} in worker {number % 2}" in notes_of(caught)
    assert re.search(r"individual [012], episode 2, step \d+, seed 13", notes_of(caught))
    assert "in generation 6" in notes_of(caught)
    assert "test_workers_ends.py" in str(caught.value.__cause__)
    assert f"in {where}" in str(caught.value.__cause__)
    assert torch.equal(shown.returns, rollout(Aim, 0).returns[:, :-1])


def test_error_that_cannot_travel_arrives_with_its_words():
    with pytest.raises(RuntimeError, match="StubbornError: expired in environment") as caught:
        rollout([Trap(fail_stubbornly) for _ in range(2)])
    assert re.search(r"in slot [01] in worker [01]", notes_of(caught))
    assert "in fail_stubbornly" in str(caught.value.__cause__)


@pytest.mark.parametrize(
    "factory", [partial(open_here_only, os.getpid()), Sealed()], ids=["called", "unpickled"]
)
def test_error_of_a_factory_in_a_worker_comes_out_as_it_is(factory):
    with pytest.raises(NoLicenceError, match="expired in environment 0") as caught:
        rollout(factory, 1)
    assert "in open_here_only" in str(caught.value.__cause__)


def test_warnings_of_workers_are_given_once_here():
    interactor, population = opened([Grumbling() for _ in range(4)])
    with interactor, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            interactor.rollout(population, horizon=8, episode_seeds=SEEDS)
    first, second = (str(warning.message) for warning in caught)
    assert first == "low battery"
    assert "drew from a global generator" in second


# --- deaths


@pytest.mark.parametrize(
    ("happens", "times", "is_made"),
    [(kill, 1, False), (segfault, 1, False), (leave, 3, False), (kill, 1, True)],
)
def test_episodes_of_workers_that_die_are_played_again(tmp_path, happens, times, is_made):
    for number in range(times):
        (tmp_path / str(number)).touch()
    make = partial(Trap, once_per_file(tmp_path, happens))
    shown, expected = rollout(make if is_made else [make() for _ in range(4)]), rollout(Aim, 0)
    assert not list(tmp_path.iterdir())
    assert same([shown.returns, shown.lengths], [expected.returns, expected.lengths])
    assert shown.ends == expected.ends
    assert same([m.squares for m in shown.moments], [m.squares for m in expected.moments])


def test_workers_that_die_between_evaluations_are_replaced():
    before = set(children())
    interactor, population = opened([Aim() for _ in range(4)])
    with interactor:
        for _ in range(3):
            shown = interactor.rollout(population, horizon=8, episode_seeds=SEEDS)
            os.kill(min(children() - before), signal.SIGKILL)
    assert torch.equal(shown.returns, rollout(Aim, 0).returns)


@pytest.mark.parametrize(
    ("happens", "how"), [(kill, "was killed by SIGKILL"), (leave, "ended with exit code 3")]
)
def test_episode_that_always_kills_is_named(happens, how):
    with pytest.raises(WorkerDiedError, match=rf"worker [01] {how}") as caught:
        rollout([Trap(happens) for _ in range(4)])
    place = re.search(r"slot (\d) of entry 0: individual [012], episode 2", notes_of(caught))
    assert str(caught.value).startswith(f"worker {int(place[1]) % 2} ")
    assert "in generation 6" in notes_of(caught)


def test_worker_that_dies_while_it_opens_its_environments_is_reported():
    with pytest.raises(WorkerDiedError, match="worker 0 was killed by SIGKILL while it opened"):
        rollout(partial(open_here_only, os.getpid(), kill), 1)


def test_run_whose_workers_keep_dying_goes_on_from_its_last_checkpoint(tmp_path):
    traps = tmp_path / "traps"
    traps.mkdir()

    def set_traps(population, entry):
        for number in range(99 * (entry["generation"] == 2)):
            (traps / str(number)).touch()

    make = partial(Trap, once_per_file(traps, kill), seeds=range(2**31))
    settings = {"num_workers": 2, "checkpoint_dir": tmp_path / "run"}
    with pytest.raises(WorkerDiedError, match="resume from the last checkpoint"):
        run([make() for _ in range(4)], watch=set_traps, **settings)
    for file in traps.iterdir():
        file.unlink()
    assert_same_end(run([make() for _ in range(4)], resume=True, **settings), run())


class Endless(DuckClock):
    """Cannot be seeded; one of two kills its process once the other one plays, which goes on."""

    def __init__(self, folder, dies):
        super().__init__(length=10**9)
        self.folder, self.dies, self.max_episode_steps = folder, dies, 10**9

    def step(self, action):
        if not self.dies:
            (self.folder / "other plays").touch()
            time.sleep(0.01)
        elif (self.folder / "other plays").exists():
            (self.folder / "death").touch()
            kill(0)
        return super().step(action)


def test_death_is_noticed_at_once_where_environments_cannot_be_rebuilt(tmp_path):
    envs = [Endless(tmp_path, dies=True), Endless(tmp_path, dies=False)]
    with interact_with_env(envs, num_workers=2) as interactor:
        population = interactor.population(linear(1, 2), pop_size=2, low_rank=1)
        with pytest.raises(WorkerDiedError, match=r"worker 0 .* cannot be seeded") as caught:
            interactor.evaluate(population)
    assert time.time() - (tmp_path / "death").stat().st_mtime < SOON
    assert "in slot 0 of entry 0: individual 0, episode 0" in notes_of(caught)
    assert "slot 1" not in notes_of(caught)


def test_death_between_evaluations_does_not_rebuild_unseedable_environments_unseen():
    before = set(children())
    with interact_with_env([DuckClock(), DuckClock()], num_workers=2) as interactor:
        population = interactor.population(linear(1, 2), pop_size=4, low_rank=1)
        interactor.evaluate(population)
        os.kill(min(children() - before), signal.SIGKILL)
        time.sleep(0.1)
        with pytest.raises(WorkerDiedError, match="cannot be seeded"):
            interactor.evaluate(population)


def test_the_watching_thread_of_a_progress_bar_does_not_forbid_workers():
    with tqdm(total=1, file=io.StringIO()):
        assert any(type(thread).__name__ == "TMonitor" for thread in threading.enumerate())
        assert rollout([Aim(), Aim()]).returns.shape == (3, 3)
