"""Returns, lengths and ends of fixed policies on real environments, to the last step.

The numbers were measured on the bare environments, one fresh instance per row: `gymnasium.make(id)` or
`suite.load(domain, task)`, `reset(seed)`, the sum of the rewards in float64. There, policies saw MuJoCo's
observations in float64; here they see float32, and all rows still hold to 1e-6.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from typing import TYPE_CHECKING, Any, NamedTuple

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from torch import nn

from populora_envs import interact_with_env

if TYPE_CHECKING:
    from collections.abc import Callable

MODES = list(AutoresetMode)
pytestmark = [
    # GLFW says so on a machine without a screen.
    pytest.mark.filterwarnings("ignore:.*DISPLAY environment variable is missing"),
    # Box2D's first import gives this one; as an error it crashes the interpreter.
    pytest.mark.filterwarnings("ignore:builtin type .* has no __module__:DeprecationWarning"),
]


class Row(NamedTuple):
    """One fixed policy on one environment; `decide(observation, t)` gives the action."""

    env: str
    seed: int
    policy: str
    decide: Callable[[Any, int], Any]
    episode_return: float
    length: int
    end: str
    needs_time: bool = False
    kwargs: tuple[tuple[str, Any], ...] = ()

    def make(self) -> Any:
        domain, _, task = self.env.partition(" ")
        if task:
            from dm_control import suite

            return suite.load(domain, task)
        return gymnasium.make(self.env, **dict(self.kwargs))

    def __str__(self) -> str:
        return f"{self.env} seed {self.seed} {self.policy}".replace("[", "(").replace("]", ")")


def always(action: Any) -> Callable[[Any, int], Any]:
    return lambda observation, t: action


def whole(count: int, value: float, dtype: Any = np.float32) -> Callable[[Any, int], Any]:
    return always(np.full(count, value, dtype))


def at_time(actions: list[int]) -> Callable[[Any, int], Any]:
    return lambda observation, t: actions[t]


def lean(o: Any, t: int) -> int:
    return int(o[2] > 0)


def lean_ahead(o: Any, t: int) -> int:
    return int(o[2] + 0.5 * o[3] > 0)


def damp(o: Any, t: int) -> Any:
    return np.clip(np.array([-2 * o[1] - 0.5 * o[2]], np.float32), -2, 2)


def swing(o: Any, t: int) -> int:
    return 2 if o[1] >= 0 else 0


def swing_hard(o: Any, t: int) -> Any:
    return np.array([1.0 if o[1] >= 0 else -1.0], np.float32)


def pump(o: Any, t: int) -> int:
    return 2 if o[4] >= 0 else 0


def balance(o: Any, t: int) -> Any:
    return np.clip(np.array([10 * o[1] + o[3] + o[0]]), -3, 3).astype(np.float32)


def balance_dm(o: Any, t: int) -> Any:
    return np.clip(np.array([o[0] + 5 * o[2] + o[3] + o[4]], np.float64), -1, 1)


def alternate(o: Any, t: int) -> Any:
    return np.full(6, 0.5 if t % 2 == 0 else -0.5)


no_slip = (("is_slippery", False),)
path = [1, 1, 2, 1, 2, 2]

GYMNASIUM = [
    Row("CartPole-v1", 0, "always 1", always(1), 8.0, 8, "terminated"),
    Row("CartPole-v1", 1, "always 1", always(1), 9.0, 9, "terminated"),
    Row("CartPole-v1", 2, "always 1", always(1), 10.0, 10, "terminated"),
    Row("CartPole-v1", 0, "always 0", always(0), 11.0, 11, "terminated"),
    Row("CartPole-v1", 1, "always 0", always(0), 10.0, 10, "terminated"),
    Row("CartPole-v1", 0, "o[2] > 0", lean, 41.0, 41, "terminated"),
    Row("CartPole-v1", 1, "o[2] > 0", lean, 51.0, 51, "terminated"),
    Row("CartPole-v1", 0, "o[2] + 0.5 o[3] > 0", lean_ahead, 500.0, 500, "truncated"),
    Row("Pendulum-v1", 0, "0", whole(1, 0.0), -978.8000472468732, 200, "truncated"),
    Row("Pendulum-v1", 1, "0", whole(1, 0.0), -680.046758786311, 200, "truncated"),
    Row("Pendulum-v1", 0, "2", whole(1, 2.0), -1664.741375716125, 200, "truncated"),
    Row("Pendulum-v1", 0, "-2 o[1] - 0.5 o[2]", damp, -1725.1334376065558, 200, "truncated"),
    Row("MountainCar-v0", 0, "2 if o[1] >= 0", swing, -122.0, 122, "terminated"),
    Row(
        "MountainCarContinuous-v0",
        0,
        "1 if o[1] >= 0",
        swing_hard,
        89.40000000000003,
        106,
        "terminated",
    ),
    Row("Acrobot-v1", 0, "2 if o[4] >= 0", pump, -500.0, 500, "truncated"),
    Row("LunarLander-v3", 0, "always 0", always(0), -119.05959591305864, 52, "terminated"),
    Row("LunarLander-v3", 1, "always 0", always(0), -152.42199768689855, 81, "terminated"),
    Row("LunarLander-v3", 0, "always 2", always(2), -393.81902960055044, 89, "terminated"),
    Row(
        "LunarLanderContinuous-v3",
        0,
        "0.5 and 0",
        always(np.array([0.5, 0.0], np.float32)),
        -265.4669698600243,
        95,
        "terminated",
    ),
    Row("BipedalWalker-v3", 0, "zeros", whole(4, 0.0), -92.00686345755821, 115, "terminated"),
    Row("FrozenLake-v1", 0, "always 2", always(2), 0.0, 100, "truncated", kwargs=no_slip),
    Row("FrozenLake-v1", 0, "path", at_time(path), 1.0, 6, "terminated", True, no_slip),
    Row("Taxi-v4", 0, "always 0", always(0), -200.0, 200, "truncated"),
    Row("HalfCheetah-v5", 0, "zeros", whole(6, 0.0), 0.24474250203541698, 1000, "truncated"),
    Row("HalfCheetah-v5", 1, "zeros", whole(6, 0.0), 0.0441211671498823, 1000, "truncated"),
    Row("HalfCheetah-v5", 0, "0.1", whole(6, 0.1), -5.757386971999523, 1000, "truncated"),
    Row("Hopper-v5", 0, "zeros", whole(3, 0.0), 131.17274375707004, 141, "terminated"),
    Row("InvertedPendulum-v5", 0, "0", whole(1, 0.0), 23.0, 24, "terminated"),
    Row("InvertedPendulum-v5", 0, "10 o[1] + o[3] + o[0]", balance, 805.0, 806, "terminated"),
]
zeros, double = functools.partial(whole, value=0.0, dtype=np.float64), np.float64
DM_CONTROL = [
    Row("cartpole balance", 0, "0", zeros(1), 762.344046114239, 1000, "truncated"),
    Row("cartpole balance", 1, "0.1", whole(1, 0.1, double), 326.17555224067485, 1000, "truncated"),
    Row(
        "cartpole balance",
        0,
        "p[0] + 5 p[2] + v[0] + v[1]",
        balance_dm,
        999.5861123642845,
        1000,
        "truncated",
    ),
    Row("cheetah run", 0, "zeros", zeros(6), 0.13117087514676506, 1000, "truncated"),
    Row("cheetah run", 0, "+-0.5", alternate, 1.7184286230911912, 1000, "truncated", True),
    Row("walker walk", 0, "zeros", zeros(6), 18.154302454736463, 1000, "truncated"),
    Row("reacher easy", 0, "0.1, -0.1", always(np.array([0.1, -0.1])), 0.0, 1000, "truncated"),
    Row("pendulum swingup", 0, "1", whole(1, 1.0, double), 55.0, 1000, "truncated"),
]
ROWS = GYMNASIUM + DM_CONTROL
BY_OBSERVATION = [row for row in GYMNASIUM if not row.needs_time]


class Through(nn.Module):
    """Gives the observation back; the layer is there to be adapted and adds nothing."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.nothing = nn.Linear(size, 1)

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        return observation + 0.0 * self.nothing(observation)


