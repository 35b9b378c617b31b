"""Local workers give the numbers of this process, whatever is played and however many there are."""

import gc
import os
import random
import threading
import time
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import nn

from populora_envs import interact_with_env
from populora_envs.stage import Task
from tests.clock import DuckClock
from tests.test_evolve import Watch, assert_same_end, run
from tests.tiny import Aim, Clock, Record, aim_discrete, linear, same, weights


def processes(place, number):
    """Return the states of those with a number in their /proc/PID/stat: 1 the parent, 3 the session."""
    found = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = file.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[place]) == number:
            found[int(file.parent.name)] = fields[0]
    return found


def children():
    """Return the processes that this one has started, also the dead that it has not waited for."""
    return processes(1, os.getpid()).keys()


def global_state():
    numpy = np.random.get_state()  # noqa: NPY002
    return random.getstate(), numpy[1].tobytes(), numpy[2], torch.get_rng_state().tolist()


@pytest.fixture(autouse=True)
def _nobody_is_left_and_no_global_generator_was_touched():
    before, state = children(), global_state()
    yield
    gc.collect()
    assert children() <= before
    assert global_state() == state


def play(envs, num_workers, action=None, *, model=None, generations=2, horizon=8, **settings):
    """Return what some generations show: an `Evaluated` of each, and all tensors at the end."""
    settings = {"seed": 4, "standardize": True, **settings}
    with interact_with_env(envs, num_workers=num_workers, **settings) as interactor:
        population = interactor.population(model, action=action, pop_size=5, low_rank=2)
        shown = []
        for _ in range(generations):
            shown.append(interactor.rollout(population, action, horizon=horizon, num_episodes=2))
            population.evolve_(shown[-1].fitnesses)
    return shown, [*weights(population), *population.model.state_dict().values()]


def assert_same(first, second):
    """Two results of `play` are equal to the last bit, statistics included."""
    for one, other in zip(first[0], second[0], strict=True):
        assert same([one.fitnesses, one.returns], [other.fitnesses, other.returns])
        assert torch.equal(one.lengths, other.lengths)
        assert one.ends == other.ends
        assert one.env_steps == other.env_steps
        assert [m.count for m in one.moments] == [m.count for m in other.moments]
        assert same([m.mean for m in one.moments], [m.mean for m in other.moments])
        assert same([m.squares for m in one.moments], [m.squares for m in other.moments])
    assert same(first[1], second[1])
    assert first[0][0].returns.isfinite().all()


# --- the same numbers


class Twins(nn.Module):
    """No Sequential: two branches that are added."""

    def __init__(self):
        super().__init__()
        self.left, self.right, self.out = nn.Linear(2, 6), nn.Linear(2, 6), nn.Linear(6, 1)

    def forward(self, x):
        return self.out(torch.sin(self.left(x)) + self.right(x).tanh()).tanh()


def aims(count=5, **settings):
    return [Aim(**settings) for _ in range(count)]


def registered(name):
    return lambda: [gymnasium.make(name) for _ in range(4)]


def dm_cart_poles():
    from dm_control import suite  # slow to import, and fresh workers import this module

    return [suite.load("cartpole", "balance", task_kwargs={"random": 0}) for _ in range(3)]


INHERITED = {
    "instances": (aims, {}),
    "cut by the horizon": (aims, {"horizon": 3}),
    "raw observations": (aims, {"standardize": False, "model": linear()}),
    "function of the output": (aims, {"action": lambda output: 0.5 * output.sin()}),
    "no Sequential": (aims, {"model": Twins()}),
    "dict": (lambda: {"short": aims(3, length=4), "long": aims(4)}, {}),
    "dict of instances and a class": (lambda: {"made": Aim, "instances": aims(3, length=4)}, {}),
    "drawn index": (lambda: [aim_discrete() for _ in range(3)], {"action": "categorical"}),
    "CartPole": (registered("CartPole-v1"), {"horizon": None, "action": "categorical"}),
    "Pendulum": (registered("Pendulum-v1"), {"horizon": 40}),
    "Pendulum, beta": (registered("Pendulum-v1"), {"horizon": 40, "action": "beta"}),
    "Pendulum, drawn": (registered("Pendulum-v1"), {"horizon": 40, "action": "squashed_gaussian"}),
    "LunarLander": (registered("LunarLander-v3"), {"horizon": 60}),
    "dm_control": (dm_cart_poles, {"horizon": 40}),
}


