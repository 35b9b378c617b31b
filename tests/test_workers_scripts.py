"""Scripts whose workers are interrupted, or left open: everyone is gone soon after."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

import populora_envs
from tests.test_workers import children, processes

SOON = 2.0
"""Seconds within which a death is noticed, and within which all have gone after an interrupt."""


@pytest.fixture(autouse=True)
def _nobody_is_left():
    before = set(children())
    yield
    assert children() <= before


SCRIPT = """
    import json, os, pathlib, sys, time, warnings
    from gymnasium import Env, spaces
    from populora_envs import evolve_with_env, interact_with_env

    PLAYERS = pathlib.Path(sys.argv[1])

    class LowBattery(UserWarning):
        pass

    class Walk(Env):
        observation_space, action_space = spaces.Box(-9.0, 9.0, (1,)), spaces.Box(-1.0, 1.0, (1,))

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            if seed == 13:
                raise LowBattery("empty")
            if seed == 14:
                warnings.warn("low", LowBattery)
            self.place = self.np_random.uniform(-1.0, 1.0, 1).astype("float32")
            return self.place, {}

        def step(self, action):
            (PLAYERS / str(os.getpid())).touch()
            self.place = self.place + 0.1 * action
            return self.place, float(self.place[0]), False, False, {}

    def play(interactor, *seeds):
        population = interactor.population(pop_size=4, low_rank=2)
        return interactor.rollout(population, horizon=8, episode_seeds=seeds).returns.tolist()

    def watch(interactor):
        try:
            play(interactor, 12, 13)
        except Exception as error:
            is_known = isinstance(error, LowBattery)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            play(interactor, 14, 14)
        return [is_known, [w.category is LowBattery for w in caught], play(interactor, 1, 2)]

    if sys.argv[2] == "made":
        evolve_with_env(Walk, num_envs=2, num_workers=2, horizon=10**9, progress=True)
    if sys.argv[2] == "inherited":
        evolve_with_env([Walk(), Walk()], num_workers=2, horizon=10**9, progress=True)
    inherited = interact_with_env([Walk(), Walk(), Walk()], num_workers=2)
    made = interact_with_env(Walk, num_workers=2)
    alone = play(interact_with_env(Walk), 1, 2)
    print(json.dumps([alone, watch(inherited), watch(made)]))
"""


def start(folder, what):
    """Start the script, which has no guard, in a session of its own."""
    file, players = folder / "script.py", folder / "players"
    players.mkdir()
    file.write_text(textwrap.dedent(SCRIPT))
    return players, subprocess.Popen(
        [sys.executable, str(file), str(players), what],
        env={**os.environ, "PYTHONPATH": str(Path(populora_envs.__file__).parents[1])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def test_script_without_a_guard_keeps_its_classes_and_ends_quietly_with_workers_open(tmp_path):
    _, process = start(tmp_path, "both")
    printed, complaints = process.communicate(timeout=60)
    alone, *others = json.loads(printed)
    expected = [True, [True], alone]
    assert (*others, complaints, process.returncode) == (expected, expected, "", 0)


def wait_until(holds, seconds):
    """Wait until something holds; return how long that took."""
    start = time.monotonic()
    while not holds():
        assert time.monotonic() < start + seconds
        time.sleep(0.01)
    return time.monotonic() - start


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize("kind", ["inherited", "made"])
def test_everyone_is_gone_soon_after_a_run_is_stopped(tmp_path, kind, stop):
    players, process = start(tmp_path, kind)

    def are_gone():
        states = processes(3, process.pid).values()
        return process.poll() is not None and not {*states} - {"Z"}

    try:
        wait_until(lambda: len([*players.iterdir()]) == 2 or process.poll() is not None, 30)
        assert len(processes(3, process.pid)) == 3
        # the keyboard reaches the whole group, other signals the main process alone
        (os.killpg if stop is signal.SIGINT else os.kill)(process.pid, stop)
        assert wait_until(are_gone, 20) < SOON
    finally:
        process.kill()
        complaints = process.communicate()[1]
    assert process.returncode == -stop
    assert complaints.count("Traceback") == (stop is signal.SIGINT)
