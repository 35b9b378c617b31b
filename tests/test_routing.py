import copy
from contextlib import contextmanager
from itertools import pairwise

import cloudpickle
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from populora_envs.invariance import TILE, Tiles
from populora_envs.population import Population
from populora_envs.routing import RoutedLinear

sizes = st.lists(st.integers(1, 40), min_size=2, max_size=4)


def numbers(*shape, seed=0, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def mlp(widths, *, bias=True):
    layers = [nn.Linear(a, b, bias=bias) for a, b in pairwise(widths)]
    return nn.Sequential(*(part for layer in layers for part in (layer, nn.Tanh())))


def population(model, pop_size=4, low_rank=3, seed=0, **options):
    """A population whose individuals are well apart."""
    pop = Population(model, pop_size=pop_size, low_rank=low_rank, seed=seed, **options)
    pop.mutate_("full_gaussian", all_individuals=True)
    return pop


@pytest.fixture(params=[1, 2], ids=["1 thread", "2 threads"])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


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
    """What the merged individuals give, each for its contiguous share of the rows."""
    groups = x.expand(len(ids), *x.shape[1:]) if len(x) == 1 else x
    parts = groups.chunk(len(ids))
    return torch.cat([pop.merge_(i)(part) for i, part in zip(ids, parts, strict=True)])


def assert_close(one, other):
    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


# --- the routed forward is the merged individual


@settings(max_examples=60, deadline=None)
@given(
    widths=sizes,
    low_rank=st.integers(1, 50),
    ids=st.lists(st.integers(0, 4), min_size=1, max_size=7),
    rows=st.integers(1, 3),
    inner=st.sampled_from([(), (1,), (4,), (2, 3)]),
    bias=st.booleans(),
    factored=st.booleans(),
)
def test_the_routed_forward_equals_merging_that_individual(
    widths, low_rank, ids, rows, inner, bias, factored
):
    pop = population(mlp(widths, bias=bias), 5, low_rank)
    x = numbers(rows * len(ids), *inner, widths[0])
    with forced_plan(factored):
        assert_close(pop(x, individuals=ids), by_merging(pop, x, ids))


@pytest.mark.parametrize("low_rank", [1, 2, 16, 300])
def test_a_wide_layer_is_factored_only_while_that_saves_work(low_rank):
    pop = population(mlp([100, 80]), low_rank=low_rank)
    assert pop.individuals["0"].materialises == (low_rank > 44)  # 44 * 180 < 100 * 80
    x = numbers(8, 100)
    assert_close(pop(x, all_individuals=True), by_merging(pop, x, range(4)))


def test_a_small_layer_is_materialised_up_to_a_bound_of_memory(monkeypatch):
    pop = population(mlp([64, 64]), low_rank=1)
    assert pop.individuals["0"].materialises
    monkeypatch.setattr("populora_envs.plans.CACHED_BYTES", 4 * 64 * 64 * 4 - 1)
    assert not pop.individuals["0"].materialises
    pop = population(mlp([64, 64]), low_rank=32)
    assert pop.individuals["0"].materialises  # its factors would take no less


class Twice(nn.Module):
    """One layer under two names, called twice and by keyword, beside one that nobody adapts."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.second = self.first
        self.third = nn.Linear(6, 2)

    def forward(self, x):
        hidden = torch.tanh(self.first(x))
        return self.third(input=torch.tanh(self.second(input=hidden)) + self.first(hidden))


@pytest.mark.parametrize(
    ("targets", "adapted"),
    [
        (None, ["first", "third"]),
        (["second"], ["first"]),
        (["second", "first"], ["first"]),
        (["third"], ["third"]),
    ],
)
def test_one_layer_under_two_names_called_twice_and_by_keyword(plan, targets, adapted):
    pop = population(Twice(), lora_targets=targets)
    assert list(pop.individuals) == adapted
    x = numbers(8, 6)
    routed = pop(x, individuals=[3, 0, 3, 1])
    assert_close(routed, by_merging(pop, x, [3, 0, 3, 1]))
    assert not torch.allclose(routed[0], pop(x, individuals=[0, 0, 3, 1])[0])


def test_a_model_that_is_a_linear(plan):
    pop = population(nn.Linear(5, 3), lora_targets=None)
    x = numbers(6, 5)
    assert list(pop.individuals) == [""]
    assert_close(pop(x, individuals=[2, 0]), by_merging(pop, x, [2, 0]))
    assert type(pop.merge_(1)) is nn.Linear


@pytest.mark.parametrize("shape", [(5,), (1, 5), (3, 5), (2, 3, 5), (2, 3, 4, 5), (0, 5)])
def test_one_individual_takes_inputs_of_any_number_of_dimensions(plan, shape):
    pop = population(mlp([5, 7, 2]))
    x = numbers(*shape)
    routed = pop(x, individual=2)
    assert routed.shape == (*shape[:-1], 2)
    assert_close(routed, pop.merge_(2)(x))


class Folded(nn.Module):
    """Time is folded into the batch before the layer; `pooled` then leaves one row per sample."""

    def __init__(self):
        super().__init__()
        self.layer, self.last = nn.Linear(5, 4), nn.Linear(4, 1)

    def forward(self, x):
        folded = self.layer(x.reshape(-1, 5)).reshape(*x.shape[:2], 4)
        return self.last(folded.mean(dim=1))


def test_a_model_that_folds_time_into_the_batch(plan):
    pop = population(Folded())
    x = numbers(6, 3, 5)
    assert_close(pop(x, individuals=[1, 0, 1]), by_merging(pop, x, [1, 0, 1]))
    assert torch.equal(pop(x, individual=1)[4:5], pop(x[4:5], individual=1))


class Halved(nn.Module):
    """Two rows become one."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 4)

    def forward(self, x):
        return self.layer(x[0::2] - x[1::2])


def test_a_model_that_changes_the_number_of_rows(plan):
    pop = population(Halved())
    x = numbers(12, 5)
    assert_close(pop(x, individuals=[1, 2]), by_merging(pop, x, [1, 2]))
    with pytest.raises(ValueError, match="met 2 rows for 4 groups: the first dimension"):
        pop(x[:4], all_individuals=True)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")  # of the merged encoder
@pytest.mark.parametrize("grad", [True, False])
def test_the_fused_path_of_a_transformer_does_not_pass_the_individuals_by(plan, grad):
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), 2)
    pop = population(encoder)
    assert "layers.1.linear2" in pop.individuals
    x, ids = numbers(6, 3, 4), [2, 0, 1]
    padding = torch.tensor([[False, False, True]]).expand(6, 3)
    with torch.set_grad_enabled(grad):
        routed = pop(x, individuals=ids, src_key_padding_mask=padding)[:, :2]
        merged = [
            pop.merge_(i)(part, src_key_padding_mask=padding[:2])[:, :2]
            for i, part in zip(ids, x.chunk(3), strict=True)
        ]
        assert_close(routed, torch.cat(merged))
        assert not torch.allclose(routed[:2], pop(x[:2], individual=0)[:, :2])
    assert torch.backends.mha.get_fastpath_enabled()


