"""Runs that begin at a policy that exists: a run's, a saved individual, PEFT's, a trained module."""

import pytest
import torch
from torch import nn

from populora_envs import Population, evolve_with_env, interact_with_env

QUICK = {"pop_size": 4, "low_rank": 4, "num_generations": 1, "return_history": True, "seed": 3}


def model(seed=0, inputs=4, outputs=2):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(inputs, 8), nn.Tanh(), nn.Linear(8, outputs))


def first_base(**settings):
    """What the base of a run scores before it has learned anything, and its weights."""
    seen = {}

    def look(population, entry):
        seen["x"] = entry["base_fitness"]

    evolve_with_env("CartPole-v1", on_generation=look, **{**QUICK, **settings})
    return seen["x"]


def upright():
    """A policy that balances the pole for all 500 steps."""
    policy = model()
    with torch.no_grad():
        for layer in (policy[0], policy[2]):
            layer.weight.zero_()
            layer.bias.zero_()
        policy[0].weight[0] = torch.tensor([0.0, 0.0, 1.0, 0.5])
        policy[2].weight[1, 0] = 1.0
    return policy


def saved(path, **settings):
    """An individual that turns the base of `model()` into `upright()`."""
    base, aim = model(), upright()
    population = Population(base, pop_size=1, low_rank=8, adapt_bias=True, init="zero", **settings)
    change = {
        name: {
            "weight": aim.get_submodule(name).weight.detach()
            - base.get_submodule(name).weight.detach(),
            "bias": aim.get_submodule(name).bias.detach() - base.get_submodule(name).bias.detach(),
        }
        for name in ("0", "2")
    }
    population.move_base_(change)
    population.save_individual(path, 0)
    return path


def test_a_trained_module_is_the_base():
    assert first_base(model=model()) < 100
    assert first_base(model=model(), init_from=upright()) == 500.0
    assert first_base(model=model(), init_from=upright(), search="ga") == 500.0


def test_a_saved_individual_becomes_the_base_whatever_the_rank(tmp_path):
    path = saved(tmp_path / "one.pt")
    assert first_base(model=model(), init_from=path, low_rank=1) == 500.0
    assert first_base(model=model(), init_from=str(path), adapt_bias=False) == 500.0


def test_the_policy_of_a_run_and_its_folder_begin_another(tmp_path):
    settings = {"seed": 0, "target_fitness": 475, "max_env_steps": 150_000, "return_history": True}
    policy, history = evolve_with_env("CartPole-v1", checkpoint_dir=tmp_path / "run", **settings)
    assert history[-1]["champion_mean"] > 475
    for begin in (tmp_path / "run", tmp_path / "run" / "best.pt", policy):
        assert first_base(init_from=begin, low_rank=16, seed=0) > 400


def test_what_is_saved_later_counts_from_the_weights_that_were_given(tmp_path):
    path = saved(tmp_path / "one.pt")
    population = Population(model(), pop_size=2, low_rank=4, adapt_bias=True, init="zero")
    population.start_from_(path)
    population.save_individual(tmp_path / "two.pt", 1)
    again = Population(model(), pop_size=2, low_rank=8, adapt_bias=True)
    again.load_individual(tmp_path / "two.pt", 0)
    x = torch.randn(5, 4)
    assert torch.allclose(again.merge_(0)(x), upright()(x), atol=1e-5)


def test_a_folder_of_peft(tmp_path):
    base = nn.Sequential(nn.Linear(4, 8, bias=False), nn.Tanh(), nn.Linear(8, 2, bias=False))
    population = Population(base, pop_size=2, low_rank=3, seed=1)
    for layer in population.individuals.values():
        layer.up.normal_(generator=torch.Generator().manual_seed(0))
    population.save_individual(tmp_path / "lora", 1, format="peft")
    other = Population(base, pop_size=2, low_rank=1, init="zero")
    other.start_from_(tmp_path / "lora")
    x = torch.randn(5, 4)
    assert torch.allclose(other.merge_(0)(x), population.merge_(1)(x), atol=1e-5)


def test_observation_statistics_come_along(tmp_path):
    with interact_with_env("CartPole-v1", standardize=True) as interactor:
        population = interactor.population(pop_size=3)
        interactor.evaluate(population)
        population.generation += 1
        population.save_individual(tmp_path / "one.pt", 0)
        other = interactor.population(pop_size=2)
        other.start_from_(tmp_path / "one.pt")
    assert torch.equal(other.normalizer.mean, population.normalizer.mean)
    assert int(other.normalizer.count) > 0


def test_what_does_not_fit_is_refused(tmp_path):
    with pytest.raises(ValueError, match="pass the same structure"):
        first_base(model=model(), init_from=model(inputs=3))
    with pytest.raises(FileNotFoundError):
        first_base(model=model(), init_from=tmp_path / "nothing.pt")
    path = saved(tmp_path / "one.pt")
    other = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2, bias=False))
    with pytest.raises(ValueError, match=r"bias"):
        first_base(model=other, init_from=path)


def test_a_run_goes_on_only_from_the_same_beginning(tmp_path):
    path = saved(tmp_path / "one.pt")
    evolve_with_env(
        "CartPole-v1", model(), init_from=path, checkpoint_dir=tmp_path / "run", **QUICK
    )
    with pytest.raises(ValueError, match="init_from was"):
        evolve_with_env(
            "CartPole-v1", model(), checkpoint_dir=tmp_path / "run", resume=True, **QUICK
        )
