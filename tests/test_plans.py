"""Plans: which layers are materialised, who sits where, and products that no neighbour changes."""

from __future__ import annotations

import copy
import itertools
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from populora_envs.plans import ArrayChain, Route, TensorChain, materialises
from tests.populations import numbers, population

# --- which layers are materialised


@pytest.mark.parametrize(
    ("pop_size", "fan_in", "fan_out", "rank", "itemsize", "expected"),
    [
        # factors that hold as many numbers as the matrix, whoever acts
        (10**6, 128, 128, 64, 4, True),
        (10**6, 128, 128, 63, 4, False),
        (1, 128, 128, 63, 4, False),
        (10**6, 1, 7, 1, 8, True),
        (10**6, 2, 2, 1, 4, True),
        # a small layer, while everyone's matrices fit into the cache
        (8, 64, 64, 1, 4, True),
        (9, 64, 64, 1, 4, False),
        (4, 64, 64, 1, 8, True),
        (5, 64, 64, 1, 8, False),
        (16, 64, 64, 1, 2, True),
        (17, 64, 64, 1, 2, False),
        (1, 64, 65, 1, 4, False),
        (1, 1024, 4, 1, 4, True),
        (1, 1025, 4, 1, 4, False),
    ],
)
def test_the_cheaper_product_is_chosen(pop_size, fan_in, fan_out, rank, itemsize, expected):
    assert materialises(pop_size, fan_in, fan_out, rank, itemsize) is expected


# --- routes


def route_to(*ids, samples=1):
    route = Route()
    route.set(torch.tensor(ids), samples)
    return route


def test_a_route_begins_with_the_first_individual():
    route = Route()
    assert (route.count, route.samples, route.step, route.changed) == (1, 1, 0, None)
    assert route.ids.tolist() == [0]


def test_a_route_tells_which_groups_were_sent_elsewhere():
    route = route_to(0, 1, 2, 3)
    assert (route.count, route.step, route.changed) == (4, 1, None)
    route.set(torch.tensor([0, 3, 2, 1]))
    assert (route.step, route.changed.tolist()) == (2, [1, 3])
    route.set(torch.tensor([0, 3, 2, 1]))
    assert (route.step, route.changed.tolist()) == (3, [])
    route.set(torch.tensor([0, 3, 2]))
    assert (route.step, route.changed, route.count) == (4, None, 3)


def test_the_same_tensor_is_not_looked_at_again_unless_it_has_changed():
    ids = torch.tensor([0, 1])
    route = Route()
    for _ in range(3):
        route.set(ids)
    assert route.step == 1
    ids[1] = 5
    route.set(ids)
    assert (route.step, route.changed.tolist(), route.ids.tolist()) == (2, [1], [0, 5])


def test_a_route_keeps_its_own_copy_of_the_ids():
    ids = torch.tensor([0, 1])
    route = Route()
    route.set(ids)
    ids[0] = 7
    assert route.ids.tolist() == [0, 1]


@pytest.mark.parametrize("made_there", [False, True], ids=["made before", "made there"])
def test_ids_that_are_changed_in_place_in_inference_mode_are_seen(made_there):
    route, ids = Route(), torch.tensor([0, 1])
    with torch.inference_mode():
        ids = torch.tensor([0, 1]) if made_there else ids
        route.set(ids)
        ids[1] = 5
        route.set(ids)
    assert route.ids.tolist() == [0, 5]


def test_a_stamp_is_the_same_while_a_frozen_route_is():
    route = Route()
    stamps = [route.stamp]
    with route.frozen():
        stamps += [route.stamp, route.stamp]
        route.set(torch.tensor([0, 1]))
        stamps.append(route.stamp)
    with route.frozen():
        stamps.append(route.stamp)
    assert (stamps[0], route.stamp, stamps[1]) == (None, None, stamps[2])
    assert len(set(stamps)) == 4


def test_what_has_changed_between_rollouts_is_seen_in_every_step():
    pop = population(nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 1)))
    x, ids, heard = numbers(4, 2).numpy(), torch.arange(4), []
    for change in (
        lambda: None,
        lambda: pop.individuals["0"].up.add_(1.0),
        lambda: pop.model[0].register_forward_hook(lambda *_: heard.append(1)),
    ):
        change()
        with pop.routed.frozen():
            shown = [torch.as_tensor(pop.routed(x, ids)) for _ in range(3)]
        assert all(torch.equal(output, pop.model(torch.from_numpy(x))) for output in shown)
    assert len(heard) == 6


@pytest.mark.parametrize(
    ("samples", "rows", "expected"),
    [(1, 3, 1), (4, 3, 1), (4, 12, 4), (4, 24, 4), (4, 6, 1), (4, 0, 1), (1, 6, 1)],
)
def test_samples_are_told_by_the_number_of_rows(samples, rows, expected):
    assert route_to(0, 1, 2, samples=samples).samples_in(rows) == expected


