"""Diversity is the distance of the individuals' weights from their mean."""

import pytest
import torch
from torch import nn

from populora_envs import Population
from populora_envs.diversity import diversity


@pytest.mark.parametrize("adapt_bias", [False, True])
def test_diversity_is_that_of_the_merged_weights(adapt_bias):
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))
    population = Population(model, pop_size=6, low_rank=2, seed=1, adapt_bias=adapt_bias)
    merged = [population.merge_(i).state_dict() for i in range(6)]
    weights = torch.stack([torch.cat([w.flatten() for w in m.values()]) for m in merged]).double()
    expected = (weights - weights.mean(0)).square().sum(1).mean().sqrt()
    assert diversity(population) == pytest.approx(float(expected), rel=1e-5)


def test_equal_individuals_have_none():
    population = Population(nn.Linear(3, 2), pop_size=4, low_rank=2, seed=1)
    for layer in population.individuals.values():
        layer.up[:] = layer.up[:1].clone()
        layer.down[:] = layer.down[:1].clone()
    assert diversity(population) < 1e-6
