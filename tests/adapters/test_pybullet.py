"""PyBullet, for real: the environments of pybullet-envs-gymnasium, and raw ones."""

import copy
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from torch import nn

from populora_envs import evolve_with_env, interact_with_env
from populora_envs.simulators import make
from populora_envs.testing import check_adapter
from tests.clock import Clock
from tests.imported import imported_by

pytest.importorskip("pybullet_envs_gymnasium", reason="pybullet-envs-gymnasium is missing")

import pybullet
from pybullet_utils.bullet_client import BulletClient

PENDULUM, HOPPER = "InvertedPendulumBulletEnv-v0", "HopperBulletEnv-v0"


def still(outputs):
    return torch.zeros(len(outputs), 3 if outputs.shape[1] == 3 else 1)


def rollout(envs, outputs, **settings):
    with interact_with_env(envs, **settings) as interactor:
        model = nn.Linear(interactor.encoder.shape[0], outputs)
        population = interactor.population(model, pop_size=2, low_rank=1)
        return interactor.rollout(population, action=still, episode_seeds=[0])


@pytest.mark.parametrize("form", ["id", "env", "list", "vector", "processes"])
@pytest.mark.parametrize(
    ("name", "outputs", "expected", "length"),
    [(PENDULUM, 1, 31.0, 31), (HOPPER, 3, 44.937567997019510, 28)],
)
def test_the_ground_truth_of_all_but_the_first_episode(form, name, outputs, expected, length):
    env_id = f"pybullet/{name}"
    envs = {
        "id": lambda: env_id,
        "env": lambda: make(env_id),
        "list": lambda: [make(env_id) for _ in range(2)],
        "vector": lambda: SyncVectorEnv([lambda: make(env_id)] * 2),
        "processes": lambda: AsyncVectorEnv([lambda: make(env_id)] * 2),
    }[form]()
    run = rollout(envs, outputs)
    if form == "processes":
        envs.close()
    assert run.returns.tolist() == [[pytest.approx(expected, abs=1e-6)]] * 2
    assert run.lengths.tolist() == [[length]] * 2
    assert run.ends == [["terminated"]] * 2


@pytest.mark.parametrize("name", [HOPPER, "AntBulletEnv-v0"])
def test_the_first_episode_in_a_new_world_goes_otherwise_so_it_is_not_played(name):
    """A fresh Hopper that stands still earns 44.884, and 44.938 in every later episode of that seed."""

    def episode(env):
        env.reset(seed=0)
        total, over = 0.0, False
        while not over:
            _, reward, terminated, truncated, _ = env.step(np.zeros(env.action_space.shape))
            total, over = total + float(reward), terminated or truncated
        return total

    raw = gymnasium.make(name)
    first, second, third = (episode(raw) for _ in range(3))
    assert first != second
    assert second == third
    with interact_with_env(f"pybullet/{name}") as interactor:
        population = interactor.population(pop_size=3)
        zeros = lambda outputs: torch.zeros_like(outputs)  # noqa: E731
        run = interactor.rollout(population, action=zeros, episode_seeds=[0])
    assert run.returns.tolist() == [[pytest.approx(second, abs=1e-9)]] * 3


@pytest.mark.parametrize("name", [HOPPER, PENDULUM, "ReacherBulletEnv-v0"])
def test_it_keeps_the_contract(name):
    report = check_adapter(f"pybullet/{name}")
    assert report.seeds_slots
    assert report.time_limit == (150 if name.startswith("Reacher") else 1000)


def test_ids_are_gymnasiums_once_the_package_is_imported():
    assert rollout(HOPPER, 3).returns.tolist() == rollout(f"pybullet/{HOPPER}", 3).returns.tolist()


@pytest.mark.parametrize("name", [HOPPER, "ReacherBulletEnv-v0"])
def test_episodes_are_those_of_a_loop_by_hand(name):
    """Full force on every joint, in a world that has been played in; three lengths of episode."""
    env, seeds = gymnasium.make(name), [5, 6, 7]
    env.reset(seed=0)
    ones = np.ones(env.action_space.shape, np.float32)
    expected = []
    for seed in seeds:
        env.reset(seed=seed)
        total, length, terminated, truncated = 0.0, 0, False, False
        while not terminated and not truncated:
            _, reward, terminated, truncated, _ = env.step(ones)
            total, length = total + float(reward), length + 1
        expected.append((total, length, "terminated" if terminated else "truncated"))
    with interact_with_env([make(f"pybullet/{name}") for _ in range(2)]) as interactor:
        population = interactor.population(pop_size=2)
        run = interactor.rollout(population, action=torch.ones_like, episode_seeds=seeds)
    for i in range(2):
        assert run.returns[i].tolist() == pytest.approx([row[0] for row in expected], abs=1e-6)
        assert run.lengths[i].tolist() == [row[1] for row in expected]
        assert run.ends[i] == [row[2] for row in expected]


