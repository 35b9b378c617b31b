import dataclasses
import inspect
import random
import time

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import nn

from populora_envs import Policy, evolve_with_env, interact_with_env
from populora_envs.settings import EvolveSettings
from tests.tiny import Aim, Clock, Record, aim_discrete, linear, same, without_times

HEADS = {
    None: (Aim, 1),
    "squashed_gaussian": (Aim, 2),
    "beta": (Aim, 2),
    "categorical": (aim_discrete, 3),
}
SMALL = {"pop_size": 5, "low_rank": 2, "num_generations": 4, "horizon": 8}


def evolve(envs, model=None, **settings):
    """Evolve a little; return the policy's numbers, the last generation's weights, the history."""
    last = {}

    def note(population, entry):
        last.update(population.model.state_dict())
        for name, layer in population.individuals.items():
            last[f"{name}.down"], last[f"{name}.up"] = layer.down.clone(), layer.up.clone()

    policy, history = evolve_with_env(
        envs, model, return_history=True, on_generation=note, **{**SMALL, **settings}
    )
    return policy.state_dict(), last, without_times(history)


def assert_equal_runs(first, second):
    assert first[2] == second[2]
    assert same(first[1], second[1])
    assert same(first[0], second[0])


# --- one signature


def test_signature_and_settings_have_the_same_names_and_defaults():
    parameters = dict(inspect.signature(evolve_with_env).parameters)
    assert list(parameters)[:2] == ["envs", "model"]
    not_settings = ["envs", "model", "action", "fitness", "init_from"]
    not_settings += ["return_history", "on_generation", "callbacks"]
    for name in (*not_settings, "choices"):
        del parameters[name]
    fields = {field.name: field.default for field in dataclasses.fields(EvolveSettings)}
    assert {name: p.default for name, p in parameters.items()} == fields
    assert all(p.kind is p.KEYWORD_ONLY for p in parameters.values())


@pytest.mark.parametrize(
    ("keyword", "near"),
    [
        ("num_generation", "num_generations"),
        ("horizn", "horizon"),
        ("popsize", "pop_size"),
        ("epsilom", "epsilon"),
        ("survive_fraction", "survive_frac"),
        ("tournamentsize", "tournament_size"),
    ],
)
def test_unknown_keyword_lists_near_names(keyword, near):
    with pytest.raises(TypeError, match=rf"unknown option '{keyword}'; near names: .*\b{near}\b"):
        evolve_with_env("CartPole-v1", **{keyword: 3})


def test_choices_reach_the_operators():
    sizes = []

    def mutation(down, up, generator, *, size=1.0):
        sizes.append(size)
        return down, up

    evolve(Aim, linear(), mutation_type=mutation, size=0.25, survive_frac=0.4, elite_frac=0.2)
    assert set(sizes) == {0.25}


# --- the same run whatever plays it


@pytest.mark.parametrize("standardize", [False, True])
@pytest.mark.parametrize("action", HEADS)
def test_run_does_not_depend_on_slots_or_on_how_environments_come(action, standardize):
    env, width = HEADS[action]
    settings = {"model": linear(2, width), "action": action, "standardize": standardize}
    vector = SyncVectorEnv([env] * 3, autoreset_mode=AutoresetMode.SAME_STEP)
    runs = [
        evolve(env, num_envs=1, **settings),
        evolve(env, num_envs=3, **settings),
        evolve(env, num_envs=16, **settings),
        evolve([env() for _ in range(4)], **settings),
        evolve(lambda: [env(), env()], **settings),
        evolve(vector, **settings),
    ]
    vector.close()
    for other in runs[1:]:
        assert_equal_runs(runs[0], other)


def test_run_with_a_built_policy_does_not_depend_on_slots():
    assert_equal_runs(evolve(Aim, num_envs=1), evolve(Aim, num_envs=7))


def test_run_of_several_episodes_and_environments_does_not_depend_on_slots():
    envs = {"short": lambda: Aim(length=4), "long": lambda: Aim(length=8)}
    settings = {"model": linear(), "num_episodes": 2, "standardize": True}
    assert_equal_runs(evolve(envs, num_envs=1, **settings), evolve(envs, num_envs=5, **settings))


def test_all_individuals_of_each_generation_face_the_same_start_states():
    record, rounds = Record(), []

    def note(population, entry):
        rounds.append([seed for seed in record.seeds if seed < 2**29])
        record.seeds.clear()

    evolve_with_env(lambda: Aim(record), linear(), num_episodes=2, on_generation=note, **SMALL)
    for seeds in rounds:
        assert {seeds.count(seed) for seed in seeds} == {5}
        assert len(set(seeds)) == 2
    assert len({seed for seeds in rounds for seed in seeds}) == 8


def test_global_generators_are_not_touched():
    def state():
        numpy = np.random.get_state()  # noqa: NPY002
        return random.getstate(), numpy[1].tobytes(), numpy[2], torch.get_rng_state().tolist()

    before = state()
    evolve(Aim)
    evolve(aim_discrete, action="categorical")
    evolve("CartPole-v1", num_generations=1)
    assert state() == before


def test_action_that_draws_from_torch_is_reproducible_and_warned_of_once():
    def noisy(output):
        return (output + 0.1 * torch.randn_like(output)).clamp(-1, 1)

    runs = []
    for _ in range(2):
        torch.rand(7)
        with pytest.warns(UserWarning, match="global generator") as caught:
            runs.append(evolve(Aim, linear(), action=noisy))
        assert len(caught) == 1
    assert_equal_runs(*runs)


