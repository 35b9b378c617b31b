"""Individuals that change the biases of their layers too."""

from __future__ import annotations

import copy
import math
import pickle
import warnings
from contextlib import contextmanager

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from populora_envs import Population
from populora_envs.fused import FusedSequential
from populora_envs.routing import RoutedLinear
from tests.populations import FITNESSES, mlp, numbers, same

pytestmark = pytest.mark.filterwarnings("ignore:`isinstance.*:DeprecationWarning")


class Mixed(nn.Module):
    """Adapted layers with and without a bias around one that nobody adapts."""

    def __init__(self, width=70):
        super().__init__()
        self.inward, self.frozen = nn.Linear(5, width), nn.Linear(width, width)
        self.wide, self.outward = nn.Linear(width, width), nn.Linear(width, 3, bias=False)

    def forward(self, x):
        hidden = torch.tanh(self.frozen(torch.relu(self.inward(x))))
        return self.outward(nn.functional.gelu(self.wide(hidden)))


MIXED = ["inward", "wide", "outward"]


def population(model=None, pop_size=4, low_rank=2, seed=0, **options):
    """A population whose biases are well apart."""
    options = {"adapt_bias": True, **options}
    model = mlp() if model is None else model
    pop = Population(model, pop_size=pop_size, low_rank=low_rank, seed=seed, **options)
    for offset in offsets(pop).values():
        offset += numbers(*offset.shape, seed=5).to(offset)
    return pop


def offsets(pop):
    return {n: layer.offset for n, layer in pop.individuals.items() if layer.offset is not None}


def parts(pop):
    return [w.clone() for layer in pop.individuals.values() for w in layer.parts.values()]


@contextmanager
def forced_plan(factored):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RoutedLinear, "materialises", property(lambda _: not factored))
        yield


@pytest.fixture(params=[False, True], ids=["materialised", "factored"])
def plan(request):
    with forced_plan(factored=request.param):
        yield


def by_merging(pop, x, ids):
    """What the merged individuals give, one row each."""
    return torch.cat([pop.merge_(int(i))(row[None]) for i, row in zip(ids, x, strict=True)])


def assert_close(one, other, tolerance=1e-5):
    torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


# --- what is adapted


def test_there_is_an_offset_where_there_is_a_bias():
    pop = population(Mixed(), lora_targets=MIXED)
    assert {n: tuple(o.shape) for n, o in offsets(pop).items()} == {
        "inward": (4, 70),
        "wide": (4, 70),
    }
    assert list(pop.individuals["wide"].parts) == ["down", "up", "offset"]
    assert list(pop.individuals["outward"].parts) == ["down", "up"]
    assert not offsets(population(Mixed(), adapt_bias=False))
    assert not offsets(Population(Mixed(), pop_size=2, low_rank=1))


def test_the_same_factors_are_drawn_with_biases_and_without():
    plain, biased = (
        Population(mlp(), pop_size=4, low_rank=2, seed=3, adapt_bias=a) for a in (0, 1)
    )
    for one, other in zip(plain.individuals.values(), biased.individuals.values(), strict=True):
        assert torch.equal(one.down, other.down)
        assert torch.equal(one.up, other.up)
        assert (other.offset != 0).all()


def test_offsets_are_drawn_as_wide_as_changes_of_a_weight():
    layer = Population(
        nn.Linear(50, 100), pop_size=200, low_rank=2, seed=0, adapt_bias=True
    ).individuals[""]
    assert layer.offset.std().item() == pytest.approx(0.1, rel=0.03)
    weights = layer.up[:20] @ layer.down[:20].transpose(1, 2)
    assert weights.std().item() == pytest.approx(0.1, rel=0.1)


def test_individuals_that_equal_the_base():
    model, x = mlp(), numbers(4, 2)
    pop = Population(model, pop_size=4, low_rank=2, adapt_bias=True, init="zero")
    assert all((offset == 0).all() for offset in offsets(pop).values())
    assert_close(pop(x, all_individuals=True), model(x))


def test_layers_without_a_bias_have_nothing_to_adapt(plan):
    model = nn.Sequential(nn.Linear(3, 4, bias=False), nn.Tanh(), nn.Linear(4, 2, bias=False))
    one, other = (
        Population(model, pop_size=4, low_rank=2, seed=0, adapt_bias=adapt)
        for adapt in (True, False)
    )
    assert not offsets(one)
    x = numbers(4, 3)
    assert torch.equal(one(x, all_individuals=True), other(x, all_individuals=True))
    assert one.merge_(0)[0].bias is None
    for pop in (one, other):
        pop.evolve_(FITNESSES)
    assert same(parts(one), parts(other))