def test_copies_in_a_vector_environment_are_refused():
    env = gymnasium.make(HOPPER)
    env.reset(seed=0)
    twin = copy.deepcopy(env)
    with pytest.raises(ValueError, match="environments 0 and 1 share PyBullet's physics client"):
        interact_with_env(SyncVectorEnv([lambda: env, lambda: twin]))


def test_copies_made_before_the_first_reset_have_worlds_of_their_own():
    env = gymnasium.make(HOPPER)
    run = rollout([env, copy.deepcopy(env)], 3)
    assert run.returns.tolist() == [[pytest.approx(44.937567997019510, abs=1e-6)]] * 2


def test_actions_of_another_width_are_an_error():
    narrow = lambda outputs: torch.zeros(len(outputs), 2)  # noqa: E731
    with (
        interact_with_env(f"pybullet/{HOPPER}") as interactor,
        pytest.raises(ValueError, match="action"),
    ):
        interactor.evaluate(interactor.population(pop_size=2), action=narrow)


@pytest.mark.filterwarnings("ignore:individuals .* had rewards or actions that are not finite")
def test_actions_that_are_no_numbers_leave_the_world_as_it_was():
    nothing = lambda outputs: torch.full_like(outputs, float("nan"))  # noqa: E731
    with interact_with_env(f"pybullet/{HOPPER}", num_envs=1) as interactor:
        population = interactor.population(pop_size=1)
        interactor.rollout(population, action=nothing, episode_seeds=[0])
        run = interactor.rollout(population, action=torch.zeros_like, episode_seeds=[0])
    assert run.returns.tolist() == [[pytest.approx(44.937567997019510, abs=1e-6)]]


def test_workers_have_clients_of_their_own():
    def fitness(envs, **settings):
        with interact_with_env(envs, **settings) as interactor:
            population = interactor.population(pop_size=4, init="random")
            return interactor.evaluate(population, episode_seeds=[3, 4], horizon=60)

    here = fitness(f"pybullet/{HOPPER}", num_envs=2)
    assert len(set(here.tolist())) > 1
    assert torch.equal(here, fitness(f"pybullet/{HOPPER}", num_envs=2, num_workers=2))
    begun = [make(f"pybullet/{HOPPER}") for _ in range(2)]
    for env in begun:
        env.reset(seed=1)
    assert torch.equal(here, fitness(begun, num_workers=2))


def test_copies_that_share_a_client_are_refused():
    env = make(f"pybullet/{HOPPER}")
    env.reset(seed=0)
    with pytest.raises(ValueError, match="environments 0 and 1 share PyBullet's physics client"):
        interact_with_env([env, copy.deepcopy(env)])
    with interact_with_env([env, make(f"pybullet/{HOPPER}")]) as interactor:
        assert interactor.num_envs == 2


class Ball(gymnasium.Env):
    """A raw environment: a ball that is pushed upwards; it pays its height."""

    observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, client=None):
        self.client = client or BulletClient(pybullet.DIRECT)
        self.steps = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.client.resetSimulation()
        self.client.setGravity(0, 0, -10)
        sphere = self.client.createCollisionShape(pybullet.GEOM_SPHERE, radius=0.1)
        height = 1.0 + self.np_random.uniform()
        self.ball = self.client.createMultiBody(1.0, sphere, basePosition=[0, 0, height])
        self.steps = 0
        return self.height(), {}

    def height(self):
        position, _ = self.client.getBasePositionAndOrientation(self.ball)
        return np.array([position[2]], np.float32)

    def step(self, action):
        push = [0, 0, 20 * float(action[0])]
        self.client.applyExternalForce(self.ball, -1, push, [0, 0, 0], pybullet.LINK_FRAME)
        self.client.stepSimulation()
        self.steps += 1
        return self.height(), float(self.height()[0]), False, self.steps >= 20, {}

    def close(self):
        if self.client.isConnected():
            self.client.disconnect()


