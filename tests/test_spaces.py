import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv
from torch import nn

from populora_envs import interact_with_env
from populora_envs.spaces import (
    Encoder,
    OrderedDictSpace,
    check_same,
    is_image,
    leaves,
    rebuild,
    to_numpy,
)
from populora_envs.stacks import Stack
from tests.clock import MODES, Clock

CPU = torch.device("cpu")
box = spaces.Box(-np.inf, np.inf, (2,), np.float32)
grid = spaces.Box(0, 255, (2, 2, 3), np.uint8)
picture = np.arange(12, dtype=np.uint8).reshape(2, 2, 3) + 243
deep = spaces.Dict(
    b=spaces.Tuple((spaces.Discrete(3, start=1), spaces.MultiBinary(2))),
    a=spaces.Dict(y=box, x=spaces.Box(0, 9, (), np.float64)),
)
deep_value = {"b": (2, np.int8([1, 0])), "a": {"y": np.float32([7, 8]), "x": np.float64(5)}}

# space, one observation, what it is as one vector
CASES = [
    (box, np.float32([1, -2]), [1, -2]),
    (spaces.Box(0, 9, (), np.float64), np.float64(3), [3]),
    (spaces.Box(0, 9, (), np.float32), 3.0, [3]),
    (spaces.Box(0, 9, (2, 2), np.float64), np.array([[1.0, 2], [3, 4]]), [1, 2, 3, 4]),
    (spaces.Box(0, 9, (2,), np.int16), np.int16([3, 4]), [3, 4]),
    (spaces.Box(0, 255, (3,), np.uint8), np.uint8([0, 128, 255]), [0, 128, 255]),
    (spaces.Discrete(3), 2, [0, 0, 1]),
    (spaces.Discrete(3), np.int64(0), [1, 0, 0]),
    (spaces.Discrete(3, start=-1), -1, [1, 0, 0]),
    (spaces.Discrete(3, start=5), np.array(7), [0, 0, 1]),
    (spaces.MultiDiscrete([2, 3]), np.array([1, 1]), [0, 1, 0, 1, 0]),
    (spaces.MultiDiscrete([2, 3], start=[5, -1]), np.array([6, -1]), [0, 1, 1, 0, 0]),
    (
        spaces.MultiDiscrete([[2, 1], [1, 2]]),
        np.array([[1, 0], [0, 0]]),
        [0, 1, 1, 1, 1, 0],
    ),
    (spaces.MultiBinary(3), np.int8([1, 0, 1]), [1, 0, 1]),
    (spaces.MultiBinary([2, 2]), np.int8([[1, 0], [0, 1]]), [1, 0, 0, 1]),
    (spaces.Tuple((spaces.Discrete(2), box)), (1, np.float32([3, 4])), [0, 1, 3, 4]),
    (spaces.Dict(b=box, a=spaces.Discrete(2)), {"b": np.float32([3, 4]), "a": 0}, [1, 0, 3, 4]),
    (deep, deep_value, [5, 7, 8, 0, 1, 0, 1, 0]),
    (
        spaces.Tuple((grid, spaces.Discrete(2))),
        (picture, 1),
        [*range(243, 255), 0, 1],
    ),
]
ids = [str(case[0])[:60] for case in CASES]


class Shows(Clock):
    """Always the same observation."""

    def __init__(self, space, value):
        super().__init__()
        self.observation_space, self.value = space, value

    def shown(self):
        return self.value


