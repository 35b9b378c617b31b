"""EnvPool, for real."""

import sys

import numpy as np
import pytest
import torch
from torch import nn

from populora_envs import evolve_with_env, interact_with_env
from populora_envs.simulators import make
from populora_envs.testing import check_adapter
from tests.imported import imported_by

envpool = pytest.importorskip("envpool", reason="EnvPool is not installed")

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*precision lowered by casting"),
    pytest.mark.filterwarnings("ignore:.*cannot be seeded per episode"),
    pytest.mark.filterwarnings("ignore:EnvPool takes seeds only"),
]


def pool(name="CartPole-v1", num_envs=4, **settings):
    return envpool.make(name, env_type="gymnasium", num_envs=num_envs, **settings)


def upright(logits):
    """Right where the pole leans to the right."""
    return (logits[:, 2] + 0.5 * logits[:, 3] > 0).long()


def always_right(logits):
    return torch.ones(len(logits), dtype=torch.int64)


def by_hand(env, act, episodes):
    """Returns and lengths of the first episodes of each environment of a pool, as it resets itself."""
    observation, _ = env.reset()
    done, returns = [[] for _ in range(env.num_envs)], np.zeros(env.num_envs)
    resets = np.zeros(env.num_envs, bool)
    lengths = np.zeros(env.num_envs, int)
    while min(map(len, done)) < episodes:
        observation, reward, terminated, truncated, _ = env.step(act(observation))
        returns[~resets] += reward[~resets]
        lengths[~resets] += 1
        ends = (terminated | truncated) & ~resets
        for i in np.flatnonzero(ends):
            done[i].append((float(returns[i]), int(lengths[i])))
        returns[ends | resets] = 0.0
        lengths[ends | resets] = 0
        resets = ends
    return done


@pytest.mark.parametrize("num_envs", [1, 4, 7])
def test_first_episodes_are_those_of_a_loop_over_the_pool(num_envs):
    hand = by_hand(pool(num_envs=num_envs, seed=3), lambda o: np.ones(len(o), int), 1)
    with interact_with_env(pool(num_envs=num_envs, seed=3)) as interactor:
        population = interactor.population(nn.Identity_(), pop_size=num_envs) if False else None
        population = interactor.population(nn.Linear(4, 2), pop_size=num_envs, low_rank=1)
        played = interactor.rollout(population, action=always_right)
    assert played.returns[:, 0].tolist() == [first[0][0] for first in hand]
    assert played.lengths[:, 0].tolist() == [first[0][1] for first in hand]


def test_no_step_is_wasted_between_episodes():
    """By itself the pool would spend one step on each reset; then lengths or returns would be off by one."""
    with interact_with_env(pool()) as interactor:
        population = interactor.population(nn.Linear(4, 2), pop_size=3, low_rank=1)
        played = interactor.rollout(population, action=always_right, num_episodes=20)
    assert torch.equal(played.returns, played.lengths.double())  # every step pays 1
    assert played.lengths.min() >= 7
    assert played.lengths.max() <= 12


def test_the_time_limit_is_a_truncation():
    model = nn.Linear(4, 4)
    with torch.no_grad():
        model.weight.copy_(torch.eye(4))
        model.bias.zero_()
    with interact_with_env(pool(seed=1)) as interactor:
        population = interactor.population(model, pop_size=2, low_rank=1, init="zero")
        played = interactor.rollout(population, action=upright)
    assert played.lengths.tolist() == [[500], [500]]
    assert played.ends == [["truncated"], ["truncated"]]


def test_dict_observations_of_its_dm_control_tasks():
    hand = by_hand(pool("CheetahRun-v1", 2, seed=1), lambda o: np.full((2, 6), 0.5), 1)
    with interact_with_env(pool("CheetahRun-v1", 2, seed=1)) as interactor:
        assert interactor.encoder.shape == (17,)
        population = interactor.population(nn.Linear(17, 6), pop_size=2, low_rank=1)
        played = interactor.rollout(population, action=lambda out: torch.full_like(out, 0.5))
    assert played.returns[:, 0].tolist() == pytest.approx([first[0][0] for first in hand], abs=1e-6)
    assert played.lengths.tolist() == [[1000], [1000]]


@pytest.mark.parametrize("name", ["CartPole-v1", "HalfCheetah-v5", "CheetahRun-v1"])
def test_it_keeps_the_contract(name):
    report = check_adapter(lambda: pool(name, 3))
    assert not report.seeds_slots
    assert report.time_limit == (500 if name == "CartPole-v1" else 1000)


def test_two_pools_made_alike_give_the_same_and_one_goes_on():
    def fitnesses():
        with interact_with_env(pool(seed=5)) as interactor:
            population = interactor.population(pop_size=4, init="random")
            return [interactor.evaluate(population).tolist() for _ in range(3)]

    first = fitnesses()
    assert first == fitnesses()
    assert first[0] != first[1]


def test_it_says_that_it_cannot_be_seeded():
    with pytest.warns(UserWarning, match="EnvPool takes seeds only when a pool is made"):
        interact_with_env(pool()).close()


def test_an_id_gets_a_pool_of_the_size_that_is_of_use_and_evolves():
    with interact_with_env("envpool/CartPole-v1") as interactor:
        interactor.evaluate(interactor.population(pop_size=6))
        assert interactor.num_envs == 6
    _, history = evolve_with_env(
        "envpool/Pendulum-v1", num_generations=2, pop_size=4, num_envs=3, return_history=True
    )
    assert len(history) == 2
    assert make("envpool/CartPole-v1").num_envs == 1


def test_an_unknown_id_lists_near_names():
    with pytest.raises(ValueError, match=r"EnvPool has no environment 'CartPole-v9'.*CartPole-v1"):
        interact_with_env("envpool/CartPole-v9")


def test_a_missing_package_names_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "envpool", None)
    with pytest.raises(ImportError) as raised:
        interact_with_env("envpool/CartPole-v1")
    assert any("populora-envs[envpool]" in note for note in raised.value.__notes__)


def test_what_cannot_work_is_refused():
    with pytest.raises(ValueError, match="steps 2 of its 4 environments at a time"):
        interact_with_env(pool(batch_size=2))
    with pytest.raises(TypeError, match='pass env_type="gymnasium"'):
        interact_with_env(envpool.make("CartPole-v1", env_type="dm", num_envs=2))
    with pytest.raises(ValueError, match="a pool is a batch already"):
        interact_with_env([pool(), pool()])
    with pytest.raises(ValueError, match="these environments exist already"):
        interact_with_env(pool(), num_envs=3)


def test_no_other_simulator_is_imported():
    code = "from populora_envs.simulators import make; make('envpool/CartPole-v1')"
    assert imported_by(code) == {"envpool"}


def test_a_pool_without_a_time_limit_tells_none():
    with interact_with_env(pool("Blackjack-v1")) as interactor:
        assert interactor.players.entries[0].adapter.time_limit is None
