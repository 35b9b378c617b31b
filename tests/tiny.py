"""Small environments with drawn starts, and a record of what was done to them."""

from __future__ import annotations

import dataclasses

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import nn

from populora_envs.history import History

SECONDS = ("seconds_env", "seconds_forward", "seconds_evolution")


@dataclasses.dataclass
class Record:
    """What happened to all environments that share it."""

    made: int = 0
    closed: int = 0
    steps: int = 0
    seeds: list = dataclasses.field(default_factory=list)


class Aim(gymnasium.Env):
    """A point is moved to a drawn target; episodes end once it is there, half of them sooner."""

    def __init__(self, record=None, length=8, action_space=None):
        self.record = record or Record()
        self.record.made += 1
        self.observation_space = spaces.Box(-4.0, 4.0, (2,), np.float32)
        self.action_space = action_space or spaces.Box(-2.0, 2.0, (1,), np.float32)
        self.length = length

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.record.seeds.append(seed)
        self.place, self.target = self.np_random.uniform(-1.0, 1.0, 2)
        self.clock = 0 if self.target < 0 else self.length // 2
        return self._observation(), {}

    def _observation(self):
        return np.array([self.place, self.target], np.float32)

    def _move(self, action):
        if isinstance(self.action_space, spaces.Discrete):
            return 0.3 * (float(action) - 1.0)
        return 0.3 * float(action[0])

    def step(self, action):
        assert self.action_space.contains(action), action
        self.record.steps += 1
        self.clock += 1
        self.place = float(np.clip(self.place + self._move(action), -4.0, 4.0))
        gap = abs(self.place - self.target)
        return self._observation(), -gap, gap < 0.1, self.clock >= self.length, {}

    def close(self):
        self.record.closed += 1


def aim_discrete(record=None, length=8):
    """Aim with three actions: left, stay, right."""
    return Aim(record, length, spaces.Discrete(3))


class Lottery(gymnasium.Env):
    """One step pays the luck drawn at the reset, and a little for the right one of two actions.

    With ``own_luck`` each action has its own luck, so that individuals differ by luck, too.
    """

    def __init__(self, own_luck=False, record=None):
        self.record = record or Record()
        self.record.made += 1
        self.observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.own_luck = own_luck

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.record.seeds.append(seed)
        self.seen = self.np_random.uniform(-1.0, 1.0, 2).astype(np.float32)
        self.luck = 10.0 * self.np_random.standard_normal(2)
        if not self.own_luck:
            self.luck[1] = self.luck[0]
        return self.seen, {}

    def step(self, action):
        self.record.steps += 1
        reward = float(self.luck[action]) + float(action == (self.seen[0] > 0))
        return self.seen, reward, True, False, {}

    def close(self):
        self.record.closed += 1


class Clock(gymnasium.Env):
    """Pays 1, 2, 3, ...; the observation is the clock, which begins at 1."""

    def __init__(self, length=3, record=None, action_space=None):
        self.record = record or Record()
        self.record.made += 1
        self.observation_space = spaces.Box(0.0, np.inf, (1,), np.float32)
        self.action_space = action_space or spaces.Discrete(2)
        self.length = length
        self.actions = []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.record.seeds.append(seed)
        self.clock = 0
        return np.array([1.0], np.float32), {}

    def step(self, action):
        self.record.steps += 1
        self.actions.append(action)
        self.clock += 1
        observation = np.array([self.clock + 1.0], np.float32)
        return observation, float(self.clock), self.clock >= self.length, False, {}

    def close(self):
        self.record.closed += 1


class Spiky(Aim):
    """Aim that pays something that is not finite for a large move."""

    def __init__(self, record=None, bad=np.inf, limit=0.5):
        super().__init__(record)
        self.bad, self.limit = bad, limit

    def step(self, action):
        observation, reward, *rest = super().step(action)
        return observation, self.bad if abs(action[0]) > self.limit else reward, *rest


def linear(num_in=2, num_out=1, seed=0):
    """A small model with two layers, its weights drawn from `seed`."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(num_in, 8), nn.Tanh(), nn.Linear(8, num_out), nn.Tanh())


def without_times(history):
    """The history without what a clock measured."""
    return History({k: v for k, v in entry.items() if k not in SECONDS} for entry in history)


def weights(population):
    """All weights of all individuals, as one list of tensors."""
    layers = population.individuals.values()
    return [tensor.clone() for layer in layers for tensor in (layer.down, layer.up)]


def same(first, second):
    """Whether two lists of tensors, or two state dicts, are equal to the last bit."""
    if isinstance(first, dict):
        return first.keys() == second.keys() and same([*first.values()], [*second.values()])
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