class Plain(nn.Module):
    """Gives zeros, and keeps what it was given."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(1, 2)
        self.seen = []

    def forward(self, batch):
        self.seen.append(batch)
        first = batch
        while not isinstance(first, torch.Tensor):
            first = next(iter(first.values())) if isinstance(first, dict) else first[0]
        return self.layer(torch.zeros(len(first), 1))


def seen_by_a_model(envs, **settings):
    """What the model is given of two slots at the second step."""
    with interact_with_env(envs, **settings) as interactor:
        model = Plain()
        population = interactor.population(model, pop_size=2, low_rank=1)
        population.model.seen = seen = []
        assert interactor.evaluate(population).tolist() == [6.0, 6.0]
    return seen[1]


# gymnasium's vector environments cast what is no array
@pytest.mark.filterwarnings("ignore:.*Casting input x to numpy array")
@pytest.mark.parametrize("kind", ["list", *MODES])
@pytest.mark.parametrize(("space", "value", "expected"), CASES, ids=ids)
def test_every_observation_is_one_vector(space, value, expected, kind):
    members = [Shows(space, value) for _ in range(2)]
    makers = [lambda member=member: member for member in members]
    envs = members if kind == "list" else SyncVectorEnv(makers, autoreset_mode=kind)
    seen = seen_by_a_model(envs)
    assert seen.dtype == torch.float32
    assert seen.tolist() == [expected, expected]


@pytest.mark.parametrize("kind", ["list", *MODES])
def test_nested_observations_stay_nested_where_they_should(kind):
    members = [Shows(deep, deep_value) for _ in range(2)]
    makers = [lambda member=member: member for member in members]
    envs = members if kind == "list" else SyncVectorEnv(makers, autoreset_mode=kind)
    seen = seen_by_a_model(envs, flatten=False)
    choice, binary = seen["b"]
    assert (choice.dtype, choice.tolist()) == (torch.int64, [2, 2])
    assert (binary.dtype, binary.tolist()) == (torch.int64, [[1, 0]] * 2)
    number, vector = seen["a"]["x"], seen["a"]["y"]
    assert (number.dtype, number.tolist()) == (torch.float32, [5.0, 5.0])
    assert (vector.dtype, vector.tolist()) == (torch.float32, [[7.0, 8.0]] * 2)


@pytest.mark.parametrize("flatten", [True, False])
@pytest.mark.parametrize("kind", ["list", *MODES])
def test_an_image_stays_an_image_of_0_to_255(kind, flatten):
    members = [Shows(grid, picture) for _ in range(2)]
    makers = [lambda member=member: member for member in members]
    envs = members if kind == "list" else SyncVectorEnv(makers, autoreset_mode=kind)
    seen = seen_by_a_model(envs, flatten=flatten)
    assert (seen.dtype, seen.shape) == (torch.float32, (2, 2, 2, 3))
    assert seen[1].flatten().tolist() == list(range(243, 255))


def test_an_images_mean_is_the_same_in_evaluation_and_in_the_merged_policy():
    class Mean(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(1, 1, bias=False)
            nn.init.ones_(self.layer.weight)

        def forward(self, batch):
            return self.layer(batch.flatten(1).mean(dim=1, keepdim=True))

    white = np.full((4, 4, 3), 255, np.uint8)
    env = Shows(spaces.Box(0, 255, (4, 4, 3), np.uint8), white)
    means = []

    def action(output):
        means.append(output.item())
        return torch.zeros(len(output), dtype=torch.int64)

    with interact_with_env(env) as interactor:
        population = interactor.population(Mean(), pop_size=1, low_rank=1, init="zero")
        interactor.evaluate(population, action)
        policy = interactor.policy(population.merge_(0), action)
    assert means == [255.0] * 3
    assert policy(white).item() == 255.0


# --- text

named = spaces.Dict(mission=spaces.Text(9), place=box)


@pytest.mark.parametrize("kind", ["list", *MODES])
@pytest.mark.parametrize("flatten", [True, False])
def test_text_is_left_out_with_a_warning(kind, flatten):
    members = [Shows(named, {"mission": "go", "place": np.float32([1, 2])}) for _ in range(2)]
    makers = [lambda member=member: member for member in members]
    envs = members if kind == "list" else SyncVectorEnv(makers, autoreset_mode=kind)
    with pytest.warns(UserWarning, match="text observations are left out: mission"):
        seen = seen_by_a_model(envs, flatten=flatten)
    seen = seen if flatten else seen["place"]
    assert seen.tolist() == [[1.0, 2.0]] * 2


@pytest.mark.parametrize("flatten", [True, False])
def test_what_holds_no_numbers_or_no_known_kind_is_an_error(flatten):
    with pytest.raises(ValueError, match="holds no numbers"):
        Encoder(spaces.Text(3), flatten=flatten)
    with pytest.raises(TypeError, match=r"Graph at \['g'\] are not supported"):
        Encoder(spaces.Dict(g=spaces.Graph(box, None)), flatten=flatten)


# --- the parts


def test_leaves_come_in_the_order_of_the_space():
    assert [leaf.path for leaf in leaves(deep)] == [("a", "x"), ("a", "y"), ("b", 0), ("b", 1)]
    assert [leaf.path for leaf in leaves(OrderedDictSpace(z=box, a=box))] == [("z",), ("a",)]
    assert [leaf.path for leaf in leaves(box)] == [()]


def test_rebuilding_undoes_the_leaves():
    numbers = {leaf.path: i for i, leaf in enumerate(leaves(deep))}
    assert rebuild(deep, numbers) == {"a": {"x": 0, "y": 1}, "b": (2, 3)}


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        (grid, True),
        (spaces.Box(0, 255, (4,), np.uint8), False),
        (spaces.Box(0, 1, (2, 2, 3), np.float32), False),
        (spaces.MultiBinary([2, 2]), False),
    ],
    ids=str,
)
def test_an_image_is_bytes_in_two_dimensions_or_more(space, expected):
    assert is_image(space) is expected


@pytest.mark.parametrize(
    "values",
    [torch.tensor([1.0, 2.0], requires_grad=True), [1.0, 2.0], np.float32([1, 2])],
    ids=repr,
)
def test_anything_becomes_an_array(values):
    assert to_numpy(values).tolist() == [1.0, 2.0]


def test_a_stack_is_written_one_at_a_time():
    stack = Stack(deep, 2)
    stack.write(1, deep_value)
    assert stack.value["a"]["y"].tolist() == [[0, 0], [7, 8]]
    assert stack.value["b"][0].tolist() == [1, 2]  # a row not written is one that the space holds


def test_a_tensor_that_knows_gradients_can_be_an_observation():
    stack = Stack(box, 1)
    stack.write(0, torch.tensor([1.0, 2.0], requires_grad=True))
    assert stack.value.tolist() == [[1.0, 2.0]]


def test_a_wrong_shape_names_its_place():
    with pytest.raises(ValueError, match=r"shape \(3,\) at \['a', 'y'\], its space says \(2,\)"):
        Stack(deep, 1).write(0, {**deep_value, "a": {"x": 0, "y": np.zeros(3)}})
    encoder = Encoder(box)
    with pytest.raises(ValueError, match=r"shape \(2,\) for 2 slots, its space says \(2,\) each"):
        encoder.write(np.zeros(2), encoder.allocate(2))


@pytest.mark.parametrize("value", [0, 4])
def test_a_discrete_observation_outside_its_space_is_an_error(value):
    encoder = Encoder(spaces.Tuple((spaces.Discrete(3, start=1), spaces.Discrete(3, start=1))))
    with pytest.raises(ValueError, match="starts at \\[1\\] with \\[3\\] choices"):
        encoder.encode((np.array([1]), np.array([value])), 1, CPU)


def test_one_hot_columns_are_cleared():
    encoder = Encoder(spaces.Discrete(3))
    buffer = encoder.allocate(1)
    for value in (0, 2):
        encoder.write(np.array([value]), buffer)
    assert encoder.batch(buffer, slice(None), CPU).tolist() == [[0.0, 0.0, 1.0]]


def test_batches_are_copies():
    encoder = Encoder(box)
    buffer = encoder.allocate(2)
    batch = encoder.batch(buffer, slice(None), CPU)
    encoder.write(np.ones((2, 2), np.float32), buffer)
    assert batch.tolist() == [[0.0, 0.0]] * 2


def test_the_batch_size_tells_one_observation_from_several():
    encoder = Encoder(deep)
    assert encoder.batch_size(deep_value) is None
    batch = {"b": (np.array([2, 2]), np.zeros((2, 2))), "a": {"x": np.zeros(2), "y": 0}}
    assert encoder.batch_size(batch) == 2


def test_different_spaces_name_both():
    check_same(box, box, 1, 0, "observation")
    with pytest.raises(ValueError, match=r"environment 1 has .*Discrete\(3\), environment 0 has"):
        check_same(spaces.Discrete(2), spaces.Discrete(3), 1, 0, "action")


def test_built_policies_take_vectors_only():
    env = Shows(grid, picture)
    with interact_with_env(env) as interactor, pytest.raises(ValueError, match="pass a model"):
        interactor.population(pop_size=2, low_rank=1)
