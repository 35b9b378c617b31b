"""`policy.save` and `Policy.load`."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from safetensors.torch import load_file, save_file
from torch import nn

from populora_envs import Policy, evolve_with_env, interact_with_env, make_action
from populora_envs.policy_files import build_model, build_space, describe_model, describe_space
from populora_envs.spaces import OrderedDictSpace
from tests.clock import Clock


def same(policy, other, observations):
    for observation in observations:
        given, expected = other.act(observation), policy.act(observation)
        assert np.array_equal(given, expected)
        assert np.asarray(given).dtype == np.asarray(expected).dtype


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1", "dm_control/cartpole-swingup"])
def test_an_evolved_policy_comes_back(env_id, tmp_path):
    policy = evolve_with_env(env_id, num_generations=2, pop_size=4, horizon=40)
    policy.save(tmp_path / "policy.safetensors")
    again = Policy.load(tmp_path / "policy.safetensors")
    space = policy.encoder.space
    space.seed(1)
    same(policy, again, [space.sample() for _ in range(20)])
    with interact_with_env(env_id, seed=5) as interactor:
        scores = [
            interactor.evaluate_policy(p, num_episodes=3, horizon=40) for p in (policy, again)
        ]
    assert torch.equal(scores[0].returns, scores[1].returns)


@pytest.mark.parametrize(
    ("action", "space"),
    [
        (make_action("categorical", temperature=0.5), spaces.Discrete(3, start=2)),
        (make_action("squashed_gaussian", sample=False), spaces.Box(-2.0, 3.0, (2,), np.float32)),
        (make_action("beta", beta_rescale_neg_one_one=True), spaces.Box(-2.0, 3.0, (1,))),
        (None, spaces.Tuple([spaces.Discrete(2), spaces.MultiBinary(2)])),
    ],
)
def test_heads_and_ranges_come_back(action, space, tmp_path):
    with interact_with_env(Clock(action_space=space)) as interactor:
        size = interactor._actor(action).output_size()
        policy = interactor.policy(nn.Linear(1, size), action)
    policy.save(tmp_path / "policy.safetensors")
    again = Policy.load(tmp_path / "policy.safetensors")
    assert type(again.actor.head) is type(policy.actor.head)
    output = torch.randn(5, size)
    for keys in (None, torch.arange(10).reshape(5, 2)):
        expected, given = (p.actor.act(output, keys, 5)[0] for p in (policy, again))
        assert str(expected) == str(given)


def test_a_function_is_given_again(tmp_path):
    box = spaces.Box(-2.0, 2.0, (1,), np.float32)
    with interact_with_env(Clock(action_space=box), to_range=(0.0, 1.0)) as interactor:
        policy = interactor.policy(nn.Linear(1, 1), torch.sin)
    policy.save(tmp_path / "policy.safetensors")
    with pytest.raises(
        ValueError, match=r"saved with an action function of its user: pass action="
    ):
        Policy.load(tmp_path / "policy.safetensors")
    again = Policy.load(tmp_path / "policy.safetensors", action=torch.sin)
    same(policy, again, [np.array([x], np.float32) for x in (0.0, 1.0, 2.5)])


class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(1, 2)

    def forward(self, x):
        return self.layer(x).sin()


def test_a_model_of_ones_own_is_given_again(tmp_path):
    with interact_with_env(Clock()) as interactor:
        policy = interactor.policy(Own())
    policy.save(tmp_path / "policy.safetensors")
    with pytest.raises(ValueError, match="pass model=, of the same structure"):
        Policy.load(tmp_path / "policy.safetensors")
    given = Own()
    before = given.layer.weight.clone()
    again = Policy.load(tmp_path / "policy.safetensors", model=given)
    same(policy, again, [np.array([x], np.float32) for x in (0.0, 1.0, 2.5)])
    assert torch.equal(given.layer.weight, before)


def test_the_file_is_one_of_safetensors_and_others_are_refused(tmp_path):
    with interact_with_env(Clock()) as interactor:
        policy = interactor.policy(nn.Sequential(nn.Linear(1, 2)))
    policy.save(tmp_path / "policy.safetensors")
    assert set(load_file(tmp_path / "policy.safetensors")) == {"0.weight", "0.bias"}
    save_file({"x": torch.zeros(2)}, tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match="holds no policy"):
        Policy.load(tmp_path / "other.safetensors")


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(-np.inf, np.array([1.0, np.inf], np.float32), (2,), np.float32),
        spaces.Box(0, 255, (3, 4, 4), np.uint8),
        spaces.Discrete(4, start=-1),
        spaces.MultiDiscrete([[2, 3], [4, 5]]),
        spaces.MultiBinary((2, 2)),
        spaces.Dict(b=spaces.Discrete(2), a=spaces.Tuple([spaces.Box(-1, 1, (1,))])),
        OrderedDictSpace([("b", spaces.Discrete(2)), ("a", spaces.Discrete(3))]),
    ],
)
def test_spaces_come_back(space):
    again = build_space(describe_space(space))
    assert again == space
    assert type(again) is type(space)
    if isinstance(space, spaces.Dict):
        assert list(again.spaces) == list(space.spaces)


def test_layers_with_settings_of_their_own_are_not_described():
    plain = nn.Sequential(nn.Flatten(), nn.Linear(2, 3, bias=False), nn.GELU())
    assert str(build_model(describe_model(plain))) == str(plain)
    for model in (
        nn.ELU(alpha=2.0),
        nn.Conv1d(1, 1, 1),
        nn.Sequential(nn.Linear(1, 1), nn.ELU(2.0)),
    ):
        assert describe_model(model) is None
