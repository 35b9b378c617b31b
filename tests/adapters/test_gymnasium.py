import contextlib
import functools

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import RescaleAction, TimeLimit
from torch import nn

from populora_envs import interact_with_env
from populora_envs.simulators import find_adapter
from tests.clock import (
    MODES,
    Clock,
    ClockVector,
    anyone,
    at_the_end,
    echo,
    numbered,
)

by_mode = pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)


def vectors(make, mode, count=2):
    """A vector environment of gymnasium's, which is seeded slot by slot."""
    return SyncVectorEnv([make] * count, autoreset_mode=mode)


def fitness_of(envs, pop_size=3, num_episodes=2, **settings):
    with interact_with_env(envs) as interactor:
        population = anyone(interactor, pop_size)
        return interactor.evaluate(population, num_episodes=num_episodes, **settings).tolist()


# --- D-05: the only reward comes at the end


def test_a_reward_at_the_end_counts_in_a_single_environment_and_in_a_list():
    make = functools.partial(Clock, 4, pay=at_the_end)
    assert fitness_of(make()) == [10.0] * 3
    assert fitness_of([make(), make()]) == [10.0] * 3


@by_mode
def test_a_reward_at_the_end_counts_in_every_mode(mode):
    make = functools.partial(Clock, 4, pay=at_the_end)
    assert fitness_of(vectors(make, mode)) == [10.0] * 3


@by_mode
@pytest.mark.filterwarnings("ignore:these environments cannot be seeded per episode")
def test_a_reward_at_the_end_counts_in_every_mode_of_a_vector_environment_of_its_own_kind(mode):
    assert fitness_of(ClockVector([4, 4], mode, at_the_end)) == [10.0] * 3


@by_mode
def test_a_reward_at_the_end_counts_in_every_mode_of_processes(mode):
    make = functools.partial(Clock, 4, pay=at_the_end)
    envs = AsyncVectorEnv([make, make], autoreset_mode=mode)
    with contextlib.closing(envs):
        assert fitness_of(envs, horizon=20) == [10.0] * 3


# --- D-01: phantom steps


@by_mode
@pytest.mark.parametrize("kind", ["gymnasium's", "its own"])
@pytest.mark.filterwarnings("ignore:these environments cannot be seeded per episode")
def test_phantom_steps_pay_nothing_and_use_no_horizon(kind, mode):
    if kind == "its own":
        envs = ClockVector([2, 2], mode, echo)
    else:
        envs = vectors(functools.partial(Clock, 2, pay=echo), mode)
    with interact_with_env(envs) as interactor:
        evaluated = interactor.rollout(numbered(interactor, 3), horizon=2, num_episodes=3)
    # Individual i acts i * 0 on the first observation and i * 1 on the second.
    assert evaluated.returns.tolist() == [[0.0] * 3, [1.0] * 3, [2.0] * 3]
    assert evaluated.lengths.tolist() == [[2] * 3] * 3
    assert evaluated.ends == [["terminated"] * 3] * 3


@by_mode
def test_slots_of_gymnasiums_vector_environments_are_seeded_one_by_one(mode):
    envs = vectors(Clock, mode)
    with interact_with_env(envs) as interactor:
        interactor.evaluate(anyone(interactor, 2), episode_seeds=[5, 6])
    seeds = [[seed for seed in env.seeds if seed is not None] for env in envs.envs]
    assert seeds == [[5, 6], [5, 6]]


# --- lifeless slots


def test_an_ended_slot_of_a_vector_environment_that_never_resets_is_not_stepped():
    with pytest.warns(UserWarning, match="cannot be seeded per episode"):
        interactor = interact_with_env(ClockVector([2, 5], AutoresetMode.DISABLED))
    evaluated = interactor.rollout(anyone(interactor, 2))
    assert evaluated.lengths.tolist() == [[2], [5]]


def test_a_mode_given_by_name_is_read():
    envs = ClockVector([2], AutoresetMode.SAME_STEP)
    envs.metadata = {"autoreset_mode": "SameStep"}
    assert find_adapter(envs)([envs]).autoreset.name == "SAME_STEP"


def test_no_mode_means_next_step():
    envs = ClockVector([2], AutoresetMode.NEXT_STEP)
    envs.metadata = {}
    assert find_adapter(envs)([envs]).autoreset.name == "NEXT_STEP"


def test_processes_without_shared_memory_would_reset_twice_in_the_mode_next_step():
    make = functools.partial(Clock, 2)
    envs = AsyncVectorEnv([make, make], shared_memory=False)
    with contextlib.closing(envs), pytest.raises(ValueError, match="shared_memory=True"):
        interact_with_env(envs)


