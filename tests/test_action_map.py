import cloudpickle
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Text, Tuple
from hypothesis import given, settings
from hypothesis import strategies as st

from populora_envs.action_map import ActionMap
from populora_envs.slot_actions import slot_action


def mapped(space, actions, **options):
    result, finite = ActionMap(space, **options).map(actions)
    assert finite.dtype == np.bool_
    assert finite.all()
    return result


# Indices


@pytest.mark.parametrize("actions", [[0, 2], [[0], [2]], [0.0, 2.0], np.uint8([0, 2])])
def test_start_is_added_to_an_index(actions):
    """D-14: a space with a start got 0..n-1."""
    result = mapped(Discrete(3, start=-1), actions)
    assert result.tolist() == [-1, 1]
    assert result.dtype == np.int64
    assert result.shape == (2,)


def test_a_tensor_of_indices_is_mapped():
    assert mapped(Discrete(3), torch.tensor([2, 0])).tolist() == [2, 0]
    assert mapped(Discrete(2), torch.tensor([True, False])).tolist() == [1, 0]
    assert mapped(Discrete(3), [torch.tensor(2), torch.tensor(0)]).tolist() == [2, 0]


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        ([0, 3], r"row 1 of the actions has 3, Discrete\(3, start=5\) takes a whole number from 0"),
        ([-1, 0], "row 0 of the actions has -1.* from 0 to 2: .*start=5 is added"),
        ([0.0, 1.5], "row 1 of the actions has 1.5"),
        ([0.0, 1e30], "row 1 of the actions has 1e"),
        (np.uint64([2**64 - 1]), "row 0 of the actions has -1"),
    ],
)
def test_an_index_that_is_no_choice_is_named(actions, message):
    with pytest.raises(ValueError, match=message):
        ActionMap(Discrete(3, start=5)).map(actions)


def test_the_factor_of_a_wrong_index_is_named():
    with pytest.raises(ValueError, match=r"row 1 of the actions has 2 at factor \[0\].* 0 to 1"):
        ActionMap(MultiDiscrete([2, 3])).map([[0, 2], [2, 0]])


def test_an_index_that_is_not_finite_is_the_first_and_counted():
    actions, finite = ActionMap(Discrete(3, start=1)).map(torch.tensor([2.0, torch.nan]))
    assert actions.tolist() == [3, 1]
    assert finite.tolist() == [True, False]


@pytest.mark.parametrize("shape", [(1, 2, 2), (1, 4)])
def test_multi_discrete_gets_its_shape_and_start(shape):
    space = MultiDiscrete([[2, 3], [4, 5]], start=[[0, 1], [0, 10]])
    result = mapped(space, torch.tensor([1, 2, 3, 4]).reshape(shape))
    assert result.tolist() == [[[1, 3], [3, 14]]]
    assert result.dtype == np.int64
    assert space.contains(result[0])


@pytest.mark.parametrize("shape", [(2, 3, 2), (2, 6)])
@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.float32])
def test_multi_binary_gets_its_shape(shape, dtype):
    """D-15: a MultiBinary of two dimensions was flat or a scalar."""
    space = MultiBinary([3, 2])
    bits = torch.tensor([[1, 0, 0, 1, 1, 1], [0, 0, 0, 0, 0, 1]], dtype=dtype)
    result = mapped(space, bits.reshape(shape))
    assert result.dtype == np.int8
    assert result.tolist() == [[[1, 0], [0, 1], [1, 1]], [[0, 0], [0, 0], [0, 1]]]
    assert space.contains(result[0])


def test_a_bit_is_zero_or_one():
    with pytest.raises(ValueError, match=r"has 2 at factor \[1\].* from 0 to 1"):
        ActionMap(MultiBinary(2)).map([[0, 2]])


# Boxes


def test_an_unbounded_box_passes_through():
    """D-10: bounds were invented and the action stretched to them."""
    space = Box(-np.inf, np.inf, (2,))
    assert mapped(space, torch.tensor([[0.5, -2.0]])).tolist() == [[0.5, -2.0]]
    assert mapped(space, [[0.5, 1.0]], to_range=(-3, 3)).tolist() == [[1.5, 3.0]]


def test_a_half_bounded_dimension_is_clipped_at_its_bound_alone():
    space = Box(np.float32([0.0, -1.0]), np.float32([np.inf, 4.0]))
    assert mapped(space, [[-2.0, 0.0], [700.0, 1.0]]).tolist() == [[0.0, 1.5], [700.0, 4.0]]


