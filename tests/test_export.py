"""Policies for other runtimes give the actions of the policy."""

import sys

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from populora_envs import evolve_with_env, interact_with_env
from tests.clock import Clock

onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
pytest.importorskip("onnxscript", reason="onnxscript is not installed")

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


def run_onnx(path, observations):
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session.run(None, {"observation": observations})[0]


def run_program(path, observations):
    return torch.export.load(path).module()(torch.from_numpy(observations)).detach().numpy()


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1", "HalfCheetah-v5"])
def test_an_evolved_policy_acts_the_same_elsewhere(env_id, tmp_path):
    policy = evolve_with_env(env_id, num_generations=2, pop_size=4, horizon=50)
    env = gymnasium.make(env_id)
    seen = [env.reset(seed=0)[0]]
    for _ in range(30):
        seen.append(env.step(policy.act(seen[-1]))[0])
    batch = np.stack(seen).astype(np.float32)
    expected = np.stack([policy.act(observation) for observation in seen])
    policy.export_onnx(tmp_path / "policy.onnx")
    policy.export_program(tmp_path / "policy.pt2")
    for given in (
        run_onnx(tmp_path / "policy.onnx", batch),
        run_program(tmp_path / "policy.pt2", batch),
    ):
        assert given.dtype == expected.dtype
        assert np.allclose(given, expected, atol=1e-5)


SPACES = {
    "discrete from 3": (spaces.Discrete(4, start=3), 4, None),
    "several": (spaces.MultiDiscrete([2, 3]), 5, None),
    "several by a head": (spaces.MultiDiscrete([2, 3]), 5, "categorical"),
    "binary": (spaces.MultiBinary(3), 3, None),
    "box with bounds": (
        spaces.Box(np.array([0.0, -3.0]), np.array([5.0, 8.0]), dtype=np.float64),
        2,
        None,
    ),
    "half bounded": (
        spaces.Box(np.array([-np.inf, 0.0]), np.array([np.inf, 2.0]), dtype=np.float64),
        2,
        None,
    ),
    "gaussian": (spaces.Box(-2.0, 2.0, (2,), np.float32), 4, "squashed_gaussian"),
    "beta": (spaces.Box(0.0, 1.0, (2,), np.float64), 4, "beta"),
    "whole numbers": (spaces.Box(-4, 9, (2,), np.int64), 2, None),
    "function": (spaces.Box(-2.0, 2.0, (2,), np.float32), 2, torch.sin),
}


@pytest.mark.parametrize("name", SPACES)
def test_every_kind_of_action(name, tmp_path):
    space, outputs, action = SPACES[name]
    torch.manual_seed(1)
    with interact_with_env(Clock(action_space=space)) as interactor:
        policy = interactor.policy(nn.Sequential(nn.Linear(1, outputs), nn.Tanh()), action)
    policy.export_onnx(tmp_path / "policy.onnx")
    seen = np.linspace(-3, 3, 7, dtype=np.float32)[:, None]
    expected = np.stack([policy.act(observation) for observation in seen])
    assert np.allclose(run_onnx(tmp_path / "policy.onnx", seen), expected, atol=1e-5)


def test_what_cannot_be_exported_is_refused(tmp_path):
    nested = spaces.Tuple([spaces.Discrete(2), spaces.Discrete(3)])
    with interact_with_env(Clock(action_space=nested)) as interactor:
        policy = interactor.policy(nn.Linear(1, 5))
    with pytest.raises(ValueError, match="cannot be exported"):
        policy.export_onnx(tmp_path / "policy.onnx")
    assert not (tmp_path / "policy.onnx").exists()


def test_an_action_function_that_is_not_recorded_is_noticed(tmp_path):
    calls = []

    def moody(output):
        calls.append(1)
        return output * len(calls)

    with interact_with_env(Clock(action_space=spaces.Box(-9.0, 9.0, (1,)))) as interactor:
        policy = interactor.policy(nn.Linear(1, 1), moody)
    with pytest.raises(ValueError, match="was not recorded"):
        policy.export_program(tmp_path / "policy.pt2")
    assert not (tmp_path / "policy.pt2").exists()


def test_a_missing_package_names_its_extra(tmp_path, monkeypatch):
    with interact_with_env("CartPole-v1") as interactor:
        policy = interactor.policy(nn.Linear(4, 2))
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ImportError) as raised:
        policy.export_onnx(tmp_path / "policy.onnx")
    assert any("populora-envs[export]" in note for note in raised.value.__notes__)