# --- the routed forward is the merged individual


@settings(max_examples=40, deadline=None)
@given(
    ids=st.lists(st.integers(0, 3), min_size=1, max_size=7),
    width=st.sampled_from([3, 40]),
    factored=st.booleans(),
    fused=st.booleans(),
)
def test_the_routed_forward_equals_merging(ids, width, factored, fused):
    model = (
        nn.Sequential(nn.Linear(5, width), nn.Tanh(), nn.Linear(width, 2))
        if fused
        else Mixed(width)
    )
    x = numbers(len(ids), 5)
    with forced_plan(factored):
        pop = population(model)
        expected = by_merging(pop, x, ids)
        assert_close(pop(x, individuals=ids), expected)
        assert_close(pop.routed(x, torch.tensor(ids)), expected)
        assert pop.routed.takes_arrays is fused
        if fused:
            assert_close(torch.as_tensor(pop.routed(x.numpy(), torch.tensor(ids))), expected)


@pytest.mark.parametrize("shape", [(5,), (1, 5), (3, 5), (2, 3, 4, 5), (0, 5)])
def test_one_individual_and_inputs_of_any_shape(plan, shape):
    pop, x = population(nn.Linear(5, 3)), numbers(*shape)
    assert_close(pop(x, individual=2), pop.merge_(2)(x))


def test_the_layers_are_run_together_as_arrays(plan, monkeypatch):
    found = []
    plans = FusedSequential._plans
    monkeypatch.setattr(
        FusedSequential, "_plans", lambda self, dtype: found.append(plans(self, dtype)) or found[-1]
    )
    pop, ids = population(), torch.tensor([3, 0, 3, 1, 2])
    x = numbers(5, 2)
    assert_close(torch.as_tensor(pop.routed(x.numpy(), ids)), by_merging(pop, x, ids))
    assert found[-1]


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.bfloat16, 0.03), (torch.float16, 0.005)]
)
def test_other_precisions(plan, dtype, tolerance):
    pop, x = population(Mixed(9).to(dtype), lora_targets=MIXED), numbers(6, 5).to(dtype)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    assert pop.individuals["wide"].offset.dtype == wide
    merged = pop.merge_(0)
    assert (merged.wide.bias.dtype, merged.frozen.bias.dtype) == (dtype, dtype)
    routed = pop(x, individuals=[3, 0, 3, 1, 2, 0])
    assert routed.dtype == dtype
    assert_close(routed, by_merging(pop, x, [3, 0, 3, 1, 2, 0]), tolerance)


def test_a_bias_and_its_change_are_rounded_once():
    model = nn.Linear(1, 1).to(torch.bfloat16)
    with torch.no_grad():
        model.weight.zero_()
        model.bias.fill_(1.0)
    pop = Population(model, pop_size=3, low_rank=1, adapt_bias=True, init="zero")
    pop.individuals[""].offset.copy_(torch.tensor([[0.0045], [0.003], [0.006]]))
    expected = [1.0078125, 1.0, 1.0078125]
    assert [pop.merge_(i).bias.item() for i in range(3)] == expected
    routed = pop(torch.ones(1, 1, dtype=torch.bfloat16), all_individuals=True)
    assert routed.flatten().tolist() == expected


def test_the_merged_bias_is_a_parameter_of_its_own():
    model = mlp()
    model[0].bias.requires_grad_(False)
    pop = population(model)
    merged = pop.merge_(1)
    assert [merged[0].bias.requires_grad, merged[2].bias.requires_grad] == [False, True]
    assert torch.equal(pop.model[0].bias, model[0].bias)
    assert_close(merged[0].bias, model[0].bias + pop.individuals["0"].offset[1])


def test_the_input_has_its_gradient(plan):
    pop, ids = population(Mixed(9)), [2, 0, 2]
    x, y = (numbers(3, 5).requires_grad_() for _ in range(2))
    pop(x, individuals=ids).square().sum().backward()
    by_merging(pop, y, ids).square().sum().backward()
    assert_close(x.grad, y.grad)


def test_an_offset_that_is_changed_in_place_is_seen(plan):
    for model in (mlp(), Mixed(9)):
        pop = population(model)
        x = numbers(4, 2 if isinstance(model, nn.Sequential) else 5)
        for change in (lambda o: o.mul_(2), lambda o: o[1].add_(1), lambda o: o.zero_()):
            before = pop.routed(x, torch.arange(4))
            for offset in offsets(pop).values():
                change(offset)
            after = pop.routed(x, torch.arange(4))
            assert not torch.equal(before[1], after[1])
            assert_close(after, by_merging(pop, x, range(4)))


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda pop: pickle.loads(pickle.dumps(pop))])
def test_copies_have_offsets_of_their_own(clone):
    pop, x = population(), numbers(4, 2)
    before = pop(x, all_individuals=True)
    other = clone(pop)
    assert torch.equal(other(x, all_individuals=True), before)
    other.individuals["2"].offset += 1
    assert_close(other(x, all_individuals=True), before + 1)
    assert torch.equal(pop(x, all_individuals=True), before)