@pytest.mark.parametrize("name", INHERITED)
def test_any_number_of_workers_that_inherit_environments_gives_the_same(name):
    make, settings = INHERITED[name]
    expected = play(make(), 0, **settings)
    for num_workers in (1, 2, 3):
        assert_same(play(make(), num_workers, **settings), expected)


VECTORS = {
    "next": lambda: SyncVectorEnv([Aim] * 3),
    "same": lambda: SyncVectorEnv([Aim] * 2, autoreset_mode=AutoresetMode.SAME_STEP),
}
MADE = {
    "id": ("CartPole-v1", "CartPole-v1"),
    "id of dm_control": ("dm_control/cartpole-balance", "dm_control/cartpole-balance"),
    "classes and factories": ([Aim, lambda: Aim(), lambda: aims(2)], Aim),
    "dict of vector environments": (VECTORS, {"next": Aim, "same": Aim}),
}


@pytest.mark.parametrize("name", MADE)
def test_workers_that_make_environments_give_the_same(name):
    envs, alone = MADE[name]
    assert_same(play(envs, 2), play(alone, 0))


@pytest.mark.parametrize("envs", [Aim, aims()], ids=["made", "inherited"])
def test_populations_of_any_size_and_structure_take_turns(envs):
    models = [nn.Sequential(*(linear(2, 2) for _ in range(i)), linear()) for i in range(11)]
    shown = []
    for num_workers in (0, 2):
        with interact_with_env(envs, num_workers=num_workers, seed=4) as interactor:
            populations = [interactor.population(m, pop_size=2 + i) for i, m in enumerate(models)]
            shown.append([interactor.evaluate(p, horizon=8) for p in populations * 2])
    assert same(*shown)


# --- who plays what


class Logged(Clock):
    """Notes each episode and who plays it, and goes on once enough have been noted."""

    def __init__(self, log, enough):
        super().__init__()
        self.log, self.enough = log, enough

    def reset(self, *, seed=None, options=None):
        self.seed, self.last = seed, time.monotonic() + 5
        with self.log.open("a") as file:
            file.write(f"{os.getpid()} {seed}\n")
        return super().reset(seed=seed)

    def step(self, action):
        while not self.enough(self.seed, noted(self.log)) and time.monotonic() < self.last:
            time.sleep(0.01)
        return super().step(action)


def noted(log):
    return [tuple(map(int, line.split())) for line in log.read_text().splitlines()]


def play_logged(log, enough, seeds, num_envs, num_workers):
    """Return who has played which seed."""
    envs = [Logged(log, enough) for _ in range(num_envs)]
    with interact_with_env(envs, num_workers=num_workers) as interactor:
        population = interactor.population(linear(1, 2), pop_size=1, low_rank=2)
        shown = interactor.rollout(population, horizon=8, episode_seeds=seeds)
    assert shown.returns.tolist() == [[6.0] * len(seeds)]
    assert sorted(seed for _, seed in noted(log)) == list(seeds)
    return noted(log)


def test_one_long_episode_leaves_all_others_to_the_other_worker(tmp_path):
    def enough(seed, so_far):
        return seed != 0 or len(so_far) == 12

    played = play_logged(tmp_path / "log", enough, tuple(range(12)), 2, 2)
    busy = next(who for who, seed in played if seed == 0)
    assert [seed for who, seed in played if who == busy] == [0]
    assert len({who for who, _ in played} - {os.getpid()}) == 2


@pytest.mark.parametrize(("num_envs", "num_workers"), [(4, 2), (3, 3)])
def test_fewer_jobs_than_slots_are_shared_out(tmp_path, num_envs, num_workers):
    def enough(seed, so_far):
        return len({who for who, _ in so_far}) == 2

    played = play_logged(tmp_path / "log", enough, (0, 1), num_envs, num_workers)
    assert len({who for who, _ in played}) == 2


def test_unseedable_environments_are_split_the_same_way_every_time():
    def draw(number):
        generator = np.random.default_rng(number)
        return lambda time, action: number + generator.uniform() / 10

    shown = []
    for _ in range(2):
        envs = [DuckClock(length=1, pay=draw(number)) for number in range(2)]
        with pytest.warns(UserWarning, match="cannot be seeded per episode"):
            interactor = interact_with_env(envs, num_workers=2)
        with interactor:
            population = interactor.population(linear(1, 2), pop_size=5, low_rank=2)
            shown += [interactor.rollout(population, num_episodes=3).returns for _ in range(2)]
    # job i = episode * 5 + individual belongs to worker i modulo 2
    by_job = [[float((episode * 5 + i) % 2) for episode in range(3)] for i in range(5)]
    assert shown[0].floor().tolist() == by_job
    assert same(shown[:2], shown[2:])
    assert not torch.equal(shown[0], shown[1])


