import copy
import math

import gymnasium
import numpy as np
import pytest
import torch
from dm_control import suite
from gymnasium import spaces
from torch import nn

from populora_envs import Policy, evolve_with_env, interact_with_env, make_action
from populora_envs.actor import Actor
from populora_envs.policy import build_model, plain_module
from populora_envs.spaces import Encoder
from tests.tiny import Aim, aim_discrete, linear, same

VECTOR = spaces.Box(-1.0, 1.0, (3,), np.float32)


def policy_for(action_space, model, action=None, *, observation_space=VECTOR, **ranges):
    settings = {"from_range": (-1.0, 1.0), "to_range": None, **ranges}
    return Policy(model, Encoder(observation_space), Actor(action, action_space, **settings))


def constant(*numbers):
    """A model that gives the same numbers for every observation."""
    layer = nn.Linear(3, len(numbers))
    with torch.no_grad():
        layer.weight.zero_()
        layer.bias.copy_(torch.tensor(numbers))
    return layer


# --- what act gives


def test_tanh_is_applied_once_and_then_rescaled():
    space = spaces.Box(0.0, 10.0, (1,), np.float32)
    policy = policy_for(space, constant(1.0, -20.0), "squashed_gaussian")
    action = policy.act(np.zeros(3, np.float32))
    assert action.shape == (1,)
    assert action.dtype == np.float32
    # five times 1 + tanh(1), not 1 + tanh(tanh(1))
    assert action[0] == pytest.approx(8.80797, abs=1e-5)


def test_the_mean_of_the_head_before_rescaling_is_tanh_of_the_mean():
    head = make_action("squashed_gaussian", sample=False)
    assert head(torch.tensor([1.0, -20.0])).item() == pytest.approx(0.761594, abs=1e-6)


def test_beta_on_zero_one_brings_its_own_range():
    space = spaces.Box(0.0, 10.0, (1,), np.float32)
    head = make_action("beta", beta_rescale_neg_one_one=False)
    policy = policy_for(space, constant(0.0, 0.0), head)
    assert policy.act(np.zeros(3, np.float32)).tolist() == pytest.approx([5.0])


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
@pytest.mark.parametrize("shape", [(), (2,), (2, 2)])
def test_box_action_has_the_range_dtype_and_shape_of_the_space(dtype, shape):
    space = spaces.Box(0, 10, shape, dtype)
    policy = policy_for(space, constant(*[0.5] * math.prod(shape)))
    one = policy.act(np.zeros(3, np.float32))
    many = policy.act(np.zeros((4, 3), np.float32))
    assert space.contains(one)
    assert one.dtype == dtype
    assert one.shape == shape
    assert many.shape == (4, *shape)
    assert many.dtype == dtype
    expected = 8 if dtype == np.int64 else 7.5
    assert np.all(one == expected)


def test_output_in_units_of_the_environment_is_clipped_only():
    space = spaces.Box(0.0, 10.0, (2,), np.float32)
    policy = policy_for(space, constant(3.0, 12.0), from_range=None)
    assert policy.act(np.zeros(3, np.float32)).tolist() == [3.0, 10.0]


@pytest.mark.parametrize(("logits", "index"), [((3.0, 1.0, 2.0), -1), ((0.0, 1.0, 2.0), 1)])
def test_discrete_with_a_start_gives_an_integer_inside_the_space(logits, index):
    space = spaces.Discrete(3, start=-1)
    policy = policy_for(space, constant(*logits))
    action = policy.act(np.zeros(3, np.float32))
    assert action == index
    assert space.contains(action)
    assert policy.act(np.zeros((2, 3), np.float32)).tolist() == [index, index]


def test_categorical_acts_without_noise():
    policy = policy_for(spaces.Discrete(3), constant(0.0, 0.1, 0.0), "categorical")
    assert [int(policy.act(np.zeros(3, np.float32))) for _ in range(20)] == [1] * 20


def test_multi_discrete_multi_binary_and_nested_actions():
    observation = np.zeros(3, np.float32)
    factors = spaces.MultiDiscrete([2, 3])
    policy = policy_for(factors, constant(0.0, 1.0, 5.0, 1.0, 2.0), "categorical")
    assert policy.act(observation).tolist() == [1, 0]
    bits = spaces.MultiBinary(2)
    assert policy_for(bits, constant(-1.0, 1.0)).act(observation).tolist() == [0, 1]
    nested = spaces.Dict({"go": spaces.Discrete(2), "turn": spaces.Box(0.0, 4.0, (1,), np.float32)})
    action = policy_for(nested, constant(0.0, 1.0, 0.0)).act(observation)
    assert action["go"] == 1
    assert action["turn"].tolist() == [2.0]
    assert nested.contains(action)


