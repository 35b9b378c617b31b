"""A Sequential over arrays gives the same numbers, to the last bit, as its layers called one by one."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
from torch import nn

from populora_envs import Population
from populora_envs.fused import FusedSequential
from populora_envs.invariance import ELEMENTWISE

ACTIVATIONS = [*ELEMENTWISE, nn.ReLU, nn.Identity, nn.LeakyReLU]


def numbers(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def population(*layers, pop_size=5, **options):
    torch.manual_seed(0)
    return Population(nn.Sequential(*layers), pop_size=pop_size, low_rank=2, seed=0, **options)


def one_by_one(pop, x, ids):
    """The routed forward where a hook listens, so that every layer is called."""
    handle = pop.model[0].register_forward_hook(lambda *_: None)
    try:
        return pop.routed(x, ids)
    finally:
        handle.remove()


@pytest.fixture
def fused_runs(monkeypatch):
    """Count the runs in which the layers were not called one by one."""
    runs = []
    plans = FusedSequential._plans

    def counted(self, dtype):
        found = plans(self, dtype)
        runs.append(bool(found))
        return found

    monkeypatch.setattr(FusedSequential, "_plans", counted)
    return runs


@pytest.mark.parametrize("width", [3, 32, 70])
@pytest.mark.parametrize("activation", ACTIVATIONS, ids=lambda kind: kind.__name__)
def test_it_equals_the_layers_called_one_by_one(activation, width, fused_runs):
    pop = population(nn.Linear(4, width), activation(), nn.Linear(width, 2), activation())
    x, ids = numbers(11, 4), torch.arange(11) % 5
    fused = pop.routed(x, ids)
    called = one_by_one(pop, x, ids)
    if activation is nn.Tanh:  # NumPy's
        torch.testing.assert_close(fused, called, rtol=1e-6, atol=1e-6)
    else:
        assert torch.equal(fused, called)
    assert fused_runs == [activation is not nn.LeakyReLU, False]


@pytest.mark.parametrize("sizes", [(4, 32, 2), (17, 64, 64, 6), (17, 256, 256, 6)])
def test_a_row_does_not_depend_on_the_batch_to_the_last_bit(sizes):
    layers = [nn.Linear(i, o) for i, o in itertools.pairwise(sizes)]
    pop = population(*[part for layer in layers for part in (layer, nn.Tanh())], pop_size=64)
    x, ids = numbers(150, sizes[0]), torch.arange(150) % 64
    whole = pop.routed(x, ids)
    for part in torch.randperm(150, generator=torch.Generator().manual_seed(1)).split(37):
        assert torch.equal(pop.routed(x[part], ids[part]), whole[part])
    assert torch.equal(pop.routed(x[7:8], ids[7:8]), whole[7:8])


def test_several_samples_of_one_individual_go_through_as_well(fused_runs):
    pop = population(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    x = numbers(15, 4)
    alone = torch.cat([pop(x[k : k + 1], individual=k // 3) for k in range(15)])
    assert torch.equal(pop(x, all_individuals=True), alone)
    assert all(fused_runs)


def test_the_input_stays_as_it_is():
    pop = population(nn.Linear(4, 4), nn.ReLU())
    x = numbers(5, 4)
    before = x.clone()
    pop(x, all_individuals=True)
    assert torch.equal(x, before)


def test_a_layer_that_nobody_adapts_is_called(fused_runs):
    pop = population(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2), lora_targets="0")
    assert torch.isfinite(pop(numbers(5, 4), all_individuals=True)).all()
    assert fused_runs == [False]


def test_layers_that_are_exchanged_later_are_seen():
    pop = population(nn.Linear(4, 4), nn.ReLU())
    x = numbers(5, 4)
    positive = pop(x, all_individuals=True)
    pop.model[1] = nn.Identity()
    assert (positive >= 0).all()
    assert (pop(x, all_individuals=True) < 0).any()


def test_a_copy_uses_its_own_layers():
    pop = population(nn.Linear(4, 4), nn.ReLU())
    x = numbers(5, 4)
    before = pop(x, all_individuals=True)
    other = copy.deepcopy(pop)
    other.individuals["0"].up += 1
    assert not torch.equal(other(x, all_individuals=True), before)
    assert torch.equal(pop(x, all_individuals=True), before)


def test_gradients_flow_to_the_inputs():
    pop = population(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    x = numbers(5, 4).requires_grad_()
    pop(x, all_individuals=True).sum().backward()
    assert torch.isfinite(x.grad).all()
    with torch.no_grad():
        assert not pop(x, all_individuals=True).requires_grad


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_dtypes_come_out_as_they_went_in(dtype):
    pop = population(nn.Linear(4, 8, dtype=dtype), nn.Tanh(), nn.Linear(8, 2, dtype=dtype))
    x = numbers(5, 4).to(dtype)
    output = pop(x, all_individuals=True)
    assert output.dtype == dtype
    merged = torch.cat([pop.merge_(k)(x[k : k + 1]) for k in range(5)])
    tolerance = 0.05 if dtype == torch.bfloat16 else 1e-12
    torch.testing.assert_close(output, merged, rtol=tolerance, atol=tolerance)


def test_a_width_that_does_not_fit_is_named():
    pop = population(nn.Linear(4, 8), nn.Linear(8, 2))
    with pytest.raises(ValueError, match="takes 4 numbers met 3"):
        pop(numbers(5, 3), all_individuals=True)