# --- whole runs


def evolve(envs, num_workers, **settings):
    fixed = {"num_generations": 5, "pop_size": 8, "num_workers": num_workers}
    return run(envs, **{**fixed, **settings})


def test_runs_and_their_champions_do_not_depend_on_workers(tmp_path):
    expected = evolve(Aim, 0, checkpoint_dir=tmp_path / "alone")
    assert_same_end(evolve(Aim, 2, checkpoint_dir=tmp_path / "workers"), expected)
    scores = []
    for num_workers in (0, 2):
        with interact_with_env(aims(), num_workers=num_workers) as interactor:
            scores.append(interactor.evaluate_policy(expected[0], num_episodes=20, horizon=8))
    assert torch.equal(scores[0].returns, scores[1].returns)
    assert torch.equal(scores[0].lengths, scores[1].lengths)


def test_run_interrupted_alone_goes_on_with_workers_as_if_nothing_had_happened(tmp_path):
    watch = Watch(crash_after=2, error=KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        evolve(Aim, 0, checkpoint_dir=tmp_path, watch=watch)
    resumed = evolve(aims(), 2, checkpoint_dir=tmp_path, resume=True)
    assert_same_end(resumed, evolve(Aim, 0))


def test_environments_that_are_passed_are_neither_stepped_nor_closed_here():
    record = Record()
    evolve([Aim(record) for _ in range(4)], 2)
    assert record == Record(made=4)


# --- what cannot be


def test_factories_are_counted_not_what_they_make():
    with pytest.raises(ValueError, match="num_workers=2 are more than the 1"):
        interact_with_env([lambda: aims(2)], num_workers=2)


def test_threads_that_run_by_the_first_evaluation_forbid_the_fork_too():
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    with interact_with_env(aims(), num_workers=2) as interactor:
        population = interactor.population(linear(), pop_size=3, low_rank=2)
        thread.start()
        try:
            with pytest.raises(ValueError, match="2 Python threads"):
                interactor.evaluate(population, horizon=8)
        finally:
            over.set()
            thread.join()


def test_policy_on_an_accelerator_is_refused():
    task, device = Task(1, (0,), (1,), draws=False, with_moments=False), torch.device("meta")
    with (
        interact_with_env(aims(), num_workers=2) as interactor,
        pytest.raises(ValueError, match="workers play on the CPU and the policy is on meta"),
    ):
        interactor.players.play(linear(), task, None, device, 1)


def test_function_that_cannot_be_sent_is_named():
    lock = threading.Lock()

    def guarded(output):
        with lock:
            return output

    with pytest.raises((TypeError, ValueError)) as caught:
        play(aims(), 2, guarded)
    assert "action" in " ".join([str(caught.value), *caught.value.__notes__])


# --- nothing is left


def test_workers_leave_no_file_and_no_memory_behind():
    def count():
        gc.collect()
        # Semaphores come and go with other programs; workers here use none.
        shared = [path for path in Path("/dev/shm").iterdir() if not path.name.startswith("sem.")]
        return len(list(Path("/proc/self/fd").iterdir())), sorted(shared)

    at_first, seen = count(), []
    with interact_with_env(aims(), num_workers=2, seed=4) as interactor:
        for i in range(20):
            population = interactor.population(linear(seed=i), pop_size=2 + i % 3, low_rank=2)
            interactor.evaluate(population, horizon=2)
            seen.append(count())
    assert seen[-1] == seen[2]
    assert count() == at_first


def test_second_interactor_does_not_keep_the_workers_of_the_first_from_ending():
    first, second = (interact_with_env(aims(), num_workers=2, seed=4) for _ in range(2))
    with second:
        with first:
            population = first.population(linear(), pop_size=3, low_rank=2)
            assert torch.equal(*(i.evaluate(population, horizon=8) for i in (first, second)))
            workers = list(first.players._workers._workers.values())
        assert [worker.wait(0) for worker in workers] == [0, 0]


def test_closed_workers_are_closed_again_without_harm_and_start_when_asked():
    interactor = interact_with_env(aims(), num_workers=2, seed=4)
    population = interactor.population(linear(), pop_size=3, low_rank=2)
    first, *_ = (interactor.evaluate(population, horizon=8), interactor.close(), interactor.close())
    with interactor:
        assert torch.equal(interactor.evaluate(population, horizon=8), first)
