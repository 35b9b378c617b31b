"""Steps that go past gymnasium's watching wrappers give what steps through them give."""

import gymnasium
import numpy as np
import pytest
from gymnasium.wrappers import OrderEnforcing, RecordEpisodeStatistics, TimeLimit

from populora_envs.simulators import find_adapter
from tests.clock import Clock

IDS = ["CartPole-v1", "Acrobot-v1", "MountainCarContinuous-v0", "Pendulum-v1", "HalfCheetah-v5"]


def adapt(*envs):
    return find_adapter(envs[0])(list(envs))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("env_id", IDS)
def test_a_run_of_episodes_is_the_same_step_by_step(env_id):
    env, other = gymnasium.make(env_id), gymnasium.make(env_id)
    adapter = adapt(env)
    env.action_space.seed(0)
    for seed in range(2):
        assert np.array_equal(adapter.reset([seed])[0], other.reset(seed=seed)[0])
        for _ in range(1010):
            action = env.action_space.sample()
            ours = adapter.step(np.array([action]))
            observation, reward, terminated, truncated, _ = other.step(action)
            assert np.array_equal(ours.observation[0], observation)
            assert (ours.reward[0], ours.terminated[0]) == (reward, terminated)
            assert ours.truncated[0] == truncated
            if terminated or truncated:
                break
        assert env._elapsed_steps == other._elapsed_steps


def test_the_wrappers_are_left_out():
    env = gymnasium.make("CartPole-v1")
    adapter = adapt(env)
    adapter.reset([0])
    adapter.step(np.array([0]))  # which PassiveEnvChecker looks at
    calls = []
    env.env.step = lambda action: calls.append(action)
    adapter.step(np.array([0]))
    assert not calls


@pytest.mark.filterwarnings("ignore")
def test_the_first_step_is_looked_at():
    class NoTuple(Clock):
        def step(self, action):
            return super().step(action)[:4]

    gymnasium.register("NoTuple-v0", entry_point=NoTuple, max_episode_steps=5)
    try:
        adapter = adapt(gymnasium.make("NoTuple-v0"))
        adapter.reset([0])
        with pytest.raises(AssertionError, match="must be a python dictionary"):
            adapter.step(np.zeros(1, dtype=np.int64))
    finally:
        del gymnasium.registry["NoTuple-v0"]


def test_a_wrapper_of_the_user_is_never_left_out():
    env = RecordEpisodeStatistics(gymnasium.make("CartPole-v1"))
    adapter = adapt(env)
    adapter.reset([0])
    for _ in range(30):
        transition = adapter.step(np.array([0]))
        if transition.terminated[0]:
            break
    assert env.return_queue[0] == len(env.return_queue) * env.length_queue[0] > 0


def test_a_limit_below_the_users_wrapper_and_one_above_both_count():
    class Half(gymnasium.Wrapper):
        def step(self, action):
            observation, reward, *rest = self.env.step(action)
            return observation, reward / 2, *rest

    env = TimeLimit(OrderEnforcing(Half(TimeLimit(Clock(length=9), 4))), 7)
    adapter = adapt(env)
    adapter.reset([0])
    cuts = [bool(adapter.step(np.zeros(1, dtype=np.int64)).truncated[0]) for _ in range(4)]
    assert cuts == [False, False, False, True]


def test_a_step_that_the_user_has_replaced_is_called():
    env = gymnasium.make("CartPole-v1")
    plain, calls = env.step, []
    env.step = lambda action: calls.append(action) or plain(action)
    adapter = adapt(env)
    adapter.reset([0])
    adapter.step(np.array([0]))
    assert calls == [0]
