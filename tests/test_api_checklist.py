"""The names that must work exactly as written, one test per line of the list."""

import gymnasium
import numpy as np
import pytest
import torch
from dm_control import suite
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv
from torch import nn

import populora_envs
from populora_envs import (
    EnvInteractor,
    Population,
    evolve_with_env,
    interact_with_env,
    is_main_rank,
    make_action,
    rescale_from_range_to_range,
)
from tests.tiny import Aim, aim_discrete, linear

NAMES = (
    "Population",
    "EnvInteractor",
    "interact_with_env",
    "evolve_with_env",
    "make_action",
    "rescale_from_range_to_range",
    "is_main_rank",
)


@pytest.fixture
def model():
    return nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1))


@pytest.fixture
def pop(model):
    return Population(model, pop_size=16, low_rank=4, lora_targets=["0", "2"], seed=0)


@pytest.fixture
def fitnesses():
    return torch.rand(16, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", NAMES)
def test_public_names(name):
    assert name in populora_envs.__all__
    assert hasattr(populora_envs, name)


# --- population


def test_population(model):
    Population(model, pop_size=16, low_rank=4, lora_targets=["0", "2"])
    Population(model, pop_size=16, low_rank=4, device="cpu")
    assert list(Population(model, pop_size=16, low_rank=4).individuals) == ["0", "2"]


def test_calls(pop):
    x = torch.randn(1, 4, 2)
    assert pop(x, all_individuals=True).shape == (16, 4, 1)
    samples = torch.randn(3, 2)
    routed = pop(samples, individuals=[3, 0, 3])
    assert routed.shape == (3, 1)
    for idx in (5, torch.tensor(5)):
        assert pop(samples, individual=idx).shape == (3, 1)
    assert torch.equal(routed[:1], pop(samples[:1], individual=3))


def test_select(pop, fitnesses):
    placed = pop.select("deterministic", fitnesses, survive_frac=0.5)
    named = pop.select(selection_type="deterministic", fitnesses=fitnesses, survive_frac=0.5)
    for result in (placed, named):
        assert result.selected_out_indices.dtype == torch.int64
        assert len(result.selected_out_indices) == 8
        assert torch.equal(result.selected_out_indices, placed.selected_out_indices)
        assert len(result.survivors) == 8


def test_select_parents(pop, fitnesses):
    result = pop.select("deterministic", fitnesses, survive_frac=0.5)
    n = len(result.selected_out_indices)
    parents = pop.select_parents(
        "tournament", fitnesses, num_children=n, culled=result.selected_out_indices
    )
    assert parents.shape == (n, 2)
    parents = pop.select_parents(
        selection_type="tournament",
        fitnesses=fitnesses,
        num_children=n,
        culled=result.selected_out_indices,
    )
    assert not set(parents.flatten().tolist()) & set(result.selected_out_indices.tolist())


def test_crossover_and_mutate(pop, fitnesses):
    result = pop.select("deterministic", fitnesses, survive_frac=0.5)
    parents = pop.select_parents("tournament", fitnesses, 8, culled=result.selected_out_indices)
    pop.crossover_("average", parents, result.selected_out_indices)
    culled, elites = result.selected_out_indices, result.elites
    before = pop.individuals["0"].down.clone()
    pop.mutate_("full_gaussian", individuals=result.selected_out_indices)
    changed = (pop.individuals["0"].down != before).flatten(1).any(dim=1)
    assert changed[culled].all()
    assert not changed[elites].any()
    pop.mutate_("full_gaussian", all_individuals=True)
    assert (pop.individuals["0"].down != before).flatten(1).any(dim=1).all()


def test_evolve(pop, fitnesses):
    pop.evolve_(fitnesses)
    assert pop.generation == 1


def test_merge(pop, fitnesses):
    x = torch.randn(5, 2)
    model = pop.merge_(fitnesses.argmax())
    best = pop.select_and_merge_best_(fitnesses)
    assert torch.equal(model(x), best(x))
    assert torch.allclose(model(x), pop(x, individual=fitnesses.argmax()), atol=1e-5)


def test_save_individual(pop, fitnesses, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pop.save_individual("best.pt", fitnesses.argmax())
    assert isinstance(torch.load("best.pt", weights_only=True), dict)
    pop.load_individual("best.pt", 3)
    x = torch.randn(5, 2)
    assert torch.equal(pop(x, individual=3), pop(x, individual=fitnesses.argmax()))


@pytest.mark.parametrize(
    "fn",
    [
        lambda population, idx: float(idx),
        lambda population, individuals: torch.tensor(individuals, dtype=torch.float32),
        lambda population: torch.arange(population.pop_size),
    ],
)
def test_evaluate_distributed(pop, fn):
    assert pop.evaluate_distributed(fn).tolist() == list(range(16))


def test_eval_seed_and_rank(pop):
    first = pop.eval_seed
    assert isinstance(first, int)
    pop.generation += 1
    assert pop.eval_seed != first
    assert is_main_rank() is True


def test_loop_of_the_issue_with_keywords():
    pop = Population(
        nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1)),
        pop_size=16,
        low_rank=4,
        lora_targets=["0", "2"],
    )
    preds = pop(torch.randn(1, 4, 2), all_individuals=True)
    fitnesses = -((preds - torch.randn(1, 4, 1)) ** 2).reshape(16, -1).mean(dim=-1)
    result = pop.select(selection_type="deterministic", fitnesses=fitnesses, survive_frac=0.5)
    parents = pop.select_parents(
        selection_type="tournament",
        fitnesses=fitnesses,
        num_children=len(result.selected_out_indices),
        culled=result.selected_out_indices,
    )
    pop.crossover_("average", parents, result.selected_out_indices)
    pop.mutate_("full_gaussian", individuals=result.selected_out_indices)
    pop.mutate_("full_gaussian", all_individuals=True)
    assert pop.select_and_merge_best_(fitnesses)(torch.randn(3, 2)).shape == (3, 1)
    assert pop.merge_(fitnesses.argmax())(torch.randn(3, 2)).shape == (3, 1)


