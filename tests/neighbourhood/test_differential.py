"""Drawn environments: the interactor agrees exactly with a loop that plays each job alone."""

import dataclasses
import os
import warnings

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv, VectorWrapper
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from populora_envs import interact_with_env
from populora_envs.seeds import Purpose, job_seeds
from tests.neighbourhood.reference import played

DRAWS = int(os.environ.get("DRAWN_CASES", "500"))
MODES = {mode.name.lower(): mode for mode in AutoresetMode}

SEEN = (
    spaces.Box(-9.0, 9.0, (2,), np.float32),
    spaces.Box(-9.0, 9.0, (1, 2), np.float64),
    spaces.Box(0, 9, (2,), np.int64),
    spaces.Box(0, 255, (3,), np.uint8),
    spaces.Discrete(3),
    spaces.Discrete(3, start=-1),
    spaces.MultiBinary((2, 2)),
    spaces.Dict({"b": spaces.Discrete(2, start=4), "a": spaces.Box(0.0, 9.0, (), np.float32)}),
)
ACTED = (
    spaces.Discrete(2),
    spaces.Discrete(3, start=-1),
    spaces.Box(-1.0, 1.0, (1,), np.float32),
    spaces.Box(0.0, 8.0, (1, 2), np.float64),
    spaces.Box(-4, 4, (2,), np.int64),
    spaces.MultiBinary((3, 2)),
)
PAID = {
    "float": float,
    "int": lambda r: int(np.floor(r)),
    "bool": lambda r: r > 0,
    "float32": np.float32,
    "row": lambda r: np.array([r]),
    "number": lambda r: np.array(r),
    "tensor": lambda r: torch.tensor([r]),
    "endless": lambda r: np.inf if r > 6 else float(r),
    "undefined": lambda r: np.nan if r > 6 else float(r),
}


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is drawn: an environment, how it is passed, and how it is played."""

    seen: spaces.Space
    acted: spaces.Space
    paid: str
    ends: tuple
    longest: int
    kind: str
    slots: int
    pop_size: int
    episodes: int
    horizon: int
    seed: int

    @property
    def seeded(self):
        return not self.kind.startswith("own")


def shown(space, number):
    if isinstance(space, spaces.Dict):
        return {key: shown(part, number) for key, part in space.items()}
    if isinstance(space, spaces.Discrete):
        return np.int64(space.start + number % space.n)
    values = number + np.arange(int(np.prod(space.shape)))
    limit = 2 if isinstance(space, spaces.MultiBinary) else 9
    return (values % limit).astype(space.dtype).reshape(space.shape)


class Drawn(gymnasium.Env):
    """Its length and first observation come from the seed; pays the action and the clock."""

    def __init__(self, plan):
        self.plan, self.observation_space, self.action_space = plan, plan.seen, plan.acted

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.clock, self.start, self.length = 0, 1, self.plan.longest
        if self.plan.seeded:
            self.start = int(self.np_random.integers(0, 5))
            self.length = int(self.np_random.integers(1, self.plan.longest + 1))
        return shown(self.observation_space, self.start), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.clock += 1
        amount = float(np.sum(np.asarray(action, np.float64))) * self.clock + self.start
        flags = self.plan.ends if self.clock >= self.length else (False, False)
        seen = shown(self.observation_space, self.start + self.clock)
        return seen, PAID[self.plan.paid](amount), *flags, {}


class OwnVector(VectorEnv):
    """A vector environment of no class of gymnasium's, in one of its modes."""

    def __init__(self, envs, mode):
        self.envs, self.num_envs, self.mode = envs, len(envs), mode
        self.metadata = {"autoreset_mode": mode}
        self.single_observation_space = envs[0].observation_space
        self.single_action_space = envs[0].action_space
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.over = np.zeros(self.num_envs, bool)

    def _shown(self):
        out = create_empty_array(self.single_observation_space, self.num_envs)
        return concatenate(self.single_observation_space, self.seen, out)

    def reset(self, *, seed=None, options=None):
        mask = (options or {}).get("reset_mask", np.ones(self.num_envs, bool))
        if mask.all():
            self.seen = [None] * self.num_envs
        for i in np.flatnonzero(mask):
            self.seen[i], self.over[i] = self.envs[i].reset()[0], False
        return self._shown(), {}

    def step(self, actions):
        rewards, flags = np.zeros(self.num_envs), np.zeros((2, self.num_envs), bool)
        for i, action in enumerate(iterate(self.action_space, actions)):
            if self.over[i] and self.mode is AutoresetMode.NEXT_STEP:
                self.seen[i], self.over[i] = self.envs[i].reset()[0], False
                continue
            assert not self.over[i]
            self.seen[i], rewards[i], *flags[:, i], _ = self.envs[i].step(action)
            self.over[i] = flags[:, i].any()
            if self.over[i] and self.mode is AutoresetMode.SAME_STEP:
                self.seen[i], self.over[i] = self.envs[i].reset()[0], False
        return self._shown(), rewards, *flags.copy(), {}


