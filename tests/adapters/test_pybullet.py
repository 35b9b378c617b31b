"""PyBullet, for real: the environments of pybullet-envs-gymnasium, and raw ones."""

import copy
import sys

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv
from torch import nn

from populora_envs import evolve_with_env, interact_with_env
from populora_envs.simulators import make
from populora_envs.testing import check_adapter
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


@pytest.mark.parametrize("form", ["id", "env", "list", "vector"])
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
    }[form]()
    run = rollout(envs, outputs)
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


def test_it_keeps_the_contract():
    report = check_adapter(f"pybullet/{HOPPER}")
    assert report.seeds_slots
    assert report.time_limit == 1000


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


def test_two_generations_run():
    _, history = evolve_with_env(
        f"pybullet/{PENDULUM}", num_generations=2, pop_size=4, num_envs=2, return_history=True
    )
    assert len(history) == 2


def test_an_unknown_id_lists_near_names():
    with pytest.raises(ValueError, match=r"near names: .*HopperBulletEnv-v0"):
        make("pybullet/HoperBulletEnv-v0")


def test_a_missing_package_names_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "pybullet_envs_gymnasium", None)
    with pytest.raises(ImportError) as raised:
        make(f"pybullet/{HOPPER}")
    assert any("populora-envs[pybullet]" in note for note in raised.value.__notes__)


def test_no_other_simulator_is_imported():
    code = f"from populora_envs.simulators import make; make('pybullet/{HOPPER}')"
    assert imported_by(code) <= {"pybullet", "pybullet_envs_gymnasium"}
