import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Text, Tuple

from populora_envs.action_map import ActionMap
from populora_envs.direct_head import DirectHead

nested = Dict({"turn": Discrete(3), "push": Tuple((Box(-1, 1, (2,)), MultiBinary(2)))})
DIRECT = [
    (Discrete(3, start=5), [0.1, 0.7, 0.2], 1),
    (MultiDiscrete([2, 3]), [0.1, 0.7, 3, 1, 2], [1, 0]),
    (MultiDiscrete([[2, 1], [2, 3]]), [0, 1, 9, 1, 0, 0, 0, 1], [[1, 0], [0, 2]]),
    (MultiBinary([2, 2]), [1, -1, 0, 0.5], [[1, 0], [0, 1]]),
    (Box(-4, 4, (2, 1)), [0.5, -3], [[0.5], [-3.0]]),
    (Box(-4, 4, ()), [0.5], 0.5),
]


@pytest.mark.parametrize(("space", "output", "expected"), DIRECT, ids=lambda case: str(case))
def test_an_action_is_read_off_the_output(space, output, expected):
    head = DirectHead(space)
    batch = torch.tensor([output, output], dtype=torch.float32)
    assert head.output_size(space) == head.size == len(output)
    assert head(batch).tolist() == [expected, expected]
    assert head(batch, torch.tensor([[1], [2]])).tolist() == head.mean(batch).tolist()
    assert head(batch[0]).tolist() == expected
    assert head.range == ((-1.0, 1.0) if isinstance(space, Box) else None)
    assert head.sample is False


def test_a_nested_action_is_read_in_the_order_of_the_space():
    head = DirectHead(nested)
    assert list(nested.spaces) == ["push", "turn"]
    assert head.size == 2 + 2 + 3
    action = head(torch.tensor([[0.5, -0.5, 1.0, -1.0, 0.0, 0.0, 2.0]]))
    assert list(action) == ["push", "turn"]
    assert action["push"][0].tolist() == [[0.5, -0.5]]
    assert action["push"][1].tolist() == [[1, 0]]
    assert action["turn"].tolist() == [2]
    assert head.range == (-1.0, 1.0)


def test_a_wrong_output_size_is_named():
    with pytest.raises(ValueError, match=r"gives 5 numbers per observation, Discrete\(2\) wants 2"):
        DirectHead(Discrete(2))(torch.zeros(3, 5))


def test_a_space_that_cannot_be_read_is_refused():
    with pytest.raises(ValueError, match="no action can be read for the space Text"):
        DirectHead(Tuple((Discrete(2), Text(3))))


def test_a_direct_head_and_its_map_fit():
    head, action_map = DirectHead(nested), ActionMap(nested, DirectHead(nested).range)
    actions, finite = action_map.map(head(torch.linspace(-1, 1, 42).reshape(6, 7)))
    assert finite.all()
    assert actions["push"][0].shape == (6, 2)
    assert actions["turn"].dtype == np.int64
