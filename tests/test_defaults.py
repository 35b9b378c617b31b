"""What is chosen where nothing is said: the search, biases and the normalising of observations."""

import json

import pytest
import torch
from torch import nn

from populora_envs import evolve_with_env, interact_with_env
from populora_envs.search import GeneticAlgorithm, Search
from tests.tiny import Aim, aim_discrete, linear

BUILT = None


class Own(Search):
    def _ask(self):
        pass

    def _tell(self, fitnesses):
        pass


def config(folder, model, **settings):
    """What config.json says after one generation, and the population that played it."""
    seen = []
    evolve_with_env(
        Aim,
        model,
        num_generations=1,
        pop_size=2,
        low_rank=2,
        horizon=8,
        checkpoint_dir=folder,
        on_generation=lambda population, entry: seen.append(population),
        **settings,
    )
    return json.loads((folder / "config.json").read_text()), seen[0]


def is_on(population):
    return all(layer.offset is not None for layer in population.individuals.values())


@pytest.mark.parametrize(
    ("model", "settings", "adapt_bias"),
    [
        (BUILT, {}, True),
        (BUILT, {"search": "ga"}, True),
        (BUILT, {"adapt_bias": False}, False),
        (linear(), {}, True),
        (linear(), {"search": "snes"}, True),
        (linear(), {"search": Own}, True),
        (linear(), {"scale": 1.0}, True),
        (linear(), {"search": "ga"}, False),
        (linear(), {"search": GeneticAlgorithm}, False),
        (linear(), {"epsilon": 0.5}, False),
        (linear(), {"search": "ga", "adapt_bias": True}, True),
        (linear(), {"search": "es", "adapt_bias": False}, False),
    ],
)
def test_biases_evolve_but_with_the_genetic_algorithm_on_a_model_of_the_user(
    model, settings, adapt_bias, tmp_path
):
    described, population = config(tmp_path, model, **settings)
    assert described["adapt_bias"] is adapt_bias
    assert is_on(population) is adapt_bias


@pytest.mark.parametrize(
    ("model", "settings", "standardize"),
    [
        (BUILT, {}, True),
        (BUILT, {"search": "ga"}, True),
        (BUILT, {"standardize": False}, False),
        (linear(), {}, False),
        (linear(), {"standardize": True}, True),
    ],
)
def test_observations_are_normalised_for_a_policy_that_is_built_here(
    model, settings, standardize, tmp_path
):
    described, population = config(tmp_path, model, **settings)
    assert described["standardize"] is standardize
    assert (population.normalizer is not None) is standardize


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({}, "EvolutionStrategy"),
        ({"half_life": 20.0}, "EvolutionStrategy"),
        ({"crossover_type": "average"}, "GeneticAlgorithm"),
        ({"search": "random"}, "RandomSearch"),
        ({"search": Own}, "Own"),
        ({"search": lambda population: Own(population)}, "Own"),
    ],
)
def test_the_configuration_says_which_search(settings, name, tmp_path):
    assert config(tmp_path, linear(), **settings)[0]["search"] == name


def test_a_run_of_another_search_is_not_gone_on_with(tmp_path):
    config(tmp_path, linear())
    with pytest.raises(ValueError, match=r"search was 'EvolutionStrategy' .* 'GeneticAlgorithm'"):
        config(tmp_path, linear(), search="ga", adapt_bias=True, resume=True)
    with pytest.raises(ValueError, match=r"choices was {} .* is {'scale': 1.0} now"):
        config(tmp_path, linear(), scale=1.0, resume=True)


@pytest.mark.parametrize("model", [BUILT, linear()])
@pytest.mark.parametrize("adapt_bias", [None, True, False])
def test_an_interactor_lets_biases_evolve_in_what_it_builds(model, adapt_bias):
    with interact_with_env(Aim) as interactor:
        population = interactor.population(model, pop_size=2, low_rank=2, adapt_bias=adapt_bias)
    assert is_on(population) is (model is None if adapt_bias is None else adapt_bias)


@pytest.mark.parametrize("search", ["es", "ga"])
def test_layers_without_biases_have_none_to_evolve(search, tmp_path):
    model = nn.Sequential(nn.Linear(2, 1, bias=False), nn.Tanh())
    described, population = config(tmp_path, model, search=search, adapt_bias=True)
    assert described["adapt_bias"] is True
    assert population.individuals["0"].offset is None


def test_settings_of_the_search_reach_it():
    """A scale of nearly nothing leaves everyone at the base."""
    spreads = []
    for scale in (1e-6, 1.0):
        evolve_with_env(
            aim_discrete,
            linear(2, 3),
            scale=scale,
            num_generations=1,
            horizon=8,
            on_generation=lambda population, _: spreads.append(_spread(population)),
        )
    assert spreads[0] < 1e-4 < spreads[1]


@torch.no_grad()
def _spread(population):
    outputs = population(torch.ones(1, 2), all_individuals=True)
    return float(outputs.std(dim=0).max())
