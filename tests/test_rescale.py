import math

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from populora_envs.rescale import Rescale, rescale_from_range_to_range

numbers = st.floats(-1e12, 1e12, allow_subnormal=False)


@st.composite
def ranges(draw):
    low, high = sorted((draw(numbers), draw(numbers)))
    assume(low < high)
    return low, high


@pytest.mark.parametrize(
    ("x", "expected"),
    [(-1.0, 0.0), (0.0, 5.0), (0.5, 7.5), (1.0, 10.0), (2.0, 15.0), (-3.0, -10.0)],
)
def test_a_range_is_mapped_onto_another_and_extrapolated(x, expected):
    assert Rescale((-1, 1), (0, 10))(np.array([x])).tolist() == [expected]
    assert Rescale((-1, 1), (0, 10))(torch.tensor([x]).double()).tolist() == [expected]


@settings(max_examples=200, deadline=None)
@given(ranges(), ranges())
def test_both_ends_are_hit_exactly(source, target):
    rescale = Rescale(source, target)
    assert tuple(rescale(np.array(source))) == target
    assert tuple(rescale(torch.tensor(source, dtype=torch.float64)).tolist()) == target


@settings(max_examples=200, deadline=None)
@given(ranges(), ranges(), st.lists(st.floats(-0.5, 1.5), min_size=2, max_size=20))
def test_the_map_is_monotone_and_stays_within(source, target, places):
    low, high = source
    x = np.sort(np.array([low, high, *(low + place * (high - low) for place in places)]))
    for mapped in (Rescale(source, target)(x), Rescale(source, target)(torch.tensor(x)).numpy()):
        assert (np.diff(mapped) >= 0).all()
        within = mapped[(x >= low) & (x <= high)]
        assert within.min() == target[0]
        assert within.max() == target[1]


@settings(max_examples=100, deadline=None)
@given(ranges(), ranges(), st.lists(numbers, min_size=1, max_size=5))
def test_arrays_and_tensors_agree(source, target, x):
    array = np.array(x)
    by_tensor = Rescale(source, target)(torch.tensor(array)).numpy()
    np.testing.assert_array_equal(Rescale(source, target)(array), by_tensor)


def test_an_upper_end_that_rounding_would_miss_is_hit():
    target = (-1.0, 1e-17)
    assert target[0] + (target[1] - target[0]) != target[1]
    assert Rescale((-1, 1), target)(np.array([-1.0, 1.0])).tolist() == [-1.0, 1e-17]


def test_each_dimension_has_its_own_bounds():
    rescale = Rescale((-1, 1), (np.array([0.0, -2.0]), np.array([10.0, 2.0])))
    assert rescale.shape == (2,)
    assert rescale(np.array([[[0.0, 0.5]], [[1.0, -1.0]]])).tolist() == [[[5, 1]], [[10, -2]]]


@pytest.mark.parametrize("infinite", [(-np.inf, np.inf), (0.0, np.inf), (-np.inf, 0.0)])
def test_a_dimension_with_an_infinite_bound_passes_through(infinite):
    low, high = infinite
    for ends in (((-1, 1), ([0, low], [10, high])), (([0, low], [10, high]), (-1, 1))):
        rescale = Rescale(*ends)
        x = np.array([[0.0, -7.0], [0.0, 1e30]])
        assert rescale.bounded.tolist() == [True, False]
        assert rescale(x)[:, 1].tolist() == [-7.0, 1e30]
        assert rescale(torch.tensor(x))[:, 1].tolist() == [-7.0, 1e30]
    assert Rescale((-1, 1), infinite).is_identity


def test_a_span_that_overflows_counts_as_infinite():
    largest = np.finfo(np.float64).max
    assert Rescale((-1, 1), (-largest, largest))(np.array([0.3])).tolist() == [0.3]


def test_equal_ranges_give_back_the_same_object():
    x = np.array([0.1, 5.0])
    assert Rescale((-2, 2), Box(-2, 2, (2,)))(x) is x


def test_a_dimension_with_equal_ranges_is_not_rounded():
    rescale = Rescale((-1, 1), ([-1, 0], [1, 10]))
    assert rescale(np.array([0.1, 0.0])).tolist() == [0.1, 5.0]