@pytest.mark.filterwarnings("ignore:the environment names no time limit")
def test_a_raw_environment_with_a_client_of_its_own():
    def returns(envs, **settings):
        with interact_with_env(envs, **settings) as interactor:
            torch.manual_seed(0)
            population = interactor.population(nn.Linear(1, 1), pop_size=3, low_rank=1, seed=0)
            run = interactor.rollout(population, action=torch.tanh, episode_seeds=[1, 2])
        return run.returns

    one = returns([Ball()])
    assert torch.equal(one, returns([Ball() for _ in range(4)]))
    assert torch.equal(one, returns(Ball, num_envs=3, num_workers=2))
    env, total = Ball(), 0.0
    env.reset(seed=1)
    for _ in range(20):
        total += env.step(np.zeros(1))[1]
    with interact_with_env(Ball()) as interactor:
        population = interactor.population(nn.Linear(1, 1), pop_size=1, low_rank=1)
        run = interactor.rollout(population, action=torch.zeros_like, episode_seeds=[1])
    assert run.returns.item() == pytest.approx(total, abs=1e-6)


def test_raw_environments_on_one_client_are_refused():
    client = BulletClient(pybullet.DIRECT)
    with pytest.raises(ValueError, match="environments 0 and 1 share PyBullet's physics client"):
        interact_with_env([Ball(client), Ball(client)])


class Beginner(Ball):
    """Connects a client and calls pybullet's functions without naming it: they take client 0."""

    keeps = True

    def __init__(self):
        number = pybullet.connect(pybullet.DIRECT)
        super().__init__(pybullet)
        self.number = number
        if self.keeps:
            self.physicsClient = number

    def close(self):
        if pybullet.isConnected(self.number):
            pybullet.disconnect(self.number)


class Careless(Beginner):
    """Does not even keep the number."""

    keeps = False


def play(envs, **settings):
    with interact_with_env(envs, **settings) as interactor:
        population = interactor.population(nn.Linear(1, 1), pop_size=4, low_rank=1)
        run = interactor.rollout(population, action=torch.zeros_like, episode_seeds=[1])
    return run.returns.tolist()


def refusal(envs, **settings):
    try:
        return str(play(envs, **settings))
    except ValueError as error:
        return str(error)


def play_beginners(kind):
    """Play one, two and copies of it, in a process in which no other client is connected."""
    one = kind()
    alone = play(one)
    return alone, refusal([one, kind()]), refusal(kind, num_envs=2)


def in_a_new_process(function, *args):
    with ProcessPoolExecutor(1, get_context("spawn")) as executor:
        return executor.submit(function, *args).result()


@pytest.mark.filterwarnings("ignore:the environment names no time limit")
@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Beginner, "environment 1 has PyBullet's physics client 1 and built nothing in it"),
        (Careless, "2 environments built their bodies in 1 of PyBullet's physics clients"),
    ],
)
def test_those_that_build_in_the_client_of_another_are_refused(kind, words):
    """In one world, one would step the other's ball: alone a beginner's environment is right."""
    alone, two, copies = in_a_new_process(play_beginners, kind)
    assert alone == play([Ball()])
    assert words in two
    assert "PyBullet's physics client" in copies


def play_in_workers():
    return play(Beginner, num_envs=2, num_workers=2)


@pytest.mark.filterwarnings("ignore:the environment names no time limit")
def test_each_worker_may_have_one_of_the_beginners():
    assert in_a_new_process(play_in_workers) == play([Ball(), Ball()])


def test_a_number_that_is_no_client_is_no_reason_to_refuse():
    envs = [Clock(), Clock()]
    for env in envs:
        env.p = 1
    with interact_with_env(envs) as interactor:
        assert interactor.num_envs == 2


def test_two_generations_run():
    _, history = evolve_with_env(
        f"pybullet/{PENDULUM}", num_generations=2, pop_size=4, num_envs=2, return_history=True
    )
    assert len(history) == 2


def test_an_unknown_id_lists_near_names():
    with pytest.raises(ValueError, match=r"near names: .*HopperBulletEnv-v0"):
        make("pybullet/HoperBulletEnv-v0")
    with pytest.raises(ValueError, match="has no environment 'CartPole-v1'"):
        make("pybullet/CartPole-v1")


def test_a_missing_package_names_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "pybullet_envs_gymnasium", None)
    with pytest.raises(ImportError) as raised:
        make(f"pybullet/{HOPPER}")
    assert any("populora-envs[pybullet]" in note for note in raised.value.__notes__)


def test_no_other_simulator_is_imported():
    code = f"from populora_envs.simulators import make; make('pybullet/{HOPPER}')"
    assert imported_by(code) <= {"pybullet", "pybullet_envs_gymnasium"}