def test_a_whole_box_is_mapped_in_float64():
    """D-11: rescaling in the box's own dtype rounded the slope to 0."""
    result = mapped(Box(0, 10, (1,), np.int64), [[-1.0], [0.0], [1.0]])
    assert result.dtype == np.int64
    assert result.tolist() == [[0], [5], [10]]


def test_a_whole_box_rounds_before_it_casts():
    assert mapped(Box(0, 10, (1,), np.uint8), [[0.18], [0.22]]).tolist() == [[6], [6]]


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.int64])
def test_a_whole_box_without_bounds_never_overflows(dtype):
    info = np.iinfo(dtype)
    numbers = np.array([[-1e30], [3.0], [1e30]])
    result = mapped(Box(-np.inf, np.inf, (1,), dtype), numbers)
    assert result[:2, 0].tolist() == [info.min, 3]
    assert info.max - 2**11 < result[2, 0] <= info.max


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int64, np.uint64])
def test_a_whole_box_as_wide_as_its_dtype_never_overflows(dtype):
    info = np.iinfo(dtype)
    result = mapped(Box(info.min, info.max, (1,), dtype), [[-1.0], [1.0], [1.001]])
    assert result[0, 0] == info.min
    assert (result[1:] > info.max - 2**11 - 1).all()


def test_a_float64_box_gets_float64():
    """D-12: precision was lost on the way."""
    result = mapped(Box(-1, 1, (1,), np.float64), torch.tensor([[0.1]]))
    assert result.dtype == np.float64
    assert result.tolist() == [[np.float64(np.float32(0.1))]]
    assert mapped(Box(-1, 1, (1,), np.float64), np.array([[0.1]])).tolist() == [[0.1]]