class Attention(nn.Module):
    """D-36: the output projection of torch's attention is used by its weight alone."""

    def __init__(self):
        super().__init__()
        self.attention, self.last = nn.MultiheadAttention(4, 2, batch_first=True), nn.Linear(4, 2)

    def forward(self, x):
        return self.last(self.attention(x, x, x, need_weights=False)[0])


@pytest.mark.parametrize("grad", [True, False])
def test_attention_is_part_of_both_forward_and_merge(grad):
    pop = population(Attention().train())
    assert list(pop.individuals) == ["attention.in_proj_weight", "attention.out_proj", "last"]
    x = numbers(4, 3, 4)
    with torch.set_grad_enabled(grad):
        assert_close(pop(x, individuals=[1, 3]), by_merging(pop, x, [1, 3]))


# --- to the last bit, whatever else is in the batch


class Mixed(nn.Module):
    """Adapted layers around one that nobody adapts; the widest is factored by its size."""

    def __init__(self, width=70):
        super().__init__()
        self.inward, self.frozen = nn.Linear(5, width), nn.Linear(width, width)
        self.wide, self.outward = nn.Linear(width, width), nn.Linear(width, 3, bias=False)

    def forward(self, x):
        hidden = torch.tanh(self.frozen(torch.relu(self.inward(x))))
        return self.outward(nn.functional.gelu(self.wide(hidden)))


MIXED = ["inward", "wide", "outward"]


@pytest.fixture(scope="module")
def mixed():
    return population(Mixed(), 5, 2, lora_targets=MIXED)


def test_the_mixed_model_has_layers_of_both_plans(mixed):
    assert [layer.materialises for layer in mixed.individuals.values()] == [True, False, True]


