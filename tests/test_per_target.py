"""Operators and their options by layer."""

import pytest
import torch
from torch import nn

from populora_envs import Population, evolve_with_env, interact_with_env
from populora_envs.operators.per_target import at_targets

FITNESSES = torch.arange(6.0)


def population():
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    return Population(model, pop_size=6, low_rank=2, seed=4)


def moved(pop, before):
    after = {name: layer.up.clone() for name, layer in pop.individuals.items()}
    return {name for name in after if not torch.equal(after[name], before[name])}


def ups(pop):
    return {name: layer.up.clone() for name, layer in pop.individuals.items()}


TARGETS = {"a.0": ["a.0"], "a.1": ["a.1"], "b": ["b"]}


def test_an_exact_path_goes_before_the_first_glob_and_default_comes_last():
    given = {"a.*": 1, "*": 2, "a.1": 3, "default": 4}
    assert at_targets(given, TARGETS, "epsilon") == {"a.0": 1, "a.1": 3, "b": 2}
    assert at_targets({"a.?": 1, "default": 4}, TARGETS, "epsilon")["b"] == 4
    assert at_targets(0.5, TARGETS, "epsilon") == {"a.0": 0.5, "a.1": 0.5, "b": 0.5}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"c": 1, "default": 2}, r"epsilon names \['c'\], which match no target; there are 'a.0'"),
        ({"a.*": 1}, "epsilon says nothing of 'b': add a pattern for it, or 'default'"),
    ],
)
def test_patterns_that_match_nothing_and_targets_without_one_are_refused(given, says):
    with pytest.raises(ValueError, match=says):
        at_targets(given, TARGETS, "epsilon")


def test_a_step_of_zero_holds_a_layer_still():
    pop = population()
    before = ups(pop)
    pop.mutate_("full_gaussian", all_individuals=True, epsilon={"2": 0.0, "default": 0.5})
    assert moved(pop, before) == {"0", "4"}


def test_each_layer_varies_by_its_own_operator_and_options():
    pop = population()
    kinds = {"0": "neftune_style", "default": "full_gaussian"}
    before = ups(pop)
    pop.mutate_(kinds, all_individuals=True, alpha=0.0, epsilon={"4": 0.0, "default": 0.3})
    assert moved(pop, before) == {"2"}


def test_each_layer_is_mixed_by_its_own_operator():
    pop = population()
    first, second = (pop.individual_state(i) for i in (4, 5))
    pairs = torch.tensor([[4, 5]])
    pop.crossover_({"2": "average", "default": "clone"}, pairs, [0])
    child = pop.individual_state(0)
    assert torch.equal(child["0"]["up"], first["0"]["up"])
    torch.testing.assert_close(child["2"]["up"], (first["2"]["up"] + second["2"]["up"]) / 2)
    assert pop.lineage.operators[0] == "average|clone"


def test_one_operator_for_all_gives_the_numbers_of_its_name():
    one, other = population(), population()
    one.evolve_(FITNESSES, crossover_type="sbx", mutation_type="full_gaussian", epsilon=0.3)
    by_pattern = {"crossover_type": {"default": "sbx"}, "epsilon": {"*": 0.3}}
    other.evolve_(FITNESSES, mutation_type={"*": "full_gaussian"}, **by_pattern)
    for a, b in zip(ups(one).values(), ups(other).values(), strict=True):
        assert torch.equal(a, b)


def test_an_option_that_none_of_the_operators_takes_is_refused():
    with pytest.raises(TypeError, match="unknown option 'layer_shar'; near names: layer_share"):
        population().evolve_(
            FITNESSES,
            mutation_type={"0": "layer_selective_gaussian", "default": "full_gaussian"},
            layer_shar=0.5,
        )


def test_patterns_name_paths_in_the_model_of_the_user_whatever_lies_around_it():
    with interact_with_env("CartPole-v1", standardize=True) as interactor:
        model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
        pop = interactor.population(model, pop_size=4, low_rank=1)
    before = ups(pop)
    pop.mutate_("full_gaussian", all_individuals=True, epsilon={"0": 0.0, "default": 0.5})
    assert moved(pop, before) == {"model.1"}


def test_a_run_takes_them_and_writes_them_down(tmp_path):
    settings = {"num_generations": 2, "pop_size": 4, "horizon": 20, "seed": 1}
    choices = {"epsilon": {"0": 0.1, "default": 0.7}, "crossover_type": {"default": "uniform"}}
    evolve_with_env("CartPole-v1", checkpoint_dir=tmp_path, **settings, **choices)
    evolve_with_env(
        "CartPole-v1",
        checkpoint_dir=tmp_path,
        resume=True,
        **{**settings, "num_generations": 3},
        **choices,
    )
    text = (tmp_path / "config.json").read_text()
    assert '"default": 0.7' in text
    assert '"default": "uniform"' in text