@pytest.mark.parametrize(
    "space", [Box(0, 10, (1,)), Box(-1, 1, (1,)), Box(-1, 1, (1,), np.float64)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_output_of_the_policy_is_never_changed(space, dtype):
    """D-21: scaling in place changed the policy's output, which a function may return itself."""
    output = torch.tensor([[0.5], [-1.0]], dtype=dtype, requires_grad=True)
    before = output.detach().clone()
    result = mapped(space, output)
    result[:] = 7.0
    assert torch.equal(output, before)


@pytest.mark.parametrize("space", [Discrete(3), MultiDiscrete([3]), MultiBinary(1)])
def test_indices_of_the_policy_are_never_changed(space):
    indices = np.array([1, 0], np.int64)
    mapped(space, indices)[:] = 0
    assert indices.tolist() == [1, 0]


def test_each_dimension_has_its_own_range():
    space = Box(np.float32([0, -10]), np.float32([1, 10]))
    assert mapped(space, [[0.0, 0.5]]).tolist() == [[0.5, 5.0]]
    options = {"from_range": ([0, 0], [1, 2]), "to_range": ([0, -1], [0.5, 1])}
    assert mapped(space, [[1.0, 1.0]], **options).tolist() == [[0.5, 0.0]]
    assert mapped(space, [[0.0, 0.5]], to_range=Box(0, 1, (2,))).tolist() == [[0.5, 0.75]]


def test_the_range_of_the_head_wins():
    space = Box(0, 10, (1,))
    assert mapped(space, [[0.5]], head_range=(0.0, 1.0), from_range=(-1, 1)).tolist() == [[5.0]]
    assert mapped(space, [[0.5]], head_range=(0.0, 1.0), from_range=None).tolist() == [[5.0]]
    assert mapped(space, [[0.5]], from_range=(0.0, 1.0)).tolist() == [[5.0]]


def test_units_of_the_simulator_are_only_clipped():
    space = Box(0, 10, (1,))
    assert mapped(space, [[0.5], [12.0], [-3.0]], from_range=None).tolist() == [[0.5], [10], [0]]


def test_an_output_outside_its_range_warns_once():
    action_map = ActionMap(Tuple((Box(0, 10, (1,)), Box(-1, 1, (2,)))))
    action_map.map(([[1.019]], [[1.0, -1.019]]))
    with pytest.warns(
        UserWarning, match=r"gives 1.5 for Box.*from_range \(-1.0, 1.0\) by.*clipped.*tanh"
    ):
        actions, finite = action_map.map(([[1.5]], [[1.0, -9.0]]))
    assert actions[0].tolist() == [[10.0]]
    assert actions[1].tolist() == [[1.0, -1.0]]
    assert finite.all()
    action_map.map(([[1.5]], [[1.0, -9.0]]))


def test_a_narrow_to_range_extrapolates_up_to_the_bounds():
    action_map = ActionMap(Box(-10, 10, (1,)), to_range=(0, 4))
    with pytest.warns(UserWarning, match="outside its from_range"):
        assert action_map.map([[1.5], [9.0]])[0].tolist() == [[5.0], [10.0]]


def test_numbers_that_are_not_finite_become_the_middle():
    space = Box(np.float32([0, -np.inf, 2]), np.float32([10, np.inf, np.inf]))
    numbers = torch.full((1, 3), torch.nan)
    for bad in (torch.nan, torch.inf, -torch.inf):
        numbers = torch.tensor([[0.0, 1.0, 3.0], [bad, bad, bad], [bad, 1.0, 3.0]])
        actions, finite = ActionMap(space).map(numbers)
        assert actions.tolist() == [[5.0, 1.0, 3.0], [5.0, 0.0, 2.0], [5.0, 1.0, 3.0]]
        assert finite.tolist() == [True, False, False]
        raw, _ = ActionMap(space, from_range=None).map(numbers)
        assert raw.tolist() == [[0.0, 1.0, 3.0], [5.0, 0.0, 2.0], [5.0, 1.0, 3.0]]
    narrow, _ = ActionMap(Box(-10, 10, (1,)), to_range=(0, 4)).map([[np.nan]])
    assert narrow.tolist() == [[2.0]]


def test_numbers_beyond_the_dtype_stay_finite():
    result = mapped(Box(-np.inf, np.inf, (1,)), np.array([[1e300]]))
    assert result.dtype == np.float32
    assert np.isfinite(result).all()
    with pytest.warns(UserWarning, match="outside its from_range"):
        actions, _ = ActionMap(Box(0, 10, (1,))).map(np.array([[1.7e308]]))
    assert actions.tolist() == [[10.0]]


@pytest.mark.parametrize(("low", "high"), [(-11, 4), (4, 11), (-11, 11)])
def test_a_target_outside_the_bounds_is_refused(low, high):
    with pytest.raises(ValueError, match=rf"to_range \[{low}, {high}\] leaves the bounds of Box"):
        ActionMap(Box(-10, 10, (1,)), to_range=(low, high))


def test_a_target_at_a_rounded_bound_is_within():
    """The float32 of 0.7 is a little less than 0.7."""
    assert mapped(Box(-0.7, 0.7, (1,)), [[1.0]], to_range=(-0.7, 0.7)).tolist() == [
        [np.float32(0.7)]
    ]


def test_a_target_needs_a_range_to_map_from():
    with pytest.raises(ValueError, match="to_range needs a from_range"):
        ActionMap(Box(-10, 10, (1,)), from_range=None, to_range=(0, 1))


@pytest.mark.parametrize(
    "options",
    [{"from_range": ([0, 0, 0], [1, 1, 1])}, {"to_range": ([0, 0, 0], [1, 1, 1])}],
)
def test_a_range_of_another_shape_is_refused(options):
    with pytest.raises(ValueError, match=r"\(3,\)"):
        ActionMap(Box(-10, 10, (2,)), **options)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([np.float32, np.float64, np.int32]),
    st.tuples(st.integers(-1000, 1000), st.integers(1, 1000)),
    st.lists(st.floats(-1, 1), min_size=1, max_size=9),
)
def test_what_a_box_gets_is_inside_monotone_and_reaches_both_ends(dtype, span, places):
    low, high = span[0], span[0] + span[1]
    space = Box(low, high, (1,), dtype)
    numbers = np.sort([-1.0, *places, 1.0])
    result = mapped(space, numbers)
    assert all(space.contains(row) for row in result)
    assert (np.diff(result[:, 0]) >= 0).all()
    assert result[0, 0] == low
    assert result[-1, 0] == high


# Shapes


@pytest.mark.parametrize(
    ("space", "given", "expected"),
    [
        (Box(-1, 1, (1,)), (4,), (4, 1)),
        (Box(-1, 1, ()), (4,), (4,)),
        (Box(-1, 1, ()), (4, 1), (4,)),
        (Box(-1, 1, (1, 1)), (4,), (4, 1, 1)),
        (Box(-1, 1, (2, 3)), (4, 6), (4, 2, 3)),
        (Box(-1, 1, (2, 3)), (4, 2, 3), (4, 2, 3)),
        (Box(-1, 1, (2,)), (0, 2), (0, 2)),
        (Discrete(2), (4, 1), (4,)),
        (Discrete(2), (0,), (0,)),
        (MultiDiscrete([2]), (4,), (4, 1)),
        (MultiBinary(1), (4,), (4, 1)),
    ],
)
def test_a_shape_that_fits_is_reshaped(space, given, expected):
    for zeros in (torch.zeros(given), np.zeros(given), torch.zeros(given, dtype=torch.bfloat16)):
        assert mapped(space, zeros).shape == expected


@pytest.mark.parametrize(
    ("space", "given", "wanted"),
    [
        (Box(-1, 1, (2,)), (4,), r"\[4\], Box.* takes \[B, 2\]"),
        (Box(-1, 1, (2,)), (4, 3), r"\[4, 3\], Box.* takes \[B, 2\]"),
        (Box(-1, 1, (2, 3)), (4, 3, 2), r"\[4, 3, 2\], Box.* takes \[B, 2, 3\]"),
        (Discrete(3), (4, 3), r"\[4, 3\], Discrete\(3\) takes \[B\]"),
        (Discrete(3), (), r"\[\], Discrete\(3\) takes \[B\]"),
        (MultiDiscrete([3, 3]), (4,), r"\[4\], MultiDiscrete.* takes \[B, 2\]"),
        (MultiBinary([3, 2]), (4, 5), r"\[4, 5\], MultiBinary.* takes \[B, 3, 2\]"),
    ],
)
def test_a_wrong_shape_names_both(space, given, wanted):
    with pytest.raises(ValueError, match=f"the actions have shape {wanted}"):
        ActionMap(space).map(torch.zeros(given))


def test_a_wrong_number_of_rows_is_named():
    assert len(ActionMap(Discrete(2)).map([0, 1], num_rows=2)[0]) == 2
    with pytest.raises(ValueError, match="gives 2 actions for 3 observations"):
        ActionMap(Discrete(2)).map([0, 1], num_rows=3)


@pytest.mark.parametrize("actions", [None, "left", [[1], [2, 3]], [None, 1], {"a": 1}])
@pytest.mark.parametrize("space", [Discrete(3), Box(-1, 1, (1,))])
def test_what_holds_no_numbers_is_refused(space, actions):
    with pytest.raises(ValueError, match="the action for"):
        ActionMap(space).map(actions)


def test_an_unknown_space_is_refused():
    with pytest.raises(ValueError, match=r"actions of the space Text.* are not supported"):
        ActionMap(Text(3))


# Nested spaces

pair = Tuple((Discrete(3), Tuple((Box(-1, 1, (1,)), Box(0, 4, (1,))))))


def test_a_nested_tuple_reaches_each_slot():
    """D-16: nested action spaces failed in shape code or lost entries."""
    zeros = torch.zeros(2, 1)
    result = mapped(pair, (torch.tensor([2, 0]), (zeros, zeros)))
    action = slot_action(pair, result, 0)
    assert pair.contains(action)
    assert action[0] == 2
    assert [part.tolist() for part in action[1]] == [[0.0], [2.0]]


def test_a_dict_is_mapped_in_the_order_of_the_space():
    space = Dict({"b": Discrete(2, start=1), "a": Box(0, 10, (1,))})
    actions, finite = ActionMap(space).map({"b": [0, 1], "a": [0.0, np.nan]})
    assert list(actions) == list(space.spaces)
    assert actions["b"].tolist() == [1, 2]
    assert actions["a"].tolist() == [[5.0], [5.0]]
    assert finite.tolist() == [True, False]


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        (torch.zeros(2, 3), "the action is a Tensor, Tuple.* takes a tuple with the parts"),
        ((torch.zeros(2),), r"the action is a tuple with \[0\]"),
        ({"a": 1}, "the action is a dict"),
        ((torch.zeros(2), (torch.zeros(2), torch.zeros(3))), r"the parts have \[2, 3\] rows"),
    ],
)
def test_a_wrong_nesting_is_named(actions, message):
    with pytest.raises(ValueError, match=message):
        ActionMap(pair).map(actions)


def test_a_dict_with_wrong_keys_is_named():
    with pytest.raises(
        ValueError, match=r"a dict with \['b'\].* takes a dict with the keys \['a'\]"
    ):
        ActionMap(Dict({"a": Discrete(2)})).map({"b": [1]})


def test_a_map_travels_to_a_worker():
    action_map = cloudpickle.loads(cloudpickle.dumps(ActionMap(pair, head_range=(0.0, 1.0))))
    actions, _ = action_map.map(([1], ([0.5], [0.5])))
    assert actions[1][1].tolist() == [[2.0]]
