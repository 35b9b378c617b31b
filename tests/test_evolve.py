import math

import pytest
import torch
from torch import nn

from populora_envs import evolve_with_env, progress
from tests.runs import Watch as Watch  # for tests/test_workers.py
from tests.runs import assert_same_end, run
from tests.tiny import Aim, Lottery, Record, linear

KEYS = [
    "generation",
    "best_fitness",
    "mean_fitness",
    "median_fitness",
    "std_fitness",
    "diversity",
    "champion_mean",
    "champion_se",
    "champion_episodes",
    "env_steps",
    "env_steps_validation",
    "seconds_env",
    "seconds_forward",
    "seconds_evolution",
    "num_nonfinite",
]


@pytest.fixture(scope="module")
def whole():
    return run()


# --- history


def test_history_has_exactly_the_keys_of_the_design():
    _, history = evolve_with_env(
        Aim, linear(), num_generations=3, horizon=8, pop_size=4, return_history=True
    )
    assert isinstance(history, list)
    assert list(history[0]) == [*KEYS, "base_fitness"]
    assert [list(entry) for entry in history[1:]] == [KEYS, KEYS]
    assert [entry["generation"] for entry in history] == [0, 1, 2]
    assert {type(value) for entry in history for value in entry.values()} == {int, float}


def test_env_steps_are_cumulative_and_count_validation():
    record = Record()
    steps = []
    _, history, _ = run(
        lambda: Aim(record), watch=lambda population, entry: steps.append(record.steps)
    )
    assert [entry["env_steps"] for entry in history[:-1]] == steps[:-1]
    assert history[-1]["env_steps"] == record.steps
    validation = [entry["env_steps_validation"] for entry in history]
    assert validation == sorted(validation)
    assert 0 < validation[0] < validation[-1] < record.steps


def test_statistics_of_the_fitness():
    values = {0: [1.0, 2.0, 3.0, 6.0], 1: [5.0, float("nan"), 7.0, float("inf")]}

    def fitness(population):
        known = values.get(population.generation)
        return [0.0] * population.pop_size if known is None else known

    with pytest.warns(UserWarning, match=r"individuals \[1, 3\] is not finite"):
        _, history = evolve_with_env(
            None,
            nn.Linear(1, 1),
            fitness=fitness,
            pop_size=4,
            num_generations=2,
            return_history=True,
        )
    first, second = history
    assert first["best_fitness"] == 6.0
    assert first["mean_fitness"] == 3.0
    assert first["median_fitness"] == 2.5
    assert first["std_fitness"] == pytest.approx(math.sqrt(3.5))
    assert first["num_nonfinite"] == 0
    assert second["best_fitness"] == 7.0
    assert second["mean_fitness"] == 6.0
    assert second["std_fitness"] == 1.0
    assert second["num_nonfinite"] == 2
    assert first["base_fitness"] == 0.0


def test_base_fitness_is_what_the_unchanged_base_scores():
    model = linear()
    _, history, _ = run(model=model, standardize=False)
    _, again, _ = run(model=model, standardize=False, pop_size=3, low_rank=1)
    assert history[0]["base_fitness"] == again[0]["base_fitness"]
    assert history[0]["base_fitness"] != history[0]["best_fitness"]


def test_equal_fitness_and_a_population_of_one_go_on():
    for pop_size in (1, 4):
        policy, history = evolve_with_env(
            None,
            nn.Linear(1, 1),
            fitness=lambda population: [2.0] * population.pop_size,
            pop_size=pop_size,
            num_generations=4,
            return_history=True,
        )
        assert [entry["std_fitness"] for entry in history] == [0.0] * 4
        assert all(p.isfinite().all() for p in policy.parameters())


def nearness(population):
    """How near everyone's answer to (1, 1) is to 3."""
    answers = population(torch.ones(1, 2), all_individuals=True)
    return -((answers.flatten() - 3.0) ** 2)


@pytest.mark.parametrize("search", ["es", "ga"])
def test_higher_is_better(search):
    """-1 beats -5, and everything moves up."""
    _, history = evolve_with_env(
        None,
        linear(2, 1)[:3],
        fitness=nearness,
        search=search,
        num_generations=15,
        return_history=True,
    )
    assert history[-1]["best_fitness"] > history[0]["mean_fitness"]
    assert history[-1]["champion_mean"] > history[0]["base_fitness"]
    assert history[-1]["champion_mean"] > -0.5