# --- environments


def test_evolve_with_env(tmp_path):
    envs, model = [Aim() for _ in range(4)], linear()
    policy, history = evolve_with_env(
        envs,
        model,
        pop_size=4,
        low_rank=2,
        lora_targets=["0", "2"],
        action=lambda output: output,
        fitness=None,
        num_generations=3,
        horizon=8,
        num_episodes=2,
        seed=1,
        progress=False,
        return_history=True,
        target_fitness=None,
        checkpoint_dir=tmp_path,
        checkpoint_every=1,
        resume=False,
        to_range=(-1.0, 1.0),
        from_range=(-1.0, 1.0),
    )
    assert isinstance(policy, nn.Module)
    assert [entry["generation"] for entry in history] == [0, 1, 2]
    assert (tmp_path / "latest.pt").exists()
    assert (tmp_path / "best.pt").exists()
    assert isinstance(
        evolve_with_env(envs, model, pop_size=2, num_generations=1, horizon=2), nn.Module
    )


def test_interactor():
    interactor = interact_with_env([Aim()], to_range=(-1.0, 1.0), from_range=(-1.0, 1.0))
    assert isinstance(interactor, EnvInteractor)
    backbone = linear()
    population = interactor.population(backbone, pop_size=16, low_rank=16)
    fitnesses = interactor.evaluate(population, action=lambda out: out, horizon=1000)
    policy = population.merge_(fitnesses.argmax())
    assert fitnesses.shape == (16,)
    assert policy(torch.zeros(1, 2)).shape == (1, 1)
    interactor.close()


@pytest.mark.parametrize(
    "kind", ["categorical", "squashed_gaussian", "beta", spaces.Box(0.0, 1.0, (2,))]
)
def test_make_action(kind):
    head = make_action(kind)
    assert head(torch.zeros(3, 4)).shape[0] == 3


def test_head_carries_its_own_range_and_wins_over_from_range():
    head = make_action("beta", beta_rescale_neg_one_one=False)
    assert head.range == (0.0, 1.0)
    assert make_action("beta").range == (-1.0, 1.0)
    env = gymnasium.make("Pendulum-v1")
    model = nn.Linear(3, 2)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    with interact_with_env(env, from_range=(-5.0, 5.0)) as interactor:
        # the mean 0.5 of (0, 1) is the middle of [-2, 2]
        assert interactor.policy(model, head).act(np.zeros(3, np.float32)).tolist() == [0.0]
    env.close()


def test_rescale():
    x = torch.tensor([-1.0, 0.0, 1.0])
    placed = rescale_from_range_to_range(x, (-1.0, 1.0), (0.0, 10.0))
    named = rescale_from_range_to_range(x, from_range=(-1.0, 1.0), to_range=(0.0, 10.0))
    assert placed.tolist() == named.tolist() == [0.0, 5.0, 10.0]


FITNESS = {
    "batched": lambda population, individuals: torch.zeros(len(individuals)),
    "single": lambda population, idx: 0.0,
    "all": lambda population: torch.zeros(population.pop_size),
}


@pytest.mark.parametrize("fitness", FITNESS.values(), ids=FITNESS)
def test_fitness_functions(fitness):
    small = {"pop_size": 3, "num_generations": 2, "fitness": fitness}
    assert isinstance(evolve_with_env(Aim, linear(), **small), nn.Module)
    assert isinstance(evolve_with_env(None, linear(), **small), nn.Module)


ENVS = {
    "one": Aim,
    "list": lambda: [Aim(), Aim()],
    "vector": lambda: SyncVectorEnv([Aim, Aim]),
    "factory": lambda: Aim,
    "lambda": lambda: lambda: Aim(),
    "dict": lambda: {"a": Aim, "b": [Aim(), Aim()]},
    "gymnasium": lambda: gymnasium.make("Pendulum-v1"),
    "id": lambda: "Pendulum-v1",
    "dm_control": lambda: suite.load("pendulum", "swingup"),
    "dm_control id": lambda: "dm_control/pendulum-swingup",
}


@pytest.mark.parametrize("make", ENVS.values(), ids=ENVS)
def test_environments(make):
    policy = evolve_with_env(make(), pop_size=2, num_generations=1, horizon=3)
    assert isinstance(policy, nn.Module)


def test_example_of_the_design_in_small():
    policy, history = evolve_with_env(
        [suite.load("cartpole", "balance") for _ in range(2)],
        nn.Sequential(nn.Linear(5, 32), nn.ReLU(), nn.Linear(32, 2)),
        pop_size=4,
        low_rank=16,
        action=lambda logits: logits.argmax(-1) * 2 - 1,
        num_generations=2,
        horizon=10,
        seed=0,
        progress=True,
        return_history=True,
    )
    assert len(history) == 2
    assert isinstance(policy, nn.Module)


def test_categorical_by_name():
    assert isinstance(
        evolve_with_env(
            aim_discrete,
            linear(2, 3),
            action="categorical",
            pop_size=2,
            num_generations=1,
            horizon=3,
        ),
        nn.Module,
    )