def test_processes_without_shared_memory_play_in_the_mode_same_step():
    make = functools.partial(Clock, 3)
    envs = AsyncVectorEnv([make, make], shared_memory=False, autoreset_mode=AutoresetMode.SAME_STEP)
    with contextlib.closing(envs):
        assert fitness_of(envs, horizon=20) == [6.0] * 3


# --- D-04: flags


@pytest.mark.parametrize(
    ("flags", "end"),
    [((True, True), "terminated"), ((True, False), "terminated"), ((False, True), "truncated")],
)
@pytest.mark.parametrize("kind", ["single", "list", *MODES])
def test_one_episode_ends_once_whatever_its_flags(kind, flags, end):
    make = functools.partial(Clock, 3, ends=flags, pay=lambda time, action: 1.0)
    envs = {"single": make, "list": [make, make]}.get(kind) or vectors(make, kind)
    with interact_with_env(envs) as interactor:
        evaluated = interactor.rollout(anyone(interactor, 2), num_episodes=2)
    assert evaluated.returns.tolist() == [[3.0, 3.0]] * 2
    assert evaluated.ends == [[end, end]] * 2


# --- D-07, D-08: rewards

REWARDS = [
    2,
    2.0,
    np.float32(2.0),
    np.float64(2.0),
    np.int32(2),
    np.array(2.0),
    np.array([2.0]),
    np.array([[2]]),
    torch.tensor(2.0),
    torch.tensor([2]),
    torch.tensor([[2.0]], requires_grad=True),
]


@pytest.mark.parametrize("reward", REWARDS, ids=repr)
def test_a_reward_may_be_any_one_number(reward):
    assert fitness_of(Clock(3, pay=lambda time, action: reward)) == [6.0] * 3


@pytest.mark.parametrize("reward", [True, np.True_], ids=repr)
def test_a_reward_may_be_a_truth_value(reward):
    assert fitness_of(Clock(3, pay=lambda time, action: reward)) == [3.0] * 3


@pytest.mark.parametrize(
    ("reward", "kind", "words"),
    [
        (None, TypeError, "reward None"),
        ("2.0", TypeError, "reward '2.0'"),
        ([2.0], TypeError, "reward \\[2.0\\]"),
        (np.array([1.0, 2.0]), ValueError, "reward of shape \\(2,\\)"),
        (np.array([]), ValueError, "reward of shape \\(0,\\)"),
        (torch.zeros(3, 1), ValueError, "reward of shape \\(3, 1\\)"),
    ],
    ids=repr,
)
def test_another_reward_is_an_error_that_names_slot_and_individual(reward, kind, words):
    envs = [Clock(), Clock(pay=lambda time, action: reward if time == 2 else 1.0)]
    with interact_with_env(envs) as interactor, pytest.raises(kind, match=words) as raised:
        interactor.evaluate(anyone(interactor, 2), episode_seeds=[7])
    notes = "\n".join(raised.value.__notes__)
    assert "slot 1 of 2" in notes
    assert "individual 1, episode 0, step 1, seed 7" in notes
    assert "generation 0" in notes


class Unpaid(ClockVector):
    """Pays what it is given."""

    rewards: object = None

    def step(self, actions):
        observation, _, *rest = super().step(actions)
        return observation, self.rewards, *rest


@pytest.mark.filterwarnings("ignore:these environments cannot be seeded per episode")
@pytest.mark.parametrize(
    "rewards",
    [
        np.array([2, 2], np.int32),
        np.array([2.0, 2.0], np.float32),
        torch.tensor([2.0, 2.0]),
        [2, 2.0],
        np.array([2, np.float32(2.0)], object),
    ],
    ids=repr,
)
def test_rewards_of_a_vector_environment_may_be_numbers_of_any_kind(rewards):
    envs = Unpaid([3, 3], AutoresetMode.SAME_STEP)
    envs.rewards = rewards
    assert fitness_of(envs) == [6.0] * 3


@pytest.mark.filterwarnings("ignore:these environments cannot be seeded per episode")
@pytest.mark.parametrize(
    ("rewards", "kind", "words"),
    [
        (np.array([1.0, None]), TypeError, "reward None"),
        (np.ones((2, 1)), ValueError, "rewards of shape \\(2, 1\\) for 2 slots"),
        (1.0, ValueError, "rewards of shape \\(\\) for 2 slots"),
    ],
    ids=repr,
)
def test_other_rewards_of_a_vector_environment_are_an_error(rewards, kind, words):
    envs = Unpaid([3, 3], AutoresetMode.SAME_STEP)
    envs.rewards = rewards
    with pytest.raises(kind, match=words):
        fitness_of(envs)


# --- actions of every kind

