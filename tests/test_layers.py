"""Every kind of layer that individuals change: routed, merged, saved and varied."""

from __future__ import annotations

import copy
import pickle

import cloudpickle
import pytest
import torch
from torch import nn

from populora_envs import Population, make_search
from tests.layer_cases import CASES, batch, make

# What torch says of its own kernels, in the merged model.
pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections:UserWarning")

TOLERANCES = {torch.float32: 1e-5, torch.float64: 1e-12, torch.bfloat16: 2.0**-6}
IDS = [3, 0, 0, 4, 2, 1]


def population(name, dtype=torch.float32, **settings):
    """Individuals that are well apart, the biases and norms too."""
    settings = {"lora_targets": ["inner"], "adapt_bias": True, "pop_size": 5, **settings}
    pop = Population(make(name, dtype), low_rank=2, seed=0, **settings)
    pop.mutate_("full_gaussian", all_individuals=True)
    return pop


class Beside(nn.Module):
    """A model beside a layer that is adapted in its place, and reads nothing."""

    def __init__(self, model):
        super().__init__()
        self.model, self.other = model, nn.Linear(1, 1)

    def forward(self, x):
        self.other(x.new_zeros(len(x), 1, dtype=torch.float32))
        return self.model(x)


def by_merging(pop, x, ids):
    parts = x.expand(len(ids), *x.shape[1:]).split(1) if len(x) == 1 else x.chunk(len(ids))
    return torch.cat([pop.merge_(i)(part) for i, part in zip(ids, parts, strict=True)])


def assert_close(one, other, dtype=torch.float32):
    scale = max(1.0, float(other.detach().abs().max()))
    torch.testing.assert_close(one, other, rtol=0, atol=TOLERANCES[dtype] * scale)


FORMS = {
    "all, shown one row": lambda pop, x: (pop(x[:1], all_individuals=True), x[:1], range(5)),
    "all": lambda pop, x: (pop(x[:5], all_individuals=True), x[:5], range(5)),
    "unsorted with repeats": lambda pop, x: (pop(x[:6], individuals=IDS), x[:6], IDS),
    "several rows each": lambda pop, x: (pop(x[:12], individuals=IDS), x[:12], IDS),
    "one": lambda pop, x: (pop(x[:4], individual=2), x[:4], [2]),
    "one row per slot": lambda pop, x: (pop.routed(x[:6], torch.tensor(IDS)), x[:6], IDS),
}


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_every_layer_routed_equals_it_merged_in_every_form(name, dtype):
    pop, x = population(name, dtype), batch(name, 12, dtype)
    with torch.inference_mode():
        for form, run in FORMS.items():
            routed, seen, ids = run(pop, x)
            assert routed.dtype == dtype, form
            assert_close(routed, by_merging(pop, seen, ids), dtype)
        base = make(name, dtype)(x[:5])
        assert not torch.allclose(pop(x[:5], all_individuals=True), base, atol=0.02)