def test_rows_that_cannot_be_shared_out_are_named():
    with pytest.raises(ValueError, match=r"met 4 rows for 3 groups: the first dimension must hold"):
        route_to(0, 1, 2).samples_in(4)


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda r: pickle.loads(pickle.dumps(r))])
def test_copies_of_a_route_begin_with_none(clone):
    assert clone(route_to(3, 4)).ids.tolist() == [0]


# --- gathering

SHAPES = [(3, 5), (17, 2), (2, 17), (8, 2)]


def links_of(*shapes, pop_size=6, dtype=torch.float32):
    return [numbers(pop_size, *shape, seed=i).to(dtype) for i, shape in enumerate(shapes)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_matrices_of_the_present_groups_are_gathered(shape):
    links = links_of(shape)
    (matrix,) = ArrayChain(links, route_to(4, 0, 4)).gather()
    assert matrix.flags.c_contiguous
    is_tall = shape[0] >= 4 * shape[1]
    expected = links[0][[4, 0, 4]].numpy()[:, None]
    assert np.array_equal(matrix, expected.swapaxes(2, 3) if is_tall else expected)


def test_matrices_that_are_views_are_gathered_contiguously_too():
    link = numbers(6, 5, 3).transpose(1, 2)
    route = route_to(1, 2)
    chain = ArrayChain([link], route)
    for ids in ([1, 2], [1, 5], [3, 4, 0]):
        route.set(torch.tensor(ids))
        (matrix,) = chain.gather()
        assert matrix.flags.c_contiguous
        assert np.array_equal(matrix[:, 0], link[ids].numpy())


def test_only_the_groups_that_have_changed_are_rewritten_in_place():
    links = links_of((3, 5), (9, 2))
    route = route_to(0, 1, 2, 3)
    chain = ArrayChain(links, route)
    gathered = chain.gather()
    arrays = list(gathered)
    for array in arrays:
        array[:] = np.nan
    route.set(torch.tensor([0, 4, 2, 5]))
    assert chain.gather() is gathered
    assert all(now is before for now, before in zip(gathered, arrays, strict=True))
    assert np.array_equal(arrays[0][[1, 3], 0], links[0][[4, 5]].numpy())
    assert np.array_equal(arrays[1][[1, 3], 0], links[1][[4, 5]].transpose(1, 2).numpy())
    assert all(np.isnan(array[[0, 2]]).all() for array in arrays)


def test_nothing_is_rewritten_for_the_same_groups():
    route = route_to(0, 1)
    chain = ArrayChain(links_of((3, 5)), route)
    gathered = chain.gather()
    gathered[0][:] = np.nan
    route.set(torch.tensor([0, 1]))
    assert chain.gather() is gathered
    assert np.isnan(gathered[0]).all()


@pytest.mark.parametrize("later", [[[1, 0], [1, 1]], [[0, 1, 2]], [[5, 5], [0, 1, 2], [0, 1]]])
def test_everything_is_gathered_anew_where_steps_were_missed_or_the_groups_are_others(later):
    links, route = links_of((3, 5)), route_to(0, 1)
    chain = ArrayChain(links, route)
    before = chain.gather()
    for ids in later:
        route.set(torch.tensor(ids))
    now = chain.gather()
    assert now is not before
    assert np.array_equal(now[0][:, 0], links[0][later[-1]].numpy())


def test_a_chain_that_is_made_later_gathers_everything():
    links, route = links_of((3, 5)), route_to(0, 1)
    route.set(torch.tensor([0, 2]))
    for late, ids in ((route, [0, 2]), (Route(), [0])):
        (matrix,) = ArrayChain(links, late).gather()
        assert np.array_equal(matrix[:, 0], links[0][ids].numpy())


@given(
    steps=st.lists(
        st.tuples(st.lists(st.integers(0, 5), min_size=1, max_size=4), st.booleans()), max_size=8
    )
)
def test_whatever_the_route_was_before_the_present_matrices_are_gathered(steps):
    links = links_of((3, 5), (5, 1))
    route = Route()
    arrays, tensors = ArrayChain(links, route), TensorChain(links, route)
    for ids, is_used in [*steps, ([2, 2, 0], True)]:
        route.set(torch.tensor(ids))
        if is_used:
            wide, tall = arrays.gather()
            assert np.array_equal(wide[:, 0], links[0][ids].numpy())
            assert np.array_equal(tall[:, 0], links[1][ids].transpose(1, 2).numpy())
            x = numbers(len(ids), 1, 1, 3)
            assert torch.equal(tensors(x), by_tensors(links, ids, x))


# --- products


def by_arrays(links, ids, x):
    """Multiply `[groups, samples, rows, in]` in NumPy."""
    chain, x = ArrayChain(links, route_to(*ids)), x.contiguous().numpy()
    output = np.full((*x.shape[:3], links[-1].shape[2]), np.nan, x.dtype)
    for function, operands in chain.operations(x, output):
        function(*operands)
    return torch.from_numpy(output)


def by_tensors(links, ids, x):
    return TensorChain(links, route_to(*ids))(x)


CHAINS = [by_arrays, by_tensors]
WIDTHS = [(3, 4), (1, 1), (8, 2), (2, 64), (64, 1, 64), (40, 3, 5), (17, 16, 33), (64, 64)]


@pytest.mark.parametrize("widths", WIDTHS, ids=str)
@pytest.mark.parametrize("multiply", CHAINS)
def test_every_sample_meets_the_matrices_of_its_individual(multiply, widths):
    links = links_of(*itertools.pairwise(widths), dtype=torch.float64)
    ids, x = [5, 0, 0, 3], numbers(4, 2, 3, widths[0]).double()
    expected = x
    for link in links:
        expected = torch.einsum("gsri,gio->gsro", expected, link[ids])
    torch.testing.assert_close(multiply(links, ids, x), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("widths", WIDTHS, ids=str)
@pytest.mark.parametrize("multiply", CHAINS)
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_no_split_of_the_groups_shows_in_the_last_bit(multiply, widths, dtype, data):
    links = links_of(*itertools.pairwise(widths), dtype=dtype)
    ids = data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=40))
    samples, rows = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 3))
    x = numbers(len(ids), samples, rows, widths[0], seed=1).to(dtype)
    whole = multiply(links, ids, x)
    order = data.draw(st.permutations(range(len(ids))))
    size = data.draw(st.integers(1, len(ids)))
    for part in (order[i : i + size] for i in range(0, len(order), size)):
        assert torch.equal(multiply(links, [ids[k] for k in part], x[part]), whole[part])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("widths", WIDTHS, ids=str)
