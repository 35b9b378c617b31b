"""The messages that the page on trouble explains are those that come."""

from __future__ import annotations

import re
from pathlib import Path

import gymnasium
import pytest
import torch
from torch import nn

from populora_envs import evolve_with_env

PAGE = (Path(__file__).parent.parent / "docs" / "trouble.md").read_text()
SMALL = {"num_generations": 1, "pop_size": 2, "horizon": 5}


class WithoutSpaces:
    def reset(self):
        return [0.0]

    def step(self, action):
        return [0.0], 0.0, False, {}


def three_numbers(population):
    return torch.zeros(3)


WRONG = {
    "there is no environment 'CartPol-v1'": lambda: evolve_with_env("CartPol-v1", **SMALL),
    "int is no environment": lambda: evolve_with_env(3, **SMALL),
    "the list of environments is empty": lambda: evolve_with_env([], **SMALL),
    "has no observation_space: give it one": lambda: evolve_with_env(WithoutSpaces, **SMALL),
    "a layer that takes 5 numbers met 4": lambda: evolve_with_env(
        "CartPole-v1", nn.Linear(5, 2), **SMALL
    ),
    "the policy gives 3 numbers per observation, Discrete(2) wants 2": lambda: evolve_with_env(
        "CartPole-v1", nn.Linear(4, 3), **SMALL
    ),
    "the head Beta wants 2 for Box": lambda: evolve_with_env(
        "Pendulum-v1", nn.Linear(3, 1), action="beta", **SMALL
    ),
    "unknown option 'popsize'": lambda: evolve_with_env("CartPole-v1", popsize=3, **SMALL),
    "the target 'fc' matches no layer to adapt": lambda: evolve_with_env(
        "CartPole-v1", lora_targets="fc", **SMALL
    ),
    "num_envs makes copies of an id": lambda: evolve_with_env(
        [gymnasium.make("CartPole-v1")], num_envs=3, **SMALL
    ),
    "the fitness function gave values of shape": lambda: evolve_with_env(
        None, nn.Linear(1, 1), fitness=three_numbers, num_generations=1, pop_size=2
    ),
}


@pytest.mark.parametrize("message", WRONG)
def test_error_on_the_page_is_the_one_that_comes(message):
    assert f"`{message}`" in PAGE
    with pytest.raises((ValueError, TypeError), match=re.escape(message)):
        WRONG[message]()


def test_messages_of_a_run_folder_on_the_page_are_those_that_come(tmp_path):
    settings = {"checkpoint_dir": tmp_path, **SMALL}
    evolve_with_env("CartPole-v1", **settings)
    with pytest.raises(ValueError, match="holds a run: pass resume=True"):
        evolve_with_env("CartPole-v1", **settings)
    with pytest.raises(ValueError, match="seed was 0 in the checkpoint and is 4 now"):
        evolve_with_env("CartPole-v1", resume=True, seed=4, **settings)
    assert "`holds a run: pass resume=True`" in PAGE
    assert "`seed was 0 in the checkpoint and is 4 now`" in PAGE


@pytest.mark.parametrize(
    ("message", "env", "model"),
    [
        (
            "the environment names no time limit",
            lambda: gymnasium.make("CartPole-v1").unwrapped,
            None,
        ),
        ("outside its from_range", "MountainCarContinuous-v0", nn.Linear(2, 1)),
    ],
    ids=["time_limit", "from_range"],
)
def test_warning_on_the_page_is_the_one_that_comes(message, env, model):
    assert f"`{message}`" in PAGE
    if model is not None:
        nn.init.constant_(model.bias, 5.0)
    settings = {"num_generations": 1, "pop_size": 2, "horizon": 5 if model is not None else None}
    with pytest.warns(UserWarning, match=message):
        evolve_with_env(env, model, **settings)
