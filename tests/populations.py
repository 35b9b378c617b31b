"""Small populations, and how the tests compare them."""

import torch
from torch import nn

from populora_envs.population import Population

FITNESSES = torch.tensor([3.0, 1.0, 4.0, 1.5])


def numbers(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def mlp():
    return nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1))


def wide():
    """Layers whose smaller sides are above the rank of `population`."""
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))


def population(model=None, pop_size=4, low_rank=3, seed=0, **options):
    model = mlp() if model is None else model
    return Population(model, pop_size=pop_size, low_rank=low_rank, seed=seed, **options)


def genes(pop):
    return [w.clone() for layer in pop.individuals.values() for w in (layer.down, layer.up)]


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def assert_close(one, other):
    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
