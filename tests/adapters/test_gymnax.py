"""gymnax, for real; it has an environment of its own, see .ci/jax.sh."""

import sys

import numpy as np
import pytest
import torch

from populora_envs import evolve_with_env, interact_with_env
from populora_envs.simulators import make
from populora_envs.testing import check_adapter
from tests.imported import imported_by

pytest.importorskip("gymnax", reason="gymnax is installed by .ci/jax.sh, apart from the others")

import gymnax
import jax

from populora_adapters.gymnax import Batch, GymnaxWorld

IDS = ["CartPole-v1", "Pendulum-v1", "MountainCarContinuous-v0", "Breakout-MinAtar", "Catch-bsuite"]


def rollout(envs, episodes=(3, 4), pop_size=4, horizon=None, action=None, **settings):
    with interact_with_env(envs, **settings) as interactor:
        population = interactor.population(pop_size=pop_size, init="random")
        return interactor.rollout(population, action, episode_seeds=list(episodes), horizon=horizon)


@pytest.mark.parametrize("name", IDS)
def test_it_keeps_the_contract(name):
    report = check_adapter(lambda: make(f"gymnax/{name}"))
    assert report.seeds_slots
    batch = check_adapter(lambda: Batch(gymnax.make(name)[0], 3))
    assert batch.num_slots == 3


@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1", "Breakout-MinAtar"])
def test_episodes_do_not_depend_on_how_many_slots_there_are(name):
    one = rollout(f"gymnax/{name}", num_envs=1, horizon=60)
    for count in (4, 16):
        other = rollout(f"gymnax/{name}", num_envs=count, horizon=60)
        assert torch.equal(one.returns, other.returns)
        assert torch.equal(one.lengths, other.lengths)


def test_returns_are_those_of_a_loop_by_hand():
    """The keys: that of the seed begins the episode, folded with the step they advance it."""
    env, params = gymnax.make("CartPole-v1")
    with interact_with_env("gymnax/CartPole-v1", num_envs=3, standardize=False) as interactor:
        population = interactor.population(pop_size=3, init="random")
        run = interactor.rollout(population, episode_seeds=[7])
        policies = [population.merge_(i) for i in range(3)]
    for i, policy in enumerate(policies):
        key = jax.random.PRNGKey(7)
        observation, state = env.reset_env(key, params)
        total, length, over = 0.0, 0, False
        while not over:
            with torch.inference_mode():
                seen = torch.from_numpy(np.array(observation))[None]
                action = int(policy(seen).argmax())
            step = jax.random.fold_in(key, length)
            observation, state, reward, over, _ = env.step_env(step, state, action, params)
            over = bool(over) or bool(env.is_truncated(state, params))
            total, length = total + float(reward), length + 1
        assert (run.returns[i, 0], run.lengths[i, 0]) == (total, length)


def test_the_time_limit_is_a_truncation():
    env, params = gymnax.make("Pendulum-v1")
    batch = Batch(env, 2, params.replace(max_steps_in_episode=25))
    run = rollout(batch)
    assert set(run.lengths.flatten().tolist()) == {25}
    assert run.ends == [["truncated"] * 2] * 4


def test_an_environment_that_exists_gets_slots_by_num_envs():
    env, _ = gymnax.make("CartPole-v1")
    with interact_with_env(env, num_envs=5) as interactor:
        assert interactor.num_envs == 5
        assert interactor.reset(seeds=[1] * 5).unique(dim=0).shape == (1, 4)


def test_seeds_beyond_32_bits_are_kept_apart():
    with interact_with_env("gymnax/CartPole-v1", num_envs=2) as interactor:
        first, second = interactor.reset(seeds=[5, 5 + 2**32])
    assert not torch.equal(first, second)


def test_an_id_evolves_in_one_batch_and_workers_give_the_same():
    settings = {"num_generations": 2, "pop_size": 4, "horizon": 40, "return_history": True}
    _, here = evolve_with_env("gymnax/CartPole-v1", **settings)
    _, there = evolve_with_env("gymnax/CartPole-v1", num_workers=2, **settings)
    assert [e["mean_fitness"] for e in here] == [e["mean_fitness"] for e in there]


def test_an_instance_stays_in_this_process():
    env, _ = gymnax.make("CartPole-v1")
    with pytest.raises(ValueError, match="a vector environment is one simulator"):
        interact_with_env(env, num_envs=4, num_workers=2)


def test_a_list_is_refused():
    env, _ = gymnax.make("CartPole-v1")
    with pytest.raises(ValueError, match="pass one environment and num_envs="):
        interact_with_env([env, gymnax.make("CartPole-v1")[0]])


def test_an_older_interface_is_refused():
    class Old:
        default_params = None

    with pytest.raises(TypeError, match=r"install gymnax 1\.0 or newer"):
        GymnaxWorld(Old())


def test_the_settings_of_jax_stay_as_they_were():
    before = dict(jax.config.values)
    rollout("gymnax/CartPole-v1", num_envs=2, horizon=3)
    assert dict(jax.config.values) == before


def test_an_unknown_id_lists_near_names():
    with pytest.raises(ValueError, match=r"near names: .*CartPole-v1"):
        make("gymnax/CartPole-v9")


def test_a_missing_package_says_how_it_is_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "gymnax", None)
    with pytest.raises(ImportError) as raised:
        make("gymnax/CartPole-v1")
    assert any("pip install" in note for note in raised.value.__notes__)


def test_no_other_simulator_is_imported():
    code = "from populora_envs.simulators import make; make('gymnax/CartPole-v1')"
    assert imported_by(code) == {"gymnax", "jax"}
