import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from populora_envs.slot_actions import make_picker, slot_action

nested = Tuple((Discrete(3), Dict({"b": Box(-1, 1, (2,)), "a": Tuple((MultiBinary(2),))})))
CASES = [
    (Discrete(3, start=-1), np.array([-1, 1]), np.int64(1)),
    (MultiDiscrete([3, 4]), np.array([[0, 1], [2, 3]]), np.array([2, 3])),
    (MultiBinary([1, 2]), np.array([[[0, 1]], [[1, 1]]], np.int8), np.array([[1, 1]], np.int8)),
    (Box(-1, 1, (2,)), np.float32([[0, 1], [0.5, -1]]), np.float32([0.5, -1])),
    (Box(-1, 1, ()), np.float32([0, 0.5]), np.array(0.5, np.float32)),
]


@pytest.mark.parametrize(("space", "actions", "expected"), CASES, ids=lambda case: str(case))
def test_a_row_is_what_the_simulator_takes(space, actions, expected):
    action = slot_action(space, actions, 1)
    assert type(action) is type(expected)
    assert action.dtype == expected.dtype
    np.testing.assert_array_equal(action, expected)
    assert space.contains(action)


def test_a_nested_row_keeps_the_nesting_and_the_order():
    part = {
        "b": np.float32([[0, 0], [0.5, -1]]),
        "a": (np.array([[0, 0], [1, 0]], np.int8),),
    }
    actions = (np.array([0, 2]), part)
    action = make_picker(nested)(actions, 1)
    assert nested.contains(action)
    assert type(action) is tuple
    assert action[0] == 2
    assert list(action[1]) == list(nested[1].spaces)
    assert action[1]["b"].tolist() == [0.5, -1]
    assert action[1]["a"][0].tolist() == [1, 0]


def test_a_picker_is_good_for_many_rows():
    picker = make_picker(Discrete(5))
    assert [int(picker(np.array([4, 0, 2]), row)) for row in range(3)] == [4, 0, 2]
