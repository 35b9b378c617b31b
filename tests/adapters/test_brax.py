"""brax, for real; it has an environment of its own, see .ci/jax.sh."""

import sys
import warnings

import numpy as np
import pytest
import torch

from populora_envs import evolve_with_env, interact_with_env
from populora_envs.simulators import make
from populora_envs.testing import check_adapter

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of packages that brax needs
    pytest.importorskip("brax", reason="brax is installed by .ci/jax.sh, apart from the others")
    import jax
    from brax import envs
    from brax.envs.wrappers import training

from populora_adapters.brax import Batch

pytestmark = [
    pytest.mark.filterwarnings("ignore:Brax System, piplines and environments"),
    pytest.mark.filterwarnings("ignore:Accessing .* directly from `Data` is deprecated"),
]

PENDULUM = {"env_name": "inverted_pendulum", "backend": "spring", "auto_reset": False}


def pendulum(**settings):
    return envs.create(**{**PENDULUM, **settings})


def rollout(env, seeds=(3, 4), pop_size=3, action=None):
    with interact_with_env(env, standardize=False) as interactor:
        population = interactor.population(pop_size=pop_size, init="random")
        run = interactor.rollout(population, action, episode_seeds=list(seeds))
        return run, [population.merge_(i) for i in range(pop_size)]


def test_it_keeps_the_contract():
    report = check_adapter(lambda: Batch(pendulum(), 3))
    assert report.seeds_slots
    assert report.num_ends > 0
    assert report.time_limit == 1000


def test_returns_are_those_of_a_loop_by_hand():
    run, policies = rollout(Batch(pendulum(episode_length=30), 3), seeds=[5])
    env = pendulum(episode_length=30)
    reset, step = jax.jit(env.reset), jax.jit(env.step)
    for i, policy in enumerate(policies):
        state = reset(jax.random.PRNGKey(5))
        total, length = 0.0, 0
        while not float(state.done):
            with torch.inference_mode():
                action = policy(torch.from_numpy(np.array(state.obs))[None])[0].numpy()
            state = step(state, action)
            total, length = total + float(state.reward), length + 1
        assert run.lengths[i, 0] == length
        assert run.returns[i, 0].item() == pytest.approx(total, abs=1e-4)


def test_episodes_do_not_depend_on_the_slot_or_on_what_was_played_before():
    one, _ = rollout(Batch(pendulum(), 4))
    again, _ = rollout(Batch(pendulum(), 4), seeds=(4, 3))
    assert torch.equal(one.returns, again.returns.flip(1))


@pytest.mark.parametrize("name", ["inverted_pendulum", "fast"])
def test_episodes_do_not_depend_on_how_many_slots_there_are(name):
    made = [envs.create(name, episode_length=40, auto_reset=False) for _ in range(3)]
    runs = [rollout(Batch(env, n))[0] for env, n in zip(made, (1, 4, 16), strict=True)]
    assert all(torch.equal(runs[0].lengths, run.lengths) for run in runs)
    assert all(torch.allclose(runs[0].returns, run.returns, rtol=1e-4) for run in runs)


def test_the_time_limit_is_a_truncation_and_a_fall_is_an_end():
    run, _ = rollout(Batch(envs.create("fast", episode_length=7, auto_reset=False), 2))
    assert run.ends == [["truncated"] * 2] * 3
    assert set(run.lengths.flatten().tolist()) == {7}
    down, _ = rollout(Batch(pendulum(), 2), action=torch.ones_like)
    assert down.ends == [["terminated"] * 2] * 3


def test_its_own_batches_and_resets_are_taken_off():
    wrapped = pendulum(auto_reset=True, batch_size=4)
    assert isinstance(wrapped, training.AutoResetWrapper)
    with interact_with_env(wrapped) as interactor:
        assert interactor.num_envs == 4
    run, _ = rollout(wrapped)
    assert torch.equal(run.returns, rollout(Batch(pendulum(), 4))[0].returns)


def test_the_mjx_backend():
    env = envs.create("inverted_pendulum", backend="mjx", episode_length=5, auto_reset=False)
    run, _ = rollout(Batch(env, 2), seeds=[1])
    assert run.lengths.max() <= 5


def test_an_id_evolves():
    _, history = evolve_with_env(
        "brax/fast", num_generations=2, pop_size=4, horizon=10, return_history=True
    )
    assert len(history) == 2


def test_an_unknown_id_lists_near_names():
    with pytest.raises(ValueError, match=r"near names: .*ant"):
        make("brax/antt")


def test_a_missing_package_says_how_it_is_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "brax", None)
    with pytest.raises(ImportError) as raised:
        make("brax/ant")
    assert any("pip install" in note for note in raised.value.__notes__)
