"""The score that a run reports is the one that its policy has: chosen on other episodes."""

import dataclasses

import pytest

from populora_envs import evolve_with_env, interact_with_env
from populora_envs.seeds import Purpose, job_seed
from tests.tiny import Aim, Lottery, Record, linear

RUNS = {
    "es": ("CartPole-v1", {"search": "es", "max_env_steps": 12_000}),
    "ga": ("CartPole-v1", {"search": "ga", "max_env_steps": 12_000}),
    "acrobot": ("Acrobot-v1", {"target_fitness": -100, "max_env_steps": 100_000}),
}


@dataclasses.dataclass
class Gap:
    """What a run reported less what its policy scored on 100 episodes more."""

    difference: float
    error: float


def gap(env, seed, **settings):
    policy, history = evolve_with_env(env, seed=seed, return_history=True, **settings)
    last = history[-1]
    with interact_with_env(env, seed=1000 + seed, num_envs=100) as interactor:
        fresh = interactor.evaluate_policy(policy)
    error = (fresh.standard_error**2 + last["champion_se"] ** 2) ** 0.5
    return Gap(last["champion_mean"] - fresh.mean, error)


@pytest.mark.parametrize("name", RUNS)
def test_a_report_lies_within_two_standard_errors_of_fresh_episodes(name):
    """Of an honest report one in twenty does not, by chance; of six runs at most one may."""
    env, settings = RUNS[name]
    gaps = [gap(env, seed, **settings) for seed in range(6)]
    far = [g for g in gaps if abs(g.difference) > 2 * g.error]
    assert len(far) <= 1, gaps


def test_the_luckiest_generation_is_not_reported():
    _, history = evolve_with_env(
        Lottery, linear(2, 2), num_generations=20, horizon=1, return_history=True
    )
    luckiest = max(entry["best_fitness"] for entry in history)
    assert luckiest - history[-1]["champion_mean"] > 5.0


@pytest.mark.parametrize("search", ["es", "ga"])
def test_the_reported_episodes_decided_nothing(search):
    """They are numbered apart, are played last, and each once."""
    record = Record()
    _, history = evolve_with_env(
        lambda: Aim(record),
        linear(),
        search=search,
        num_generations=4,
        horizon=8,
        seed=5,
        return_history=True,
    )
    expected = [job_seed(5, Purpose.REPORT, 0, episode) for episode in range(30)]
    assert history[-1]["champion_episodes"] == 30
    assert sorted(seed for seed in record.seeds if seed in set(expected)) == sorted(expected)
    kinds = [seed // 2**29 for seed in record.seeds if seed is not None]
    assert kinds[-30:] == [Purpose.REPORT] * 30
    assert set(kinds[:-30]) == {Purpose.SELECTION, Purpose.CHAMPION}


def test_the_report_is_what_evaluate_policy_says_of_the_same_episodes():
    settings = {"num_generations": 4, "horizon": 8, "seed": 5, "return_history": True}
    policy, history = evolve_with_env(Aim, linear(), **settings)
    with interact_with_env(Aim, seed=5) as interactor:
        score = interactor.evaluate_policy(policy, num_episodes=30, horizon=8)
    assert score.mean == pytest.approx(history[-1]["champion_mean"])
    assert score.standard_error == pytest.approx(history[-1]["champion_se"])


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("search", ["es", "ga"])
def test_cartpole_is_solved_within_a_hundred_thousand_training_steps(search, seed):
    policy, history = evolve_with_env(
        "CartPole-v1",
        search=search,
        seed=seed,
        target_fitness=475,
        max_env_steps=150_000,
        return_history=True,
    )
    with interact_with_env("CartPole-v1", seed=1000 + seed, num_envs=100) as interactor:
        score = interactor.evaluate_policy(policy)
    last = history[-2] if len(history) > 1 else history[-1]
    training = last["env_steps"] - last["env_steps_validation"]
    assert score.mean >= 475.0
    assert training <= 100_000