KINDS = [
    spaces.Discrete(3),
    spaces.Discrete(3, start=-1),
    spaces.MultiDiscrete([2, 3]),
    spaces.MultiDiscrete([[2, 3], [4, 5]]),
    spaces.MultiDiscrete([2, 3], start=[1, -1]),
    spaces.MultiBinary(3),
    spaces.MultiBinary([3, 2]),
    spaces.Box(-2.0, 2.0, (2,), np.float32),
    spaces.Box(0.0, 10.0, (1, 2), np.float64),
    spaces.Box(0, 10, (1,), np.int64),
    spaces.Box(-1.0, 1.0, (), np.float32),
    spaces.Tuple(
        (spaces.Discrete(3), spaces.Tuple((spaces.Box(-1, 1, (1,)), spaces.Box(0, 4, (1,)))))
    ),
    spaces.Dict({"b": spaces.Discrete(2, start=5), "a": spaces.Dict(c=spaces.MultiBinary(2))}),
]


# gymnasium's vector environments make a scalar of an array without dimensions
@pytest.mark.filterwarnings("ignore:.*Casting input x to numpy array")
@pytest.mark.parametrize("kind", ["list", *MODES])
@pytest.mark.parametrize("space", KINDS, ids=str)
def test_every_action_lies_in_its_space_and_is_the_slots_own(space, kind):
    members = [Clock(action_space=space) for _ in range(2)]
    makers = [lambda member=member: member for member in members]
    envs = members if kind == "list" else SyncVectorEnv(makers, autoreset_mode=kind)
    with interact_with_env(envs) as interactor:
        population = interactor.population(pop_size=4, low_rank=2)
        fitness = interactor.evaluate(population, num_episodes=2)
    assert fitness.tolist() == [6.0] * 4
    for member in members:
        assert len(member.actions) >= 12
        assert all(space.contains(action) for action in member.actions), member.actions[0]


@pytest.mark.parametrize("kind", ["list", *MODES])
def test_nested_actions_of_a_function_reach_their_slot(kind):
    space = KINDS[-2]
    members = [Clock(action_space=space) for _ in range(2)]
    makers = [lambda member=member: member for member in members]
    envs = members if kind == "list" else SyncVectorEnv(makers, autoreset_mode=kind)

    def action(output):
        return torch.arange(2), (torch.zeros(2, 1), torch.zeros(2, 1))

    with interact_with_env(envs) as interactor:
        interactor.evaluate(anyone(interactor, 2), action)
    for slot, member in enumerate(members):
        index, (centre, shifted) = member.actions[0]
        assert (index, centre.tolist(), shifted.tolist()) == (slot, [0.0], [2.0])


