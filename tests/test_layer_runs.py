"""Policies of many kinds of layers in whole runs: environments, workers, threads, compilers, exports."""

from __future__ import annotations

import warnings

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from populora_envs import Population, evolve_with_env, interact_with_env
from tests.layer_cases import CASES, batch, make
from tests.tiny import same, without_times


class Spot(gymnasium.Env):
    """A bright pixel moves; the reward is for the action that names its half of the image."""

    observation_space = spaces.Box(0, 255, (1, 6, 6), np.uint8)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.clock = 0
        return self._observe(), {}

    def _observe(self):
        image = np.zeros((1, 6, 6), np.uint8)
        self.place = self.np_random.integers(6, size=2)
        image[0, self.place[0], self.place[1]] = 255
        return image

    def step(self, action):
        reward = float(action == (self.place[1] >= 3))
        self.clock += 1
        return self._observe(), reward, False, self.clock >= 5, {}


def seeing():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(1, 4, 3, stride=2, padding=1),
            nn.GroupNorm(2, 4),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(36, 2),
        )


def run(**options):
    settings = {"pop_size": 6, "low_rank": {"0": 2, "default": 3}, "adapt_norm": True, "seed": 3}
    settings = {"horizon": 9, "num_generations": 3, "num_episodes": 2, **settings, **options}
    return evolve_with_env(Spot, seeing(), return_history=True, **settings)


@pytest.mark.parametrize("search", ["es", "ga"])
def test_a_convolutional_policy_evolves_alike_on_any_number_of_slots_and_workers(search):
    policy, history = run(search=search)
    for options in ({"num_envs": 1}, {"num_envs": 3, "num_workers": 2}):
        other, entries = run(search=search, **options)
        assert same(other.state_dict(), policy.state_dict())
        assert without_times(entries) == without_times(history)


def test_a_convolutional_policy_goes_on_from_a_checkpoint(tmp_path):
    whole, _ = run()
    for num_generations in (1, 3):
        resumed, _ = run(
            num_generations=num_generations,
            checkpoint_dir=tmp_path,
            resume=num_generations > 1,
        )
    assert same(resumed.state_dict(), whole.state_dict())


def test_a_policy_of_convolutions_is_exported(tmp_path):
    policy, _ = run()
    policy.export_program(tmp_path / "policy.pt2")
    policy.save(tmp_path / "policy.safetensors")
    loaded = type(policy).load(tmp_path / "policy.safetensors", model=seeing())
    observation, _ = Spot().reset(seed=0)
    assert loaded.act(observation) == policy.act(observation)


def test_a_plain_convolutional_policy_scores_the_same_on_any_number_of_slots():
    scores = []
    for num_envs in (1, 4):
        with interact_with_env(Spot, num_envs=num_envs, seed=0) as interactor:
            scores.append(interactor.evaluate_policy(seeing(), num_episodes=6, horizon=9).returns)
    assert torch.equal(torch.as_tensor(scores[0]), torch.as_tensor(scores[1]))


@pytest.mark.parametrize("wide", [False, True])
def test_threads_do_not_change_a_bit_of_a_convolution(wide):
    model = nn.Conv2d(16, 64, 3) if wide else make("conv2d")
    x = torch.randn(9, *((16, 20, 20) if wide else CASES["conv2d"].shape))
    pop = Population(model, pop_size=3, low_rank=2, lora_targets="*", seed=0)
    ids, before, outputs = torch.arange(9) % 3, torch.get_num_threads(), []
    try:
        for num_threads in (1, 2):
            torch.set_num_threads(num_threads)
            outputs.append(pop.routed(x, ids))
            assert torch.equal(pop.routed(x[4:7], ids[4:7]), outputs[-1][4:7])
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*outputs)


@pytest.mark.parametrize("name", ["conv2d in groups", "gru cell", "attention", "layer norm"])
def test_compiled_layers_give_what_the_plain_ones_do(name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        settings = {"lora_targets": ["inner"], "adapt_bias": True, "seed": 0}
        pops = [
            Population(make(name), pop_size=4, low_rank=2, compile=compile, **settings)
            for compile in (True, False)
        ]
        x = batch(name, 6)
        for ids in ([3, 0, 3, 1, 2, 0], [1, 1, 2, 0, 3, 3]):
            one, other = (pop.routed(x, torch.tensor(ids)) for pop in pops)
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
        assert pops[0].routed._compiled is not None, "torch.compile works here"