# --- what is scored


def test_mean_over_episodes_and_horizon():
    _, _, history = evolve(Clock, linear(1, 2), horizon=3, num_episodes=3)
    assert {entry["best_fitness"] for entry in history} == {6.0}
    assert {entry["std_fitness"] for entry in history} == {0.0}
    _, _, history = evolve(lambda: Clock(9), linear(1, 2), horizon=4, num_episodes=2)
    assert {entry["best_fitness"] for entry in history} == {10.0}


def test_horizon_none_means_the_limit_of_the_environment():
    _, history = evolve_with_env(
        "Pendulum-v1",
        nn.Linear(3, 1),
        action=lambda out: out.clamp(-1, 1),
        pop_size=2,
        num_generations=1,
        return_history=True,
    )
    trained = history[0]["env_steps"] - 2 * 200
    assert trained % 200 == 0


def test_horizon_none_without_a_limit_is_said_once():
    with pytest.warns(UserWarning, match="names no time limit: episodes end after 1000") as caught:
        evolve(Clock, linear(1, 2), horizon=None)
    assert len(caught) == 1


def test_dict_of_environments_counts_with_the_mean():
    _, _, history = evolve({"a": lambda: Clock(2), "b": lambda: Clock(3)}, linear(1, 2), num_envs=2)
    assert history[0]["best_fitness"] == (3.0 + 6.0) / 2


def test_action_ranges():
    env = Clock(action_space=gymnasium.spaces.Box(0.0, 10.0, (1,), np.float32))
    evolve([env], linear(1, 1), action=lambda out: out * 0 + 0.5)
    assert {float(action[0]) for action in env.actions} == {7.5}
    env.actions.clear()
    evolve([env], linear(1, 1), action=lambda out: out * 0 + 0.5, to_range=(2.0, 4.0))
    assert {float(action[0]) for action in env.actions} == {3.5}
    env.actions.clear()
    evolve([env], linear(1, 1), action=lambda out: out * 0 + 0.5, from_range=(0.0, 1.0))
    assert {float(action[0]) for action in env.actions} == {5.0}
    env.actions.clear()
    evolve([env], linear(1, 1), action=lambda out: out * 0 + 0.5, from_range=None)
    assert {float(action[0]) for action in env.actions} == {0.5}


# --- fitness functions


FORMS = {
    "all": lambda population: -population.individuals[""].up.abs().amax(dim=(1, 2)),
    "batched": lambda population, individuals: [
        -float(population.individuals[""].up[i].abs().max()) for i in individuals
    ],
    "single": lambda population, idx: -population.individuals[""].up[idx].abs().max(),
}


def test_all_forms_of_a_fitness_function_give_the_same_run_without_environments():
    model = nn.Linear(2, 1)
    runs = [evolve(None, model, fitness=fitness, num_generations=8) for fitness in FORMS.values()]
    for other in runs[1:]:
        assert_equal_runs(runs[0], other)
    best = [entry["best_fitness"] for entry in runs[0][2]]
    assert best == sorted(best)
    assert [entry["env_steps"] for entry in runs[0][2]] == [0] * 8


def test_fitness_function_replaces_the_rollout_and_the_policy_still_acts():
    record = Record()
    policy = evolve_with_env(
        lambda: Aim(record),
        nn.Linear(2, 1),
        fitness=FORMS["all"],
        action=lambda out: out.tanh(),
        **SMALL,
    )
    assert record.steps == 0
    assert record.made == record.closed
    assert isinstance(policy, Policy)
    assert policy.act(np.zeros(2, np.float32)).shape == (1,)


def test_without_environments_a_plain_module_comes_back():
    model = nn.Linear(2, 1)
    policy = evolve_with_env(None, model, fitness=FORMS["all"], **SMALL)
    assert type(policy) is nn.Linear
    assert policy is not model


def test_fitness_function_may_carry_a_graph():
    def fitness(population):
        weight = nn.Parameter(torch.ones(population.pop_size))
        return weight * population.individuals[""].up.sum(dim=(1, 2))

    assert len(evolve(None, nn.Linear(2, 1), fitness=fitness)[2]) == 4


@pytest.mark.parametrize(
    ("fitness", "words"),
    [
        (lambda: 0, "a fitness function takes"),
        (lambda population, who: 0, "a fitness function takes"),
        (lambda population: [0.0], "for 5 individuals|for 1 individuals|5 individuals"),
        (lambda population: [0.0] * 3, "individuals"),
    ],
)
def test_wrong_fitness_functions_are_refused(fitness, words):
    with pytest.raises(ValueError, match=words):
        evolve(None, nn.Linear(2, 1), fitness=fitness)


@pytest.mark.parametrize("missing", [{"fitness": FORMS["all"]}, {"model": nn.Linear(2, 1)}, {}])
def test_without_environments_model_and_fitness_are_needed(missing):
    with pytest.raises(ValueError, match="both model= and fitness= are needed"):
        evolve_with_env(None, **missing)


# --- the main job


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_defaults_solve_cartpole(seed):
    start = time.perf_counter()
    policy = evolve_with_env("CartPole-v1", seed=seed)
    with interact_with_env("CartPole-v1", seed=seed, num_envs=50) as interactor:
        score = interactor.evaluate_policy(policy)
    assert score.mean >= 475.0, f"{score.mean} after {time.perf_counter() - start:.0f} s"