@settings(max_examples=40, deadline=None)
@given(
    ids=st.lists(st.integers(0, 4), min_size=1, max_size=90),
    inner=st.sampled_from([(), (3,)]),
    data=st.data(),
)
@pytest.mark.parametrize("num_threads", [1, 2])
def test_a_row_does_not_depend_on_the_batch_to_the_last_bit(mixed, num_threads, ids, inner, data):
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        ids = torch.tensor(ids)
        x = numbers(len(ids), *inner, 5)
        whole = mixed.routed(x, ids)
        order = torch.tensor(data.draw(st.permutations(range(len(ids)))))
        cuts = data.draw(st.lists(st.integers(0, len(ids)), max_size=3))
        for part in torch.tensor_split(order, sorted(cuts)):
            if len(part):
                assert torch.equal(mixed.routed(x[part], ids[part]), whole[part])
    finally:
        torch.set_num_threads(before)


def test_batches_of_one_and_slices_of_one_tensor(mixed, threads):
    ids = torch.arange(130) % 5
    x = numbers(130, 5)
    whole = mixed.routed(x, ids)
    for k in range(0, 130, 13):
        assert torch.equal(mixed.routed(x[k : k + 1], ids[k : k + 1]), whole[k : k + 1])
        assert torch.equal(mixed(x[k : k + 1], individual=k % 5), whole[k : k + 1])


