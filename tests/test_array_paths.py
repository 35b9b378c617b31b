"""Every short cut over arrays gives what the general path gives, and steps aside for the rest."""

from __future__ import annotations

import copy
import warnings

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Text, Tuple
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch import nn

from populora_envs.actor import Actor
from populora_envs.adapter import blamed
from populora_envs.box_map import BoxMap
from populora_envs.normalizer import Normalizer, Standardized
from populora_envs.simulators import find_adapter
from populora_envs.slot_actions import make_picker, make_splitter
from populora_envs.spaces import Encoder
from populora_envs.stacks import Stack
from tests.clock import Clock
from tests.populations import numbers, population

NAN, INF = float("nan"), float("inf")
# Squares of these are finite in float32.
modest = st.floats(-(2.0**50), 2.0**50, width=32)
any_float = st.one_of(
    modest, st.floats(-1.5, 1.5, width=32), st.sampled_from([NAN, INF, -INF, 1.0])
)


def outcome(function, *arguments):
    """What a call gives, raises and warns of, to be compared."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            given = function(*arguments)
        except Exception as error:
            given = f"{type(error).__name__}: {error}"
    return given, sorted(str(warning.message) for warning in caught)


def assert_same(one, other):
    """The same nesting, types, shapes, dtypes and numbers, NaN among them."""
    assert type(one) is type(other), (one, other)
    if isinstance(one, (tuple, list)):
        for first, second in zip(one, other, strict=True):
            assert_same(first, second)
    elif isinstance(one, dict):
        assert list(one) == list(other)
        assert_same(list(one.values()), list(other.values()))
    elif isinstance(one, (np.ndarray, np.generic)):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other, strict=True)
    else:
        assert one == other


# --- policies


@given(
    observation=hnp.arrays(np.float32, st.tuples(st.integers(0, 5), st.just(3)), elements=any_float)
)
def test_the_normaliser_gives_the_same_bits_on_arrays(observation):
    layer = Normalizer(3)
    layer.shift.copy_(torch.tensor([0.1, -3.0, 1e8]))
    layer.divisor.copy_(torch.tensor([1.0, 0.3, 1e-4]))
    before = observation.copy()
    on_array = layer.on_array(observation)
    assert_same(on_array, layer(torch.from_numpy(observation)).numpy())
    assert_same(observation, before)
    assert not np.shares_memory(on_array, observation)


def test_the_normaliser_sees_new_statistics_whoever_brings_them():
    layer, x = Normalizer(1), np.float32([[3.0]])
    layer.shift.fill_(1.0)
    assert layer.on_array(x).tolist() == [[2.0]]
    other = copy.deepcopy(layer)
    other.shift.zero_()
    assert (layer.on_array(x).tolist(), other.on_array(x).tolist()) == ([[2.0]], [[3.0]])
    layer.load_state_dict(other.state_dict())
    assert layer.on_array(x).tolist() == [[3.0]]
    assert layer.double().on_array(x).dtype == np.float64
    layer.shift = torch.tensor([2.0])
    assert layer.on_array(x).tolist() == [[1.0]]


def policy(activation, *, standardize=False):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 8), activation(), nn.Linear(8, 2))
    return population(Standardized(Normalizer(2), model) if standardize else model, 3)


@pytest.mark.parametrize("standardize", [False, True])
@pytest.mark.parametrize("activation", [nn.Tanh, nn.ReLU, nn.GELU])
def test_a_policy_gives_the_same_bits_for_arrays(activation, standardize):
    pop = policy(activation, standardize=standardize)
    x, ids = numbers(7, 2) * 5, torch.arange(7) % 3
    on_array = pop.routed(x.numpy(), ids)
    assert isinstance(on_array, np.ndarray)
    assert_same(on_array, pop.routed(x, ids).numpy())


@pytest.mark.filterwarnings("ignore:invalid value encountered")
@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_a_row_that_is_not_finite_is_alone_with_it(bad):
    pop = policy(nn.Identity)
    x, ids = numbers(5, 2), torch.tensor([0, 0, 1, 1, 1])
    whole = pop.routed(x.numpy(), ids)
    x[1, 0] = bad
    spoilt = pop.routed(x.numpy(), ids)
    assert not np.isfinite(spoilt[1]).all()
    assert_same(spoilt[[0, 2, 3, 4]], whole[[0, 2, 3, 4]])
    pop.model[0].register_forward_hook(lambda *_: None)  # so that layers are called one by one
    assert_same(spoilt, pop.routed(x, ids).numpy())


class OverTime(nn.Module):
    """Shows every moment of `[B, T, D]` to a policy for one moment."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x.reshape(-1, x.shape[-1])).reshape(*x.shape[:2], -1)