def test_a_box_stands_for_its_bounds():
    box = Box(np.array([0.0, -1.0]), np.array([1.0, 1.0]), dtype=np.float64)
    assert Rescale(box, (0, 4))(np.array([0.5, 0.0])).tolist() == [2.0, 2.0]
    assert Rescale((0, 1), Box(3.0, 3.0, (1,)))(np.array([0.2])).tolist() == [3.0]


@pytest.mark.parametrize("name", ["from_range", "to_range"])
@pytest.mark.parametrize(
    "wrong", [(1, -1), (2, 2), (math.nan, 1), (0, math.nan), (math.inf, math.inf), ([0, 3], [1, 2])]
)
def test_a_range_out_of_order_is_refused(name, wrong):
    with pytest.raises(ValueError, match=f"{name} needs low < high"):
        Rescale(**{"from_range": (-1, 1), "to_range": (-1, 1), name: wrong})


def test_the_message_names_the_bounds_out_of_order():
    with pytest.raises(ValueError, match="low 3 and high 2"):
        Rescale((-1, 1), ([0, 3], [1, 2]))


@pytest.mark.parametrize("wrong", [5, (1, 2, 3), None])
def test_a_range_that_is_no_pair_is_refused(wrong):
    with pytest.raises(ValueError, match=r"to_range is a pair \(low, high\)"):
        Rescale((-1, 1), wrong)


def test_ranges_of_different_shapes_are_refused():
    with pytest.raises(ValueError, match=r"shapes \(2,\), \(3,\)"):
        Rescale(([0, 0], [1, 1]), ([0, 0, 0], [1, 1, 1]))
    with pytest.raises(ValueError, match=r"shape \(3,\), which does not fit values of \(2,\)"):
        rescale_from_range_to_range(np.zeros(2), (0, 1), (np.zeros(3), np.ones(3)))
    with pytest.raises(ValueError, match=r"shape \(1,\), which does not fit values of \(\)"):
        rescale_from_range_to_range(0.5, (0, 1), (np.zeros(1), np.ones(1)))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_an_array_keeps_its_floating_dtype(dtype):
    x = np.array([-1.0, 0.5], dtype)
    mapped = rescale_from_range_to_range(x, (-1, 1), (0, 10))
    assert type(mapped) is np.ndarray
    assert mapped.dtype == dtype
    assert mapped.tolist() == [0.0, 7.5]
    assert x.tolist() == [-1.0, 0.5]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_tensor_keeps_its_floating_dtype(dtype):
    x = torch.tensor([-1.0, 0.5], dtype=dtype)
    mapped = rescale_from_range_to_range(x, (-1, 1), (0, 10))
    assert mapped.dtype == dtype
    assert mapped.tolist() == [0.0, 7.5]
    assert x.tolist() == [-1.0, 0.5]


def test_whole_numbers_become_floating():
    assert rescale_from_range_to_range(np.array([1, 2]), (0, 4), (0, 1)).tolist() == [0.25, 0.5]
    mapped = rescale_from_range_to_range(torch.tensor([1, 2]), (0, 4), (0, 1))
    assert mapped.dtype == torch.get_default_dtype()
    assert mapped.tolist() == [0.25, 0.5]


@pytest.mark.parametrize(
    ("x", "kind"),
    [(1, float), (1.0, float), (np.float32(1), np.float32), (np.int64(1), np.float64)],
)
def test_a_number_stays_a_number(x, kind):
    mapped = rescale_from_range_to_range(x, (0, 4), (0, 1))
    assert type(mapped) is kind
    assert mapped == 0.25


def test_it_is_computed_in_float64():
    """In float32 the span of [16777216, 16777217] would be 0."""
    mapped = rescale_from_range_to_range(np.float32([0.5]), (0, 1), (16777216, 16777218))
    assert mapped.tolist() == [np.float32(16777217)]


@pytest.mark.parametrize("target", [(-1, 1), (0, 10)])
@pytest.mark.parametrize("make", [np.array, torch.tensor])
def test_the_result_never_shares_memory_with_the_values(make, target):
    x = make([0.25, 0.5])
    rescale_from_range_to_range(x, (-1, 1), target)[:] = 9.0
    assert x.tolist() == [0.25, 0.5]


def test_gradients_flow_through_a_tensor():
    x = torch.tensor([0.5, 0.25], requires_grad=True)
    rescale_from_range_to_range(x, (-1, 1), ([0.0, -np.inf], [10.0, np.inf])).sum().backward()
    assert x.grad.tolist() == [5.0, 1.0]