# --- to the last bit


@settings(max_examples=25, deadline=None)
@given(ids=st.lists(st.integers(0, 3), min_size=1, max_size=70), data=st.data())
@pytest.mark.parametrize("factored", [None, True, False])
@pytest.mark.parametrize("kind", ["mixed", "fused"])
def test_a_row_does_not_depend_on_the_batch(factored, kind, ids, data):
    model = (
        Mixed() if kind == "mixed" else nn.Sequential(nn.Linear(5, 33), nn.Tanh(), nn.Linear(33, 3))
    )
    ids = torch.tensor(ids)
    x = numbers(len(ids), 5)
    with pytest.MonkeyPatch.context() as patch:
        if factored is not None:
            patch.setattr(RoutedLinear, "materialises", property(lambda _: not factored))
        pop = population(model)
        whole = pop.routed(x, ids)
        order = torch.tensor(data.draw(st.permutations(range(len(ids)))))
        for part in order.split(data.draw(st.integers(1, len(ids)))):
            assert torch.equal(pop.routed(x[part], ids[part]), whole[part])


def test_compiled():
    x, ids = numbers(6, 5), torch.tensor([3, 0, 3, 1, 2, 0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pop = population(Mixed(), lora_targets=MIXED, compile=True)
        whole = pop.routed(x, ids)
        assert pop.routed._compiled is not None, "torch.compile works here"
        assert_close(whole, by_merging(pop, x, ids))
        pop.individuals["wide"].offset[3] += 1
        moved = pop.routed(x, ids)
        assert_close(moved, by_merging(pop, x, ids))
        assert torch.equal(moved[1], whole[1])
        for part in torch.tensor([5, 2, 0, 1, 4, 3]).split(4):
            assert torch.equal(pop.routed(x[part], ids[part]), moved[part])
        for _ in range(2):
            pop.move_base_({"wide": {"weight": torch.full((70, 70), 0.1), "bias": torch.ones(70)}})
            assert_close(pop.routed(x, ids), by_merging(pop, x, ids), 1e-4)


# --- genetics


def test_an_average_of_offsets():
    pop = population()
    before = {n: o.clone() for n, o in offsets(pop).items()}
    pop.crossover_("average", torch.tensor([[0, 0], [3, 1]]), [2, 0])
    for name, now in offsets(pop).items():
        was = before[name]
        assert torch.equal(now[2], was[0])
        assert_close(now[0], (was[3] + was[1]) / 2)
        assert torch.equal(now[[1, 3]], was[[1, 3]])


def test_a_clone_is_the_first_parent_whole():
    pop = population()
    expected = pop.individual_state(3)
    pop.crossover_("clone", torch.tensor([[3, 0]]), [1])
    for name, weights in pop.individual_state(1).items():
        assert same(weights.values(), expected[name].values())


@pytest.mark.parametrize("epsilon", [0.2, 1.0])
def test_a_mutated_offset_moves_as_far_as_a_weight(epsilon):
    pop = Population(nn.Linear(16, 500), pop_size=20, low_rank=2, seed=0, adapt_bias=True)
    before = pop.individuals[""].offset.clone()
    pop.mutate_("full_gaussian", individuals=range(10), epsilon=epsilon)
    moved = pop.individuals[""].offset - before
    assert moved[:10].std().item() == pytest.approx(epsilon / math.sqrt(16), rel=0.03)
    assert moved[:10].mean().abs() < 0.01
    assert (moved[10:] == 0).all()


def test_elites_stay_and_everyone_else_is_varied():
    pop = population()
    before = {n: o.clone() for n, o in offsets(pop).items()}
    selected = pop.evolve_(FITNESSES, elite_frac=0.25)
    assert selected.elites.tolist() == [2]
    for name, now in offsets(pop).items():
        assert torch.equal(now[2], before[name][2])
        assert (now[[0, 1, 3]] != before[name][[0, 1, 3]]).any(dim=1).all()


def test_evolution_with_biases_can_be_repeated():
    runs = [population() for _ in range(2)]
    for _ in range(3):
        for pop in runs:
            pop.evolve_(FITNESSES, crossover_type="average")
    assert same(*map(parts, runs))