@pytest.mark.parametrize("activation", [nn.ReLU, nn.LeakyReLU])
def test_a_sequential_in_a_model_that_has_more_rows_than_slots(activation):
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Linear(2, 8), activation(), nn.Linear(8, 3))
    pop, x = population(OverTime(inner), 3), numbers(3, 5, 2)
    expected = torch.cat([pop.merge_(k)(x[k : k + 1]) for k in range(3)])
    torch.testing.assert_close(pop(x, all_individuals=True), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(pop.routed(x, torch.arange(3)), expected, rtol=1e-5, atol=1e-5)


# --- from outputs to actions

BOXES = {
    "bounded": Box(-2.0, 3.0, (2,), np.float32),
    "number": Box(-2.0, 3.0, (), np.float32),
    "matrix": Box(np.float32([[-2, 0]]), np.float32([[3, 0.7]])),
    "wide": Box(-0.1, 0.7, (2,), np.float64),
    "half bounded": Box(np.float32([0, -INF]), np.float32([INF, INF])),
    "unbounded": Box(-INF, INF, (2,), np.float64),
    "short": Box(-1.0, 1.0, (2,), np.float16),
    "bytes": Box(0, 255, (2,), np.uint8),
    "whole": Box(-(2**62), 2**62, (2,), np.int64),
}
SPACES = BOXES | {
    "discrete": Discrete(4),
    "from -2": Discrete(4, start=-2),
    "one choice": Discrete(1, start=7),
    "binary": MultiBinary(3),
    "factors": MultiDiscrete([2, 3], start=[1, 0]),
    "nested": Dict(a=Discrete(2), b=Box(-1.0, 1.0, (2,))),
}


def both_actors(space):
    """An actor, and one without its short cut."""
    fast, slow = (Actor(None, space, (-1.0, 1.0), None) for _ in range(2))
    slow._direct = None
    return fast, slow


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_outputs_become_the_same_actions_on_the_short_path(space, data):
    fast, slow = both_actors(space)
    count = data.draw(st.integers(1, 4))
    dtype = data.draw(st.sampled_from([np.float32, np.float64]))
    shape = (count, fast.output_size())
    output = data.draw(hnp.arrays(np.float32, shape, elements=any_float)).astype(dtype)
    output = np.asfortranarray(output) if data.draw(st.booleans()) else output
    expected = outcome(slow.act, torch.from_numpy(output), None, count)
    assert_same(outcome(fast.act, output, None, count), expected)
    fast, _ = both_actors(space)  # which has not warned yet
    tensor = torch.from_numpy(output).requires_grad_(dtype is np.float32)
    assert_same(outcome(fast.act, tensor, None, count), expected)


SHAPES = [(3, 5), (3, 1), (2, 2), (4, 4), (3, 1, 2), (3, 1, 4), (6,), (12,), ()]


@pytest.mark.parametrize("name", ["bounded", "matrix", "from -2"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_outputs_of_another_shape_are_treated_alike(name, shape):
    fast, slow = both_actors(SPACES[name])
    expected = outcome(slow.act, torch.zeros(shape), None, 3)
    assert_same(outcome(fast.act, np.zeros(shape, np.float32), None, 3), expected)
    assert_same(outcome(fast.act, torch.zeros(shape), None, 3), expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("name", ["wide", "from -2"])
def test_outputs_of_other_types_are_treated_alike(name, dtype):
    fast, slow = both_actors(SPACES[name])
    output = torch.tensor([[0, 1, 1, 0]])[:, : fast.output_size()].to(dtype)
    assert_same(outcome(fast.act, output, None, 1), outcome(slow.act, output, None, 1))


RANGES = [(-1.0, 1.0), (0.0, 5.0), (np.array([-1.0, 0.0]), np.array([1.0, 0.5])), None]
KINDS = [np.float32, np.float16, np.int8, np.uint8, np.int64, np.bool_]


@pytest.mark.parametrize("name", [name for name, box in BOXES.items() if box.shape == (2,)])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_numbers_for_a_box_are_mapped_as_float64_is(name, data):
    source, kind = data.draw(st.sampled_from(RANGES)), np.dtype(data.draw(st.sampled_from(KINDS)))
    near = st.floats(-2, 2, width=16) | st.sampled_from([NAN, INF, -INF])
    elements = near if kind.kind == "f" else st.integers(0, 1) | hnp.from_dtype(kind)
    shape = st.tuples(st.integers(0, 4), st.just(2))
    values = data.draw(hnp.arrays(kind, shape, elements=elements))

    def mapped(given):
        said = []
        return outcome(BoxMap(BOXES[name], source, None, said.append).map, given), said

    given = [values, torch.from_numpy(values), np.asfortranarray(values)]
    for thing in [*given, values.tolist()] if len(values) else given:
        assert_same(mapped(thing), mapped(values.astype(np.float64)))
    assert not np.shares_memory(mapped(values)[0][0][0], values)


@pytest.mark.parametrize("rows", [range(3), [0, 2], [2, 1], []], ids=str)
@pytest.mark.parametrize(
    "space", [*SPACES.values(), Tuple((Discrete(2), BOXES["number"]))], ids=str
)
def test_split_actions_are_those_picked_one_by_one(space, rows):
    batch = [space.sample() for _ in range(3)]
    actions = stacked(space, batch)
    picked = [make_picker(space)(actions, row) for row in rows]
    assert_same(list(make_splitter(space)(actions, rows)), picked)
    assert all(space.contains(action) for action in picked)


def stacked(space, batch):
    if isinstance(space, Dict):
        return {k: stacked(part, [b[k] for b in batch]) for k, part in space.spaces.items()}
    if isinstance(space, Tuple):
        parts = enumerate(space.spaces)
        return tuple(stacked(part, [b[i] for b in batch]) for i, part in parts)
    return np.array(batch, space.dtype)


# --- from environments to arrays

PAIR, NUMBER = Box(-INF, INF, (2,), np.float32), Box(-INF, INF, (), np.float64)
BYTE, CHOICE = Box(0, 255, (), np.uint8), Discrete(5, start=-1)
NESTED = Dict(b=Tuple((CHOICE, PAIR)), a=NUMBER, note=Text(5))
OBSERVATIONS = {
    "arrays": (PAIR, [np.float32([1, NAN]), np.float64([INF, 1e-50]), np.array([1, 2])]),
    "a tensor": (PAIR, [np.zeros(2), torch.ones(2), torch.ones(2, requires_grad=True)]),
    "lists": (PAIR, [[1.0, 2.0], (3, 4), np.ones(2)]),
    "a masked array": (PAIR, [np.ma.masked_array([1.0, 2.0], [0, 1]), np.ones(2), np.ones(2)]),
    "objects": (PAIR, [np.array([1, 2.5], object), np.ones(2), np.array(["1", "2"])]),
    "a wrong shape": (PAIR, [np.zeros(2), np.zeros(3), np.zeros(2)]),
    "a wrong shape for all": (PAIR, [np.zeros((1, 2))] * 3),
    "a scalar": (PAIR, [np.zeros(2), 1.0, np.zeros(2)]),
    "nothing": (PAIR, [np.zeros(2), None, np.zeros(2)]),
    "numbers": (NUMBER, [1, 2.5, True]),
    "numbers of numpy": (NUMBER, [np.float32(0.1), np.int16(3), np.array(2.0)]),
    "a one in brackets": (NUMBER, [1.0, np.ones(1), 2.0]),
    "ones in brackets": (NUMBER, [np.ones(1)] * 3),
    "choices": (CHOICE, [-1, np.int64(2), np.array(3)]),
    "true choices": (CHOICE, [True, np.True_, 2.7]),
    "a nan": (CHOICE, [0, NAN, 1]),
    "an infinite choice": (CHOICE, [0, INF, 1]),
    "a huge choice": (CHOICE, [0, 2**70, 1]),
    "too large": (BYTE, [1, 300, 2]),
    "too small": (BYTE, [np.int64(300), -1, 2]),
    "nested": (NESTED, [{"a": i, "b": (i, np.float32([i, 2])), "note": "x"} for i in range(3)]),
    "nested odd": (NESTED, [{"a": [1.0, True, 2][i], "b": [i, [i, 2]]} for i in range(3)]),
    "a nested wrong shape": (NESTED, [{"a": 1, "b": (i, np.zeros(1 + i))} for i in range(3)]),
}


def one_by_one(space, observations, rows):
    stack = Stack(space, 5 if isinstance(rows, list) else 3)
    for row, observation in zip(rows, observations, strict=True):
        stack.write(row, observation)
    return stack.value


def at_once(space, observations, rows):
    """What an adapter does."""
    stack = Stack(space, 5 if isinstance(rows, list) else 3)
    if not stack.fill(observations, rows):
        for row, observation in zip(rows, observations, strict=True):
            stack.write(row, observation)
    return stack.value


@pytest.mark.parametrize("rows", [range(3), [0, 1, 3], [4, 0, 2]], ids=str)
@pytest.mark.parametrize(("space", "given"), OBSERVATIONS.values(), ids=OBSERVATIONS)
def test_observations_written_at_once_are_those_written_one_by_one(space, given, rows):
    expected, _ = outcome(one_by_one, space, given, rows)
    assert_same(outcome(at_once, space, given, rows)[0], expected)


class Odd(Clock):
    """Gives what it is told to, at every step."""

    def __init__(self, space=PAIR, shown=(0.0, 0.0), reward=1.0, flags=(False, False)):
        super().__init__()
        self.observation_space, self.given = space, (shown, reward, *flags, {})

    def step(self, action):
        return self.given


@pytest.mark.parametrize("shown", [{"a": 1.0}, {}, None, 3], ids=str)
def test_an_observation_without_a_part_is_blamed_on_its_slot(shown):
    whole, space = {"a": 1.0, "b": 2.0}, Dict(a=NUMBER, b=NUMBER)
    adapter = find_adapter(Clock())([Odd(space, whole), Odd(space, shown), Odd(space, whole)])
    with pytest.raises((KeyError, TypeError)) as caught:
        adapter.step(np.zeros(3, np.int64))
    assert blamed(caught.value) == (1,)


FLOATS = [PAIR, NUMBER, Box(-1, 1, (2, 2), np.float64), Box(0, 9, (3,), np.float16)]


@pytest.mark.parametrize("flatten", [True, False])
@pytest.mark.parametrize("space", FLOATS, ids=str)
def test_batches_of_floats_are_encoded_as_on_the_general_path(space, flatten):
    fast, slow = Encoder(space, flatten=flatten), Encoder(space, flatten=flatten)
    slow._is_plain = False
    of = space.shape
    for shape in [(3, *of), (3, 4), (3, 1), (3,), (1, *of), (3, *of, 1)]:
        values = np.arange(np.prod(shape, dtype=int)).reshape(shape) * 0.1
        kinds = [values, values.astype(np.float32), values.astype(int), values > 0.1, values * NAN]
        for thing in [*kinds, torch.from_numpy(values), values.tolist(), values.T.copy().T]:
            assert_same(outcome(encoded, fast, thing), outcome(encoded, slow, thing))


def encoded(encoder, observation):
    buffer = encoder.allocate(3)
    encoder.write(observation, buffer)
    return buffer