def test_user_function_gives_indices_and_its_output_is_not_changed():
    policy = policy_for(spaces.Discrete(2, start=5), constant(0.0, 1.0), lambda out: out.argmax(-1))
    assert policy.act(np.zeros(3, np.float32)) == 6
    outputs = []

    def keep(output):
        outputs.append(output)
        return output

    box = policy_for(spaces.Box(0.0, 10.0, (1,), np.float32), constant(0.5), keep)
    assert box.act(np.zeros(3, np.float32)).tolist() == [7.5]
    assert outputs[0].tolist() == [[0.5]]


def test_tensors_and_arrays_are_observations_alike():
    policy = policy_for(spaces.Discrete(2), nn.Linear(3, 2))
    observations = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)
    assert torch.equal(policy(observations), policy(torch.from_numpy(observations)))
    assert policy.act(torch.from_numpy(observations)).tolist() == policy.act(observations).tolist()
    assert policy.act(torch.from_numpy(observations[0])) == policy.act(observations)[0]


def test_forward_of_one_observation_and_of_a_batch():
    policy = policy_for(spaces.Discrete(2), nn.Linear(3, 2))
    observations = np.zeros((4, 3), np.float32)
    assert policy(observations).shape == (4, 2)
    assert policy(observations[0]).shape == (1, 2)
    assert policy(observations).requires_grad


def test_dict_observations_of_dm_control():
    env = suite.load("cartpole", "balance", task_kwargs={"random": 1})
    policy, history = evolve_with_env(
        env,
        nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 2)),
        pop_size=3,
        low_rank=2,
        action=lambda logits: logits.argmax(-1) * 2 - 1,
        num_generations=1,
        horizon=5,
        return_history=True,
    )
    observation = env.reset().observation
    action = policy.act(observation)
    assert action.shape == (1,)
    assert action.dtype == np.float64
    assert abs(float(action[0])) == 1.0
    batch = {key: np.stack([value, value]) for key, value in observation.items()}
    assert policy.act(batch).shape == (2, 1)
    assert policy(batch).shape == (2, 2)
    flat = np.concatenate([np.ravel(part) for part in observation.values()]).astype(np.float32)
    assert torch.allclose(policy(observation), policy.model(torch.from_numpy(flat)[None]))
    assert env.step(action).reward is not None
    assert len(history) == 1


def test_wrong_observation_is_named():
    policy = policy_for(spaces.Discrete(2), nn.Linear(3, 2))
    with pytest.raises(ValueError, match=r"shape \(4,\)"):
        policy.act(np.zeros(4, np.float32))
    with pytest.raises(ValueError, match=r"shape \(2, 4\)"):
        policy.act(np.zeros((2, 4), np.float32))


def test_policy_too_narrow_for_the_action_space_is_named():
    policy = policy_for(spaces.Discrete(4), constant(0.0, 1.0))
    with pytest.raises(ValueError, match="gives 2 numbers per observation"):
        policy.act(np.zeros(3, np.float32))


@pytest.mark.parametrize("action", [3, 0.5, object()])
def test_action_of_the_wrong_kind_is_named(action):
    with pytest.raises(TypeError, match="action is a head, its name, a function"):
        Actor(action, spaces.Discrete(2), (-1.0, 1.0), None)


def test_unknown_head_lists_near_names():
    with pytest.raises(ValueError, match="categorical"):
        Actor("categoricl", spaces.Discrete(2), (-1.0, 1.0), None)


# --- the policy that is built


@pytest.mark.parametrize(
    ("space", "action", "width", "ends_in_tanh"),
    [
        (spaces.Discrete(3), None, 3, False),
        (spaces.Discrete(3), "categorical", 3, False),
        (spaces.MultiDiscrete([2, 3]), None, 5, False),
        (spaces.MultiBinary(4), None, 4, False),
        (spaces.Box(0.0, 1.0, (2,)), None, 2, True),
        (spaces.Box(0.0, 1.0, (2,)), "squashed_gaussian", 4, False),
        (spaces.Box(0.0, 1.0, (2,)), "beta", 4, False),
        (spaces.Box(0.0, 1.0, (2,)), lambda out: out, 2, True),
    ],
)
def test_built_policy_has_one_hidden_layer_of_32(space, action, width, ends_in_tanh):
    actor = Actor(action, space, (-1.0, 1.0), None)
    model = build_model(Encoder(VECTOR), actor, seed=0)
    layers = [layer for layer in model if isinstance(layer, nn.Linear)]
    assert [(layer.in_features, layer.out_features) for layer in layers] == [
        (3, 32),
        (32, width),
    ]
    assert isinstance(model[-1], nn.Tanh) is ends_in_tanh
    assert same(model.state_dict(), build_model(Encoder(VECTOR), actor, seed=0).state_dict())
    other = build_model(Encoder(VECTOR), actor, seed=1).state_dict()
    assert not same(model.state_dict(), other)