def test_discrete_actions_begin_at_the_start_of_their_space():
    env = Clock(2, action_space=spaces.Discrete(3, start=-1))
    with interact_with_env(env) as interactor:
        shown = iter([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
        population = anyone(interactor, 1, 3)
        interactor.evaluate(population, lambda output: torch.tensor([next(shown)]).argmax(-1))
    assert env.actions == [-1, 1]
    assert all(isinstance(action, (int, np.integer)) for action in env.actions)


# --- D-10 to D-13: ranges


class Constant(nn.Module):
    def __init__(self, values):
        super().__init__()
        self.layer = nn.Linear(1, len(values))
        nn.init.zeros_(self.layer.weight)
        self.layer.bias.data = torch.tensor(values)

    def forward(self, observation):
        return self.layer(observation)


def first_action(space, values, env=None, **settings):
    env = env or Clock(1, action_space=space)
    with interact_with_env(env, **settings) as interactor:
        model = Constant(values)
        interactor.evaluate(interactor.population(model, pop_size=1, low_rank=1, init="zero"))
    return env.unwrapped.actions[0]


def test_an_unbounded_box_gets_the_policys_numbers():
    unbounded = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    assert first_action(unbounded, [0.5, -2.0]).tolist() == [0.5, -2.0]
    assert first_action(unbounded, [0.5, -0.5], to_range=(-3, 3)).tolist() == [1.5, -1.5]


@pytest.mark.parametrize(("value", "expected"), [(-1.0, 0), (0.0, 5), (1.0, 10)])
def test_an_integer_box_gets_rounded_numbers(value, expected):
    action = first_action(spaces.Box(0, 10, (1,), np.int64), [value])
    assert action.dtype == np.int64
    assert action.tolist() == [expected]


def test_an_action_that_a_wrapper_rescales_is_not_rescaled_twice():
    inner = Clock(1, action_space=spaces.Box(0.0, 10.0, (1,), np.float32))
    env = RescaleAction(inner, np.float32(-1.0), np.float32(1.0))
    assert first_action(None, [0.5], env).tolist() == [7.5]


def test_an_action_outside_its_discrete_space_is_an_error():
    with interact_with_env(Clock()) as interactor:
        population = anyone(interactor, 1)
        with pytest.raises(ValueError, match="from 0 to 1"):
            interactor.evaluate(population, lambda output: torch.tensor([2]))


def test_a_policy_that_does_not_fit_the_action_space_is_an_error():
    with interact_with_env(Clock()) as interactor, pytest.raises(ValueError, match="Discrete"):
        interactor.evaluate(anyone(interactor, 1, outputs=3))


# --- limits, shapes


def test_time_limits_are_read_wherever_they_are_kept():
    def limit(env):
        return find_adapter(env)([env]).time_limit

    assert limit(gymnasium.make("CartPole-v1")) == 500
    assert limit(TimeLimit(Clock(limit=None), 7)) == 7
    assert limit(Clock(limit=None)) is None
    assert limit(SyncVectorEnv([lambda: TimeLimit(Clock(limit=None), 7)])) == 7
    assert limit(gymnasium.make_vec("CartPole-v1", 2)) == 500
    assert limit(gymnasium.make_vec("CartPole-v1", 2, vectorization_mode="sync")) == 500
    with contextlib.closing(AsyncVectorEnv([lambda: gymnasium.make("CartPole-v1")])) as envs:
        assert limit(envs) == 500


def test_a_list_is_given_its_longest_time_limit():
    assert fitness_of([Clock(3, limit=3), Clock(3, limit=8)]) == [6.0] * 3
    assert find_adapter(Clock())([Clock(limit=3), Clock(limit=8)]).time_limit == 8
    assert find_adapter(Clock())([Clock(limit=3), Clock(limit=None)]).time_limit is None


class Growing(Clock):
    """Its second observation has two numbers."""

    def shown(self):
        return np.zeros(1 + (self.time > 1), np.float32)


def test_an_observation_that_changes_its_shape_is_an_error_that_names_the_slot():
    with interact_with_env([Clock(), Growing()]) as interactor:
        population = anyone(interactor, 2)
        with pytest.raises(ValueError, match="shape \\(2,\\), its space says \\(1,\\)") as raised:
            interactor.evaluate(population)
    assert "in slot 1 of 2" in raised.value.__notes__


def test_a_vector_environment_whose_observations_change_their_shape_is_an_error():
    envs = ClockVector([3, 3], AutoresetMode.SAME_STEP)
    with pytest.warns(UserWarning, match="cannot be seeded"):
        interactor = interact_with_env(envs)
    population = anyone(interactor, 2)
    envs._shown = lambda: np.zeros((2, 2), np.float32)
    with pytest.raises(ValueError, match="shape \\(2, 2\\) for 2 slots, its space says \\(1,\\)"):
        interactor.evaluate(population)


@pytest.mark.filterwarnings("ignore:.*ERROR")  # gymnasium tells it beside raising it
def test_an_error_in_a_process_comes_out_with_its_type():
    def fail(time, action):
        message = "no licence"
        raise LookupError(message)

    envs = AsyncVectorEnv([Clock, functools.partial(Clock, pay=fail)])
    with contextlib.closing(envs), interact_with_env(envs) as interactor:
        population = anyone(interactor, 2)
        with pytest.raises(LookupError, match="no licence") as raised:
            interactor.evaluate(population, horizon=5, episode_seeds=[3])
    notes = "\n".join(raised.value.__notes__)
    assert "in one of the slots 0, 1 of 2" in notes
    assert "individual 0, episode 0, step 0, seed 3" in notes
    assert "individual 1, episode 0, step 0, seed 3" in notes


def test_processes_that_were_opened_here_end_when_the_loop_fails():
    opened = []

    def make():
        opened.append(AsyncVectorEnv([Clock, Clock]))
        return opened[-1]

    def fail_between_two_steps():
        with interact_with_env(make) as interactor:
            interactor.reset()
            interactor.step([0, 0])
            message = "mine"
            raise LookupError(message)

    with pytest.raises(LookupError, match="mine"):
        fail_between_two_steps()
    assert [process.is_alive() for process in opened[0].processes] == [False, False]
    assert opened[0].closed


@pytest.mark.parametrize("env_id", ["BipedalWalker-v3", "BipedalWalkerHardcore-v3"])
def test_a_walker_does_not_remember_the_episode_before(env_id):
    """gymnasium's own gives -98.860 and, after another episode, -98.866 for one seed."""

    def returns(episodes, **settings):
        with interact_with_env(env_id, **settings) as interactor:
            population = interactor.population(pop_size=2, init="random")
            run = interactor.rollout(population, episode_seeds=episodes, horizon=120)
        return run.returns

    alone = torch.stack([returns([seed])[:, 0] for seed in (3, 4, 5)], dim=1)
    assert torch.equal(alone, returns([3, 4, 5], num_envs=1))
    assert torch.equal(alone, returns([3, 4, 5], num_envs=4))