# --- same seed, same run


@pytest.mark.parametrize("env", [Aim, lambda: [Aim() for _ in range(3)]], ids=["class", "list"])
def test_same_seed_gives_the_same_run(whole, env):
    assert_same_end(whole, run(env() if env is not Aim else env))


@pytest.mark.parametrize("num_envs", [1, 3, 16])
def test_number_of_slots_does_not_matter(whole, num_envs):
    assert_same_end(whole, run(num_envs=num_envs))


def test_another_seed_gives_another_run(whole):
    assert run(seed=4)[1] != whole[1]


def test_seed_does_not_need_the_global_generators(whole):
    torch.rand(5)
    before = torch.get_rng_state()
    assert_same_end(whole, run())
    assert torch.equal(before, torch.get_rng_state())


# --- stop rules


def test_target_stops_the_run_once_it_is_certified():
    _, history, _ = run(Lottery, linear(2, 2), target_fitness=-5.0, horizon=1, standardize=False)
    assert len(history) == 1
    assert history[-1]["champion_mean"] - history[-1]["champion_se"] >= -5.0
    assert history[-1]["env_steps_validation"] >= 50


def test_lucky_generation_does_not_stop_the_run():
    _, history, _ = run(Lottery, linear(2, 2), target_fitness=6.0, horizon=1, standardize=False)
    assert max(entry["best_fitness"] for entry in history) >= 6.0
    assert len(history) == 6


def test_target_of_a_function_is_certified_too():
    calls = []

    def fitness(population):
        calls.append(population.pop_size)
        return [1.0] * population.pop_size

    _, history = evolve_with_env(
        None, nn.Linear(1, 1), fitness=fitness, target_fitness=1.0, pop_size=3, return_history=True
    )
    assert len(history) == 1
    assert history[0]["champion_mean"] == 1.0
    # it neither draws nor looks at eval_seed: two calls each for base, certificates and report
    assert calls.count(1) <= 16


@pytest.mark.parametrize("draws", [lambda p: torch.rand(()), lambda p: p.eval_seed / 2**31])
def test_wins_by_chance_are_no_certificate(draws):
    """A win for nine in ten calls: two wins in a row are likely and mean nothing."""

    def wins(population, idx):
        return float(draws(population) < 0.9)

    settings = {"fitness": wins, "target_fitness": 0.97, "pop_size": 4, "num_generations": 5}
    for seed in range(5):
        _, history = evolve_with_env(
            None, nn.Linear(1, 1), seed=seed, eval_seed=seed, return_history=True, **settings
        )
        assert len(history) == 5
        assert history[-1]["champion_mean"] < 1.0


# --- what is not finite


def test_individuals_that_are_not_finite_are_counted_and_warned_of_once():
    class Breaks(Aim):
        def step(self, action):
            observation, reward, *rest = super().step(action)
            return observation, float("inf") if action[0] > 0.4 else reward, *rest

    with pytest.warns(UserWarning, match="they rank last") as caught:
        policy, history, watch = run(Breaks, standardize=False, pop_size=8)
    assert len(caught) == 1
    assert history[0]["num_nonfinite"] > 0
    assert all(tensor.isfinite().all() for tensor in watch.weights[-1])
    assert math.isfinite(history[-1]["champion_mean"])
    assert all(p.isfinite().all() for p in policy.parameters())


def test_run_in_which_nobody_is_finite_ends():
    with pytest.warns(UserWarning, match="not finite"):
        policy, history = evolve_with_env(
            None,
            nn.Linear(1, 1),
            fitness=lambda population: [float("nan")] * population.pop_size,
            pop_size=3,
            num_generations=3,
            return_history=True,
        )
    assert [entry["num_nonfinite"] for entry in history] == [3, 3, 3]
    assert all(math.isnan(entry["mean_fitness"]) for entry in history)
    assert all(p.isfinite().all() for p in policy.parameters())


# --- progress


def test_no_progress_prints_nothing(capfd):
    run(num_generations=2)
    assert capfd.readouterr() == ("", "")


def test_progress_is_one_line(capfd, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(progress, "_in_terminal", lambda: True)
    run(num_generations=3, progress=True)
    out, err = capfd.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    last = err.rstrip("\n").split("\r")[-1]
    assert "3/3" in last
    assert all(word in last for word in ("best ", "champion ", " steps/s", "env ", " left"))