def play(envs: Any, row: Row, pop_size: int, **settings: Any) -> Any:
    clock = itertools.count()

    def action(observations: torch.Tensor) -> Any:
        t = next(clock)
        return np.stack([row.decide(o, t) for o in observations.numpy()])

    with interact_with_env(envs, from_range=None, **settings) as interactor:
        model = Through(interactor.encoder.shape[0])
        population = interactor.population(model, pop_size=pop_size, low_rank=1, init="zero")
        return interactor.rollout(population, action, episode_seeds=[row.seed])


def check(evaluated: Any, row: Row, pop_size: int) -> None:
    expected = torch.full((pop_size, 1), row.episode_return, dtype=torch.float64)
    torch.testing.assert_close(evaluated.returns, expected, rtol=1e-6, atol=1e-6)
    assert evaluated.lengths.tolist() == [[row.length]] * pop_size
    assert evaluated.ends == [[row.end]] * pop_size
    torch.testing.assert_close(evaluated.fitnesses, expected[:, 0].float(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_a_single_environment(row):
    env = row.make()
    check(play(env, row, 1), row, 1)
    env.close()


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_a_list_of_two(row):
    # The third individual plays in a slot that has been used before.
    pop_size = 1 if row.needs_time else 3
    check(play([row.make, row.make], row, pop_size), row, pop_size)


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
@pytest.mark.parametrize("row", BY_OBSERVATION, ids=str)
def test_a_vector_environment(row, mode):
    envs = SyncVectorEnv([row.make] * 2, autoreset_mode=mode)
    # BipedalWalker plays on differently once a reset has gone unseeded, as autoresets are.
    pop_size = 2 if row.env == "BipedalWalker-v3" else 3
    with contextlib.closing(envs):
        check(play(envs, row, pop_size), row, pop_size)


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
@pytest.mark.parametrize("row", [GYMNASIUM[0], GYMNASIUM[5], GYMNASIUM[12]], ids=str)
def test_a_vector_environment_of_processes(row, mode):
    envs = AsyncVectorEnv([row.make] * 2, autoreset_mode=mode)
    with contextlib.closing(envs):
        check(play(envs, row, 3), row, 3)


def test_cartpoles_own_vector_environment_of_one():
    row = GYMNASIUM[0]
    with contextlib.closing(gymnasium.make_vec(row.env, 1)) as envs:
        with pytest.warns(UserWarning, match="cannot be seeded per episode"):
            evaluated = play(envs, row, 1)
        check(evaluated, row, 1)


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_slots_of_a_vector_environment_are_seeded_one_by_one(mode):
    envs = SyncVectorEnv([GYMNASIUM[0].make] * 3, autoreset_mode=mode)
    with contextlib.closing(envs), interact_with_env(envs) as interactor:
        interactor.reset(seeds=[0, 1, 2])
        ends = [interactor.step([1, 1, 1])[2].tolist() for _ in range(10)]
    assert ends[:7] == [[False] * 3] * 7
    assert ends[7:] == [[True, False, False], [False, True, False], [False, False, True]]


@pytest.mark.parametrize("row", [GYMNASIUM[0], GYMNASIUM[8]], ids=str)
def test_an_id(row):
    check(play(row.env, row, 3), row, 3)


@pytest.mark.parametrize("row", [DM_CONTROL[0], DM_CONTROL[5]], ids=str)
def test_an_id_of_dm_control(row):
    env_id = "dm_control/" + row.env.replace(" ", "-")
    check(play(env_id, row, 2), row, 2)