@pytest.mark.parametrize("multiply", CHAINS)
def test_samples_of_one_group_equal_groups_of_their_own(multiply, widths, dtype):
    links = links_of(*itertools.pairwise(widths), dtype=dtype)
    for rows in (1, 2):
        x = numbers(3, 5, rows, widths[0]).to(dtype)
        each = multiply(links, [i for i in (4, 4, 1) for _ in range(5)], x.reshape(15, 1, rows, -1))
        assert torch.equal(multiply(links, [4, 4, 1], x).reshape(each.shape), each)


def test_what_was_written_down_follows_a_route_that_is_rewritten_in_place():
    links, route = links_of((3, 5), (5, 1)), route_to(0, 1, 2)
    chain = ArrayChain(links, route)
    x = numbers(3, 1, 1, 3)
    output = np.empty((3, 1, 1, 1), np.float32)
    operations = chain.operations(x.numpy(), output)
    for ids in ([0, 1, 2], [0, 5, 2], [3, 5, 3]):
        route.set(torch.tensor(ids))
        chain.gather()
        for function, operands in operations:
            function(*operands)
        assert torch.equal(torch.from_numpy(output), by_arrays(links, ids, x))


def test_gradients_flow_to_the_samples_and_not_to_the_matrices():
    links, x = links_of((3, 5)), numbers(2, 2, 1, 3).requires_grad_()
    by_tensors(links, [1, 2], x).sum().backward()
    expected = links[0][[1, 2]].sum(dim=2)[:, None, None].expand(2, 2, 1, 3)
    torch.testing.assert_close(x.grad, expected)
    assert links[0].grad is None


def test_what_was_gathered_in_inference_mode_serves_gradients_later():
    links, route = links_of((3, 5)), route_to(1, 2)
    chain, x = TensorChain(links, route), numbers(2, 1, 1, 3)
    with torch.inference_mode():
        chain(x)
    chain(x.requires_grad_()).sum().backward()
    assert torch.isfinite(x.grad).all()


# --- whole layers

LAYERS = {"materialised": (4, 6), "factored": (96, 80), "in torch": (130, 120)}


@pytest.mark.parametrize("shape", LAYERS.values(), ids=LAYERS)
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_no_split_of_the_rows_shows_in_the_last_bit_of_a_layer(shape, data):
    pop = population(nn.Linear(*shape), pop_size=7, low_rank=2)
    ids = torch.tensor(data.draw(st.lists(st.integers(0, 6), min_size=1, max_size=60)))
    x = numbers(len(ids), shape[0], seed=1)
    whole = pop.routed(x, ids)
    order = torch.tensor(data.draw(st.permutations(range(len(ids)))))
    for part in order.split(data.draw(st.integers(1, len(ids)))):
        assert torch.equal(pop.routed(x[part], ids[part]), whole[part])
