"""Small environments that pay 1, 2, 3, ... and show their clock, one for each kind of interface.

With ``pay=echo`` they pay the action instead, and `numbered` individuals act their own number times the
clock: over three steps individual i earns i * (0 + 1 + 2).
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from torch import nn

SHOWN = spaces.Box(0.0, np.inf, (1,), np.float32)
ANYTHING = spaces.Box(-np.inf, np.inf, (1,), np.float32)
MODES = (AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED)
LIMIT = 20


def by_clock(time, action):
    return float(time)


def echo(time, action):
    return float(np.asarray(action).ravel()[0])


def at_the_end(time, action):
    return 10.0 if time == 4 else 0.0


def numbered(interactor, pop_size):
    """Individual i is the number i times the clock."""
    layer = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(layer.weight)
    population = interactor.population(layer, pop_size=pop_size, low_rank=1, init="zero")
    adapted = next(iter(population.individuals.values()))
    adapted.down.fill_(1.0)
    adapted.up.copy_(torch.arange(pop_size).reshape(pop_size, 1, 1))
    return population


def anyone(interactor, pop_size, outputs=2, **settings):
    """Individuals whose actions do not matter."""
    layer = nn.Linear(interactor.encoder.shape[0], outputs)
    return interactor.population(layer, pop_size=pop_size, low_rank=1, **settings)


class _Log:
    """What was done to an environment."""

    def __init__(self):
        self.resets = self.closes = self.time = 0
        self.seeds: list[Any] = []
        self.actions: list[Any] = []

    def shown(self):
        return np.array([self.time], np.float32)

    def begin(self):
        self.resets += 1
        self.time = 0

    def tick(self, action):
        self.time += 1
        self.actions.append(action)

    def close(self):
        self.closes += 1


class Clock(_Log, gymnasium.Env):
    """A gymnasium environment; `ends` are the flags of its last step, None for no end."""

    def __init__(
        self, length=3, *, ends=(True, False), pay=by_clock, action_space=None, limit=LIMIT
    ):
        super().__init__()
        self.observation_space = SHOWN
        if action_space is None:
            action_space = ANYTHING if pay is echo else spaces.Discrete(2)
        self.action_space = action_space
        self.length, self.ends, self.pay = length, ends, pay
        if limit is not None:
            self._max_episode_steps = limit

    def reset(self, *, seed=None, options=None):
        self.seeds.append(seed)
        self.begin()
        return self.shown(), {}

    def step(self, action):
        self.tick(action)
        flags = self.ends if self.ends and self.time >= self.length else (False, False)
        return self.shown(), self.pay(self.time, action), *flags, {}


class DuckClock(_Log):
    """The same interface, by no class of gymnasium's; its resets take no seed."""

    def __init__(self, length=3, pay=by_clock):
        super().__init__()
        self.observation_space, self.action_space = SHOWN, spaces.Discrete(2)
        self.length, self.pay = length, pay
        self.max_episode_steps = LIMIT

    def reset(self):
        self.begin()
        return self.shown(), {}

    def step(self, action):
        self.tick(action)
        over = self.time >= self.length
        return self.shown(), self.pay(self.time, action), over, False, {}


class OldClock(DuckClock):
    """The interface of the older gym: `reset` gives the observation alone, `step` four values."""

    def __init__(self, length=3, info=None, **settings):
        super().__init__(length, **settings)
        self.info = info or {}

    def seed(self, seed=None):
        self.seeds.append(seed)

    def reset(self):
        return super().reset()[0]

    def step(self, action):
        shown, reward, over, _, _ = super().step(action)
        return shown, reward, over, self.info if over else {}


@dataclasses.dataclass
class Spec:
    """What dm_env calls a BoundedArray."""

    shape: tuple[int, ...]
    dtype: Any
    minimum: Any = -np.inf
    maximum: Any = np.inf


class TimeStep(NamedTuple):
    """What dm_env's `reset` and `step` give; step types are 0 first, 1 mid, 2 last."""

    step_type: int
    reward: Any
    discount: float | None
    observation: Any

    def first(self):
        return self.step_type == 0

    def last(self):
        return self.step_type == 2


class DmClock(_Log):
    """The interface of dm_env, by none of its classes; it resets itself after the last step."""

    def __init__(self, length=3, discount=1.0, pay=by_clock):
        super().__init__()
        self.length, self.discount, self.pay = length, discount, pay
        self.over = True

    def observation_spec(self):
        return {"time": Spec((), np.float64)}

    def action_spec(self):
        return Spec((1,), np.float64, np.array([-1.0]), np.array([1.0]))

    def reset(self):
        self.begin()
        self.over = False
        return TimeStep(0, None, None, {"time": np.float64(0.0)})

    def step(self, action):
        if self.over:
            return self.reset()
        self.tick(action)
        self.over = self.time >= self.length
        shown = {"time": np.float64(self.time)}
        discount = self.discount if self.over else 1.0
        return TimeStep(1 + self.over, self.pay(self.time, action), discount, shown)


class ClockVector(VectorEnv):
    """A vector environment of its own kind that writes into the same observations every time.

    Args:
        lengths: of the episodes in each slot.
        mode: of autoreset.
        pay: of one slot.

    Attributes:
        resets: the seed and mask of every `reset`.
        begun: episodes begun in each slot.
    """

    def __init__(self, lengths, mode, pay=by_clock, observation_space=SHOWN, limit=LIMIT):
        self.num_envs, self.lengths = len(lengths), np.array(lengths)
        self.metadata = {"autoreset_mode": mode}
        self.mode, self.pay = mode, pay
        self.single_observation_space = observation_space
        self.single_action_space = ANYTHING if pay is echo else spaces.Discrete(2)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.times = np.zeros(self.num_envs, np.int64)
        self.over = np.zeros(self.num_envs, bool)
        self.begun = np.zeros(self.num_envs, np.int64)
        self.resets: list[tuple[Any, list[bool]]] = []
        self.closes = 0
        self.max_episode_steps = limit
        self._buffer = np.zeros((self.num_envs, 1), np.float32)

    def _shown(self):
        self._buffer[:, 0] = self.times
        return self._buffer

    def _begin(self, slots):
        self.times[slots] = 0
        self.over[slots] = False
        self.begun[slots] += 1

    def reset(self, *, seed=None, options=None):
        mask = (options or {}).get("reset_mask", np.ones(self.num_envs, bool))
        assert self.mode is AutoresetMode.DISABLED or mask.all()
        self.resets.append((seed, mask.tolist()))
        self._begin(mask)
        return self._shown(), {}

    def step(self, actions):
        reset_now = self.over & (self.mode is AutoresetMode.NEXT_STEP)
        assert not (self.over & ~reset_now).any(), "a slot that has ended was stepped"
        self.times += 1
        rewards = np.array([self.pay(t, a) for t, a in zip(self.times, actions, strict=True)])
        rewards[reset_now] = 0.0
        self._begin(reset_now)
        self.over = (self.times >= self.lengths) & ~reset_now
        ended = self.over.copy()
        if self.mode is AutoresetMode.SAME_STEP:
            self._begin(ended)
        return self._shown(), rewards, ended, np.zeros(self.num_envs, bool), {}

    def close(self, **kwargs):
        self.closes += 1
