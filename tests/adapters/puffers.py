"""PufferLib's environments for tests, and PufferLib itself, imported where its link harms nobody."""

import contextlib
import importlib.util
import tempfile
import warnings

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from populora_envs import interact_with_env
from tests.test_ground_truth import Through

with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder), warnings.catch_warnings():
    pytest.importorskip("pufferlib", reason="PufferLib is not installed")
    from pufferlib import emulation, vector
    from pufferlib.ocean.environment import env_creator

HAS_NATIVE = importlib.util.find_spec("pufferlib.ocean.cartpole.binding") is not None


class Parts(gymnasium.Env):
    """Shows a picture, a choice and a vector that count the steps; the actions (a, b) pay 10 a + b.

    An episode lasts 3 steps, and its seed is in the first picture.
    """

    observation_space = spaces.Dict(
        picture=spaces.Box(0, 255, (2, 3), np.uint8),
        choice=spaces.Discrete(5),
        speeds=spaces.Tuple([spaces.Box(-9.0, 9.0, (3,), np.float32), spaces.MultiBinary(2)]),
    )

    def __init__(self, actions=None):
        self.action_space = actions or spaces.Tuple([spaces.Discrete(3), spaces.Discrete(4)])
        self.taken = []

    def _observe(self):
        t = self.time
        speeds = np.array([t, -t, t / 8], np.float32), np.array([t % 2, 1], np.int8)
        return {"picture": self.picture, "choice": t + 1, "speeds": speeds}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        self.picture = np.arange(6, dtype=np.uint8).reshape(2, 3) + np.uint8((seed or 0) % 100)
        return self._observe(), {"seed": seed}

    def step(self, action):
        self.time += 1
        self.taken.append(action)
        first, second = action
        return self._observe(), 10.0 * first + second, self.time == 3, False, {"time": self.time}


def emulated(make, *args, **kwargs):
    """An environment that PufferLib emulates, made by a function, or by gymnasium from an id."""
    if isinstance(make, str):
        args, make = (make, *args), gymnasium.make
    return emulation.GymnasiumPufferEnv(env_creator=make, env_args=args, env_kwargs=kwargs)


def creator(make, *args):
    """A function that makes emulated environments as PufferLib's vector environments call it."""

    def create(buf=None, seed=0):
        made = gymnasium.make(make) if isinstance(make, str) else make(*args)
        return emulation.GymnasiumPufferEnv(env=made, buf=buf, seed=seed)

    return create


def serial(make, count, *args):
    return vector.make(creator(make, *args), num_envs=count, backend=vector.Serial)


def native(name, count, **settings):
    return env_creator(f"puffer_{name}")(num_envs=count, seed=0, **settings)


def play(envs, act, pop_size=3, **settings):
    """Roll a population out that acts on what it sees by `act`, from the observations as one vector."""
    with interact_with_env(envs, from_range=None) as interactor:
        model = Through(interactor.encoder.shape[0])
        population = interactor.population(model, pop_size=pop_size, low_rank=1, init="zero")
        return interactor.rollout(population, act, **settings)


def always(action):
    return lambda outputs: torch.full((len(outputs),), action)