@pytest.mark.parametrize("adapted", [True, False], ids=["adapted", "frozen"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_a_row_of_every_layer_does_not_depend_on_the_batch_to_the_last_bit(name, dtype, adapted):
    if adapted:
        pop = population(name, dtype)
    else:  # beside a layer that is
        pop = Population(
            Beside(make(name, dtype)), pop_size=5, low_rank=1, lora_targets="other", seed=0
        )
    ids, x = torch.arange(37) % 5, batch(name, 37, dtype)
    with torch.inference_mode():
        whole = pop.routed(x, ids)
        order = torch.randperm(37, generator=torch.Generator().manual_seed(1))
        for part in (*order.split(7), order[:1], order[:36]):
            assert torch.equal(pop.routed(x[part], ids[part]), whole[part])
        for i in (0, 3):
            assert torch.equal(pop(x[ids == i], individual=i), whole[ids == i])


@pytest.mark.parametrize("name", CASES)
def test_every_layer_is_saved_loaded_copied_and_pickled(name, tmp_path):
    pop, x = population(name), batch(name, 5)
    expected = pop(x, all_individuals=True)
    for other in (copy.deepcopy(pop), pickle.loads(cloudpickle.dumps(pop))):
        assert torch.equal(other(x, all_individuals=True), expected)
    fresh = population(name, init="zero")
    fresh.save(tmp_path / "other.pt")
    pop.save(tmp_path / "all.pt")
    fresh.load(tmp_path / "all.pt")
    assert torch.equal(fresh(x, all_individuals=True), expected)
    fresh.load(tmp_path / "other.pt")
    pop.save_individual(tmp_path / "one.pt", 3)
    fresh.load_individual(tmp_path / "one.pt", 1)
    assert torch.equal(fresh(x, individual=1), pop(x, individual=3))
    alone = pop.with_individuals([pop.individual_state(3)])
    assert torch.equal(alone(x, individual=0), pop(x, individual=3))


@pytest.mark.parametrize("search", ["ga", "es", "snes"])
@pytest.mark.parametrize("name", CASES)
def test_every_search_moves_every_weight_of_every_layer(name, search):
    pop, x = population(name, init="zero"), batch(name, 5)
    searching = make_search(search, pop)
    for generation in range(3):
        searching.ask()
        searching.tell(torch.tensor([3.0, 1.0, float(generation), 0.0, 2.0]))
    searching.ask()
    for layer in pop.individuals.values():
        change = layer.up @ layer.down.transpose(1, 2)
        assert change.isfinite().all()
        assert (change != 0).any(0).all()
        assert layer.offset is None or (layer.offset != 0).any(0).all()
    assert_close(pop(x, all_individuals=True), by_merging(pop, x, range(5)))


@pytest.mark.parametrize("name", CASES)
def test_a_base_that_has_moved_moves_every_layer_of_everyone(name, tmp_path):
    pop, x = population(name), batch(name, 5)
    before = pop(x, all_individuals=True)
    step = {
        n: {"weight": torch.full_like(layer.weight, 0.1)} for n, layer in pop.individuals.items()
    }
    pop.move_base_(step)
    routed = pop(x, all_individuals=True)
    assert_close(routed, by_merging(pop, x, range(5)))
    assert not torch.allclose(routed, before, atol=1e-3)
    pop.save_individual(tmp_path / "dense.pt", 2)
    fresh = Population(
        make(name), pop_size=2, low_rank=99, lora_targets=["inner"], adapt_bias=True, seed=0
    )
    fresh.load_individual(tmp_path / "dense.pt", 1)
    assert_close(fresh(x[2:3], individual=1), routed[2:3])


@pytest.mark.parametrize("name", CASES)
def test_the_input_of_every_layer_has_its_gradient(name):
    pop, x, y = population(name), batch(name, 4), batch(name, 4)
    if not x.is_floating_point():
        return
    x.requires_grad_()
    y.requires_grad_()
    pop(x, individuals=[1, 3]).square().sum().backward()
    by_merging(pop, y, [1, 3]).square().sum().backward()
    torch.testing.assert_close(x.grad, y.grad, rtol=1e-4, atol=1e-4)


def test_every_kind_has_a_case():
    from populora_envs.layer_kinds import KINDS, kind_of

    layers = [kind_of(CASES[name].make()) for name in CASES]
    assert {kind.name for kind in layers} == {kind.name for kind in KINDS}


@pytest.mark.parametrize("name", CASES)
def test_an_individual_of_every_layer_trains_and_comes_back(name):
    pop, x = population(name), batch(name, 3)
    module = pop.to_lora(2)
    assert_close(module(x), pop.merge_(2)(x))
    trained = [p for p in module.parameters() if p.requires_grad]
    assert all("parametrizations" in n for n, p in module.named_parameters() if p.requires_grad)
    optimiser = torch.optim.SGD(trained, lr=0.05)
    before = pop(x, all_individuals=True) if len(x) == 5 else pop(x, individual=2)
    module(x).square().mean().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in trained)
    optimiser.step()
    pop.load_individual_(2, module)
    with torch.inference_mode():
        assert_close(pop(x, individual=2), module(x))
    assert not torch.equal(pop(x, individual=2), before)
