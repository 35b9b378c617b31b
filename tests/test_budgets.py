"""Budgets of steps, seconds and generations: where a run ends, and that it goes on from there."""

import math

import pytest
import torch
from torch import nn

from populora_envs import evolve_with_env
from tests.tiny import Aim, Record, linear, same, weights, without_times

SEARCHES = ["es", "ga", "snes"]


def run(folder=None, record=None, **settings):
    """Evolve a little; return the policy's numbers, the last weights and the history."""
    seen = []

    def note(population, entry):
        seen[:] = [
            *weights(population),
            *(w.clone() for w in population.model.state_dict().values()),
        ]

    defaults = {"pop_size": 6, "low_rank": 2, "horizon": 8, "seed": 3, "standardize": True}
    policy, history = evolve_with_env(
        Aim if record is None else lambda: Aim(record),
        linear(),
        checkpoint_dir=folder,
        return_history=True,
        on_generation=note,
        **{**defaults, **settings},
    )
    return policy.state_dict(), seen, without_times(history)


def assert_same_end(one, other):
    assert one[2] == other[2]
    assert same(one[0], other[0])
    assert same(one[1], other[1])


def steps(history):
    return [entry["env_steps"] for entry in history]


# --- steps


@pytest.mark.parametrize("budget", [100, 500, 1234])
@pytest.mark.parametrize("search", SEARCHES)
def test_the_generation_that_uses_up_the_steps_is_the_last(search, budget):
    record = Record()
    policy, _, history = run(record=record, search=search, max_env_steps=budget)
    before_the_end = [e["env_steps"] for e in history[:-1]]
    assert all(played < budget for played in before_the_end)
    assert history[-1]["env_steps"] >= budget
    assert history[-1]["env_steps"] == record.steps
    assert before_the_end == sorted(before_the_end)
    assert [entry["generation"] for entry in history] == list(range(len(history)))
    assert all(tensor.isfinite().all() for tensor in policy.values())


def test_a_budget_of_steps_alone_has_no_limit_of_generations():
    assert len(run(max_env_steps=2500)[2]) > 25


def test_steps_of_looks_count():
    """Without looks more generations would fit."""
    history = run(max_env_steps=2000)[2]
    training = history[-2]["env_steps"] - history[-2]["env_steps_validation"]
    assert history[-2]["env_steps_validation"] > 0
    assert training < history[-2]["env_steps"] < 2000


@pytest.mark.parametrize("budget", [{"max_env_steps": 1}, {"max_seconds": 1e-9}])
def test_a_budget_that_is_used_up_at_once_plays_one_generation(budget):
    _, _, history = run(**budget)
    assert len(history) == 1
    assert math.isfinite(history[0]["champion_mean"])


def test_a_function_plays_no_steps():
    _, history = evolve_with_env(
        None,
        nn.Linear(2, 1),
        fitness=lambda population: torch.zeros(population.pop_size),
        max_env_steps=1,
        num_generations=3,
        return_history=True,
    )
    assert len(history) == 3


# --- seconds


@pytest.fixture
def seconds(monkeypatch):
    """A clock that stands still but for what a test adds, and for a hint."""
    now = [0.0]

    def clock():
        now[0] += 1e-6
        return now[0]

    monkeypatch.setattr("populora_envs.evolve.perf_counter", clock)
    return now


def timed(seconds, **settings):
    history = []

    def second(population, entry):
        seconds[0] += 1.0
        history.append(entry["generation"])

    policy = evolve_with_env(
        None,
        nn.Linear(2, 1),
        fitness=lambda population: torch.zeros(population.pop_size),
        on_generation=second,
        pop_size=2,
        **settings,
    )
    assert all(parameter.isfinite().all() for parameter in policy.parameters())
    return len(history)


@pytest.mark.parametrize(("most", "expected"), [(0.5, 1), (3.0, 3), (40, 40)])
def test_seconds_end_a_run_after_the_generation_in_which_they_have_passed(seconds, most, expected):
    assert timed(seconds, max_seconds=most) == expected


@pytest.mark.parametrize(("num_generations", "max_seconds"), [(2, 5.0), (5, 2.0)])
def test_whichever_budget_is_used_up_first_ends_the_run(seconds, num_generations, max_seconds):
    budgets = {"num_generations": num_generations, "max_seconds": max_seconds}
    assert timed(seconds, **budgets) == 2


def test_every_call_has_its_own_seconds(seconds, tmp_path):
    for resume in (False, True):
        assert timed(seconds, max_seconds=3.0, checkpoint_dir=tmp_path, resume=resume) == 3


@pytest.mark.parametrize(("num_generations", "max_env_steps"), [(2, 10**6), (100, 400)])
def test_steps_or_generations_whichever_comes_first(num_generations, max_env_steps):
    _, _, history = run(num_generations=num_generations, max_env_steps=max_env_steps)
    assert (len(history) == 2) is (num_generations == 2)
    assert len(history) < 100


def test_no_budget_at_all_means_25_generations():
    assert len(run(pop_size=2)[2]) == 25


# --- going on


@pytest.mark.parametrize("checkpoint_every", [1, 3])
@pytest.mark.parametrize("search", SEARCHES)
def test_a_run_that_goes_on_with_more_steps_equals_one_that_had_them(
    search, checkpoint_every, tmp_path
):
    settings = {"search": search, "checkpoint_every": checkpoint_every}
    whole = run(max_env_steps=1500, **settings)
    lengths = [len(run(tmp_path, resume=True, max_env_steps=n, **settings)[2]) for n in (300, 900)]
    assert lengths[0] < lengths[1] < len(whole[2])
    assert_same_end(whole, run(tmp_path, resume=True, max_env_steps=1500, **settings))


@pytest.mark.parametrize("search", SEARCHES)
def test_budgets_of_all_kinds_lead_to_the_same_run(search, tmp_path):
    whole = run(search=search, num_generations=12)
    run(tmp_path, search=search, max_env_steps=200)
    run(tmp_path, resume=True, search=search, max_seconds=1e-9, max_env_steps=400)
    again = run(tmp_path, resume=True, search=search, num_generations=12)
    assert_same_end(whole, again)


def test_a_run_whose_steps_are_used_up_returns_at_once(tmp_path):
    first, record = run(tmp_path, max_env_steps=500), Record()
    policy, seen, history = run(tmp_path, record, resume=True, max_env_steps=500)
    assert record.steps == 0
    assert seen == []
    assert history == first[2]
    assert same(policy, first[0])


# --- wrong ones


@pytest.mark.parametrize(
    ("budget", "error", "words"),
    [
        ({"max_env_steps": 0}, ValueError, "max_env_steps must be at least 1, not 0"),
        ({"max_env_steps": -5}, ValueError, "max_env_steps must be at least 1, not -5"),
        ({"max_env_steps": 1e5}, TypeError, "max_env_steps must be a whole number, not 100000.0"),
        ({"max_env_steps": True}, TypeError, "max_env_steps must be a whole number, not True"),
        ({"max_seconds": 0}, ValueError, "max_seconds must be above 0, not 0"),
        ({"max_seconds": -1.5}, ValueError, "max_seconds must be above 0, not -1.5"),
        ({"max_seconds": math.nan}, ValueError, "max_seconds must be above 0, not nan"),
        ({"max_seconds": "3"}, TypeError, "'>' not supported|max_seconds"),
        ({"num_generations": 0}, ValueError, "num_generations must be at least 1, not 0"),
    ],
)
def test_wrong_budgets_are_refused_before_anything_is_opened(budget, error, words):
    record = Record()
    with pytest.raises(error, match=words):
        run(record=record, **budget)
    assert record.made == 0