@pytest.mark.parametrize("inner", [(), (4,)])
def test_several_rows_of_one_individual_are_as_exact_as_one(mixed, threads, inner):
    x = numbers(15, *inner, 5)
    ids = [4, 0, 4]
    alone = [mixed(x[k : k + 1], individual=ids[k // 5]) for k in range(15)]
    assert torch.equal(mixed(x, individuals=ids), torch.cat(alone))
    assert torch.equal(mixed(x[:7], individual=4)[:5], torch.cat(alone[:5]))
    assert torch.equal(mixed(x[:6], individuals=[4, 0])[:3], torch.cat(alone[:3]))
    assert torch.equal(mixed(x[:5], all_individuals=True)[4:], alone[4])


def test_both_plans_for_every_layer(plan, threads):
    pop = population(Mixed(33), 5, 4, lora_targets=MIXED)
    ids = torch.arange(75) % 5
    x = numbers(75, 5)
    whole, order = (
        pop.routed(x, ids),
        torch.randperm(75, generator=torch.Generator().manual_seed(1)),
    )
    for part in order.split(11):
        assert torch.equal(pop.routed(x[part], ids[part]), whole[part])


def test_threads_do_not_change_a_bit(mixed):
    ids, x = torch.arange(130) % 5, numbers(130, 5)
    before, outputs = torch.get_num_threads(), []
    for num_threads in (1, 2):
        torch.set_num_threads(num_threads)
        outputs.append(mixed.routed(x, ids))
    torch.set_num_threads(before)
    assert torch.equal(*outputs)


def test_bfloat16_is_as_exact(threads):
    pop = population(Mixed().to(torch.bfloat16), 5, 2, lora_targets=MIXED)
    ids, x = torch.arange(70) % 5, numbers(70, 5, dtype=torch.bfloat16)
    whole = pop.routed(x, ids)
    assert whole.dtype == torch.bfloat16
    for part in torch.arange(70).flip(0).split(9):
        assert torch.equal(pop.routed(x[part], ids[part]), whole[part])


def test_shown_to_everyone_equals_shown_to_each(mixed):
    x = numbers(1, 4, 5)
    shown = mixed(x, all_individuals=True)
    assert shown.shape == (5, 4, 3)
    assert torch.equal(shown, torch.cat([mixed(x, individual=i) for i in range(5)]))
    assert torch.equal(shown, mixed(x.expand(5, 4, 5), all_individuals=True))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("graph", [True, False])
@pytest.mark.parametrize("size", [(7, 3), (256, 130)])
@pytest.mark.parametrize("count", [1, TILE - 1, TILE, TILE + 1, 3 * TILE, 0])
def test_tiles_give_the_linear_layer(count, size, graph, bias):
    layer = nn.Linear(*size, bias=bias)
    x = numbers(count, size[0])
    with torch.set_grad_enabled(graph):
        output = Tiles(layer.weight, layer.bias)(x)
    assert_close(output, layer(x))
    assert output.requires_grad is graph


@pytest.mark.parametrize("size", [(7, 3), (64, 64), (256, 256), (105, 512), (512, 21)])
def test_a_row_in_a_tile_does_not_depend_on_the_others_to_the_last_bit(size, threads):
    tiles = Tiles(numbers(*size[::-1]), numbers(size[1]))
    x = numbers(150, size[0])
    whole = tiles(x)
    for part in torch.randperm(150, generator=torch.Generator().manual_seed(1)).split(37):
        assert torch.equal(tiles(x[part]), whole[part])


# --- what is gathered is renewed when something changes


def test_changes_in_place_are_seen(plan):
    pop = population(mlp([5, 4, 2]))
    x = numbers(8, 5)

    def expect_merged():
        assert_close(pop(x, all_individuals=True), by_merging(pop, x, range(4)))

    expect_merged()
    pop.individuals["0"].down[1] += 1
    expect_merged()
    pop.individuals["2"].up.mul_(2)
    expect_merged()
    with torch.no_grad():
        pop.model[0].weight.add_(1)
        pop.model[0].bias.add_(1)
    expect_merged()
    with torch.inference_mode():
        pop.mutate_("full_gaussian", all_individuals=True)
        expect_merged()
    expect_merged()


def test_indices_that_the_caller_changes_in_place_are_seen(plan):
    pop = population(mlp([5, 4, 2]))
    x, ids = numbers(3, 5), torch.tensor([0, 1, 2])
    for call in (lambda: pop(x, individuals=ids), lambda: pop.routed(x, ids)):
        ids.copy_(torch.tensor([0, 1, 2]))
        assert_close(call(), by_merging(pop, x, [0, 1, 2]))
        ids[1] = 3
        assert_close(call(), by_merging(pop, x, [0, 3, 2]))


def gathered(pop, name="0"):
    return pop.individuals[name]._plan.by_arrays._gathered


def test_while_nothing_changes_nothing_is_gathered_anew():
    pop = population(mlp([5, 4, 2]))
    x, ids = numbers(3, 5), torch.tensor([0, 1, 2])
    pop.routed(x, ids)
    first = gathered(pop)
    pop.routed(x * 2, ids)
    assert gathered(pop)[0] is first[0]


def test_a_slot_that_goes_to_another_individual_is_gathered_alone(plan):
    pop = population(mlp([5, 4, 2]))
    x = numbers(3, 5)
    for ids in ([0, 3, 2], [2, 3, 2], [1, 0, 3]):
        expected = torch.cat([pop(x[i : i + 1], individual=k) for i, k in enumerate(ids)])
        pop.routed(x, torch.tensor([0, 1, 2]))
        before = gathered(pop)
        assert torch.equal(pop.routed(x, torch.tensor(ids)), expected)
        assert all(a is b for a, b in zip(gathered(pop), before, strict=True))


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda p: cloudpickle.loads(cloudpickle.dumps(p))]
)
def test_a_copy_of_a_population_lives_on_its_own(plan, copied):
    pop = population(mlp([5, 4, 2]))
    x = numbers(4, 5)
    before = pop(x, all_individuals=True)
    other = copied(pop)
    assert torch.equal(other(x, all_individuals=True), before)
    with torch.no_grad():
        other.model[0].bias.add_(1)
    other.individuals["2"].up.zero_()
    assert torch.equal(pop(x, all_individuals=True), before)
    assert_close(other(x, all_individuals=True), by_merging(other, x, range(4)))


def test_a_population_can_be_made_and_used_in_inference_mode(plan):
    with torch.inference_mode():
        pop = population(mlp([5, 4, 2]))
        x = numbers(8, 5)
        assert_close(pop(x, individuals=[0, 3]), by_merging(pop, x, [0, 3]))
        pop.evolve_([1.0, 2.0, 3.0, 4.0])
    assert_close(pop(numbers(8, 5), individuals=[0, 3]), by_merging(pop, numbers(8, 5), [0, 3]))


# --- gradients


def test_the_gradient_flows_to_the_inputs(plan):
    pop = population(mlp([5, 4, 2]))
    x = numbers(8, 5).requires_grad_()
    (routed,) = torch.autograd.grad(pop(x, individuals=[3, 1]).square().sum(), x)
    (merged,) = torch.autograd.grad(by_merging(pop, x, [3, 1]).square().sum(), x)
    assert_close(routed, merged)


# --- hooks and the model itself


def test_hooks_of_the_base_model_still_run():
    model, seen = mlp([5, 4, 2]), []
    model[0].register_forward_hook(lambda *_: seen.append("ran"))
    pop = population(model)
    pop(numbers(1, 5), all_individuals=True)
    assert seen == ["ran"]


def test_a_base_layer_of_a_subclass_that_computes_like_a_linear_is_routed_or_tiled():
    class Named(nn.Linear):
        pass

    model = nn.Sequential(Named(100, 90), nn.Tanh(), Named(90, 2))
    pop = population(model, lora_targets=["2"])
    x, ids = numbers(70, 100), torch.arange(70) % 4
    assert torch.equal(pop.routed(x, ids)[:1], pop.routed(x[:1], ids[:1]))
    merged = pop.merge_(0)
    assert [type(layer) for layer in merged] == [Named, nn.Tanh, Named]
    assert not any("forward" in layer.__dict__ for layer in merged.modules())