class Old:
    """The interface of the older gym."""

    def __init__(self, env):
        self.env, self.first = env, None
        self.observation_space, self.action_space = env.observation_space, env.action_space

    def seed(self, seed=None):
        self.first = seed

    def reset(self):
        return self.env.reset(seed=self.first)[0]

    def step(self, action):
        seen, reward, terminated, truncated, _ = self.env.step(action)
        return seen, reward, terminated or truncated, {"TimeLimit.truncated": not terminated}


def passed(plan):
    """The environments as they are handed to the interactor."""
    kind, _, mode = plan.kind.partition("-")
    makers = [lambda: Drawn(plan)] * plan.slots
    if kind == "own":
        return OwnVector([Drawn(plan) for _ in makers], MODES[mode])
    if kind in ("sync", "wrapped"):
        vector = SyncVectorEnv(makers, autoreset_mode=MODES[mode])
        return vector if kind == "sync" else VectorWrapper(vector)
    if kind == "factory":
        return makers[0]
    return [Old(make()) if kind == "old" else make() for make in makers]


@st.composite
def plans(draw):
    vectors = [f"{kind}-{mode}" for kind in ("own", "sync", "wrapped") for mode in MODES]
    kind = draw(st.sampled_from(["list", "factory", "old", *vectors]))
    plain = ["float", "int", "bool", "float32", "endless", "undefined"]
    paid = plain if kind.startswith(("own", "wrapped")) else list(PAID)
    some = st.integers(1, 4)
    flags = [(True, False), (False, True), (True, True), (False, False)]
    return Plan(
        draw(st.sampled_from(SEEN)),
        draw(st.sampled_from(ACTED)),
        draw(st.sampled_from(paid)),
        draw(st.sampled_from(flags)),
        draw(st.integers(1, 6)),
        kind,
        draw(some),
        draw(some),
        draw(st.integers(1, 3)),
        draw(st.integers(1, 7)),
        draw(st.integers(0, 2**20)),
    )


def whole_numbers(interactor, plan):
    """Individuals whose weights are multiples of a quarter, so that no order of a sum matters."""
    draw = torch.Generator().manual_seed(plan.seed)
    size = (
        interactor.population(pop_size=1, low_rank=1)
        .model(torch.zeros(1, interactor.encoder.shape[0]))
        .shape[-1]
    )
    layer = nn.Linear(interactor.encoder.shape[0], size)
    with torch.no_grad():
        for weights in layer.parameters():
            weights.copy_(torch.randint(-2, 3, weights.shape, generator=draw) / 4)
    population = interactor.population(layer, pop_size=plan.pop_size, low_rank=2)
    for adapted in population.individuals.values():
        for weights in (adapted.down, adapted.up):
            weights.copy_(torch.randint(-1, 2, weights.shape, generator=draw) / 2)
    return population


@settings(
    max_examples=DRAWS,
    derandomize="DRAWN_CASES" not in os.environ,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(plans())
def test_the_interactor_agrees_with_a_loop_that_plays_each_job_alone(plan):
    copies = plan.slots if plan.kind == "factory" else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with interact_with_env(passed(plan), num_envs=copies, seed=plan.seed) as interactor:
            population = whole_numbers(interactor, plan)
            run = interactor.rollout(population, horizon=plan.horizon, num_episodes=plan.episodes)
    seeds = job_seeds(plan.seed, Purpose.SELECTION, 0, range(plan.episodes))
    alone = played(lambda: Drawn(plan), population, seeds, plan.horizon)
    returns = np.array([[result[0] for result in row] for row in alone])
    np.testing.assert_array_equal(run.returns.numpy(), returns)
    assert run.lengths.tolist() == [[result[1] for result in row] for row in alone]
    assert run.ends == [[result[2] for result in row] for row in alone]
    means = returns.mean(axis=1).astype(np.float32)
    expected = np.where(np.isfinite(means), means, -np.inf)
    np.testing.assert_array_equal(run.fitnesses.numpy(), expected)