def test_no_policy_is_built_for_images():
    image = Encoder(spaces.Box(0, 255, (4, 4, 3), np.uint8))
    with pytest.raises(ValueError, match="pass a model"):
        build_model(image, Actor(None, spaces.Discrete(2), (-1.0, 1.0), None), seed=0)


# --- the policy that is returned


def evolved(env=Aim, model=None, **settings):
    defaults = {"pop_size": 4, "low_rank": 2, "num_generations": 3, "horizon": 8}
    return evolve_with_env(env, model, **{**defaults, **settings})


def test_users_model_is_never_changed():
    model = linear()
    before, mode = copy.deepcopy(model.state_dict()), model.training
    policy = evolved(model=model, standardize=True)
    assert same(before, model.state_dict())
    assert model.training is mode
    assert all(parameter.grad is None for parameter in model.parameters())
    parts = {id(tensor) for tensor in policy.parameters()}
    assert not parts & {id(parameter) for parameter in model.parameters()}
    assert "forward" not in model[0].__dict__


def test_returned_policy_is_a_plain_module_that_can_be_trained_on():
    model = linear()
    model[0].weight.requires_grad_(False)
    policy = evolved(model=model)
    assert isinstance(policy, nn.Module)
    wanted = [True, False]
    assert [p.requires_grad for p in (policy.model[0].bias, policy.model[0].weight)] == wanted
    observations = torch.rand(16, 2)
    optimiser = torch.optim.SGD([p for p in policy.parameters() if p.requires_grad], lr=0.1)
    losses = []
    for _ in range(20):
        loss = ((policy(observations) - 0.5) ** 2).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert policy.act(np.zeros(2, np.float32)).shape == (1,)


def test_training_the_policy_leaves_the_population_as_it_is():
    with interact_with_env(Aim) as interactor:
        population = interactor.population(linear(), pop_size=3, low_rank=2)
        before = interactor.evaluate(population, horizon=8)
        policy = interactor.policy(population.merge_(0))
        with torch.no_grad():
            for parameter in policy.parameters():
                parameter.add_(1.0)
        assert torch.equal(before, interactor.evaluate(population, horizon=8))


def test_statistics_are_saved_with_the_policy():
    class Far(Aim):
        def _observation(self):
            return super()._observation() * 0.1 + 100.0

    policy = evolved(Far, num_generations=40, pop_size=16, search="ga")
    observations = np.float32(100.0 + np.linspace(-0.2, 0.2, 10).reshape(5, 2))
    other = evolved(Far, num_generations=1, seed=9)
    assert not torch.equal(policy(observations), other(observations))
    other.load_state_dict(policy.state_dict())
    assert torch.equal(policy(observations), other(observations))
    assert policy.act(observations).tolist() == other.act(observations).tolist()
    statistics = policy.state_dict()["model.normalizer.mean"]
    assert statistics.tolist() == pytest.approx([100.0, 100.0], abs=0.5)


def test_policy_is_copied_with_its_actions():
    policy = evolved(aim_discrete)
    twin = copy.deepcopy(policy)
    observations = np.linspace(-1, 1, 10, dtype=np.float32).reshape(5, 2)
    assert twin.act(observations).tolist() == policy.act(observations).tolist()


def test_policy_plays_in_the_bare_environment():
    policy = evolved(gymnasium.make("Pendulum-v1"), horizon=5)
    env = gymnasium.make("Pendulum-v1")
    observation, _ = env.reset(seed=0)
    for _ in range(5):
        action = policy.act(observation)
        assert env.action_space.contains(action)
        observation, *_ = env.step(action)
    env.close()


def test_plain_module_is_in_evaluation_mode_without_changing_the_users():
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5))
    plain = plain_module(model)
    assert model.training
    assert not plain.training
    assert plain_module(model.eval()) is model
    with pytest.raises(TypeError, match="function"):
        plain_module(lambda x: x)
