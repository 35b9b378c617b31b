"""`num_envs` with an environment that exists: rebuilt with its wrappers, or refused."""

import gymnasium
import pytest
import torch
from gymnasium.wrappers import ClipAction, RescaleAction, TransformReward

from populora_envs import interact_with_env
from tests.clock import Clock, DmClock, DuckClock

pytestmark = pytest.mark.filterwarnings("ignore:.*precision lowered by casting")


class Plain(gymnasium.Wrapper):
    """A wrapper that does not record its arguments."""


def wrapped():
    env = gymnasium.make("Pendulum-v1", g=3.0, max_episode_steps=20)
    return TransformReward(ClipAction(RescaleAction(env, -1.0, 1.0)), lambda reward: reward / 2)


def played(envs, **settings):
    with interact_with_env(envs, **settings) as interactor:
        population = interactor.population(pop_size=3, init="random")
        run = interactor.rollout(population, episode_seeds=[0, 1])
        return interactor.num_envs, run.returns, run.lengths


def test_an_environment_is_rebuilt_with_its_wrappers_and_arguments():
    count, returns, lengths = played(wrapped(), num_envs=4)
    assert count == 4
    assert set(lengths.flatten().tolist()) == {20}
    assert torch.equal(returns, played(wrapped())[1])
    assert not torch.equal(returns, played(gymnasium.make("Pendulum-v1"))[1])


def test_one_copy_is_the_environment_itself():
    env = Clock()
    with pytest.raises(ValueError, match="cannot be rebuilt"):
        interact_with_env(env, num_envs=2)
    with interact_with_env(env, num_envs=1) as interactor:
        assert interactor.num_envs == 1


def test_what_was_rebuilt_is_closed_and_what_was_given_is_not(monkeypatch):
    closed = []
    given = wrapped()
    monkeypatch.setattr(type(given.unwrapped), "close", lambda self: closed.append(self))
    with interact_with_env(given, num_envs=3):
        assert not closed
    assert len(closed) == 2
    assert given.unwrapped not in closed


@pytest.mark.parametrize(
    ("env", "reason"),
    [
        (lambda: Plain(gymnasium.make("CartPole-v1")), "RecordConstructorArgs"),
        (lambda: ClipAction(Plain(gymnasium.make("Pendulum-v1"))), "RecordConstructorArgs"),
        (Clock, "it has no spec"),
    ],
)
def test_one_that_cannot_be_rebuilt_is_refused_with_what_to_do(env, reason):
    with pytest.raises(ValueError, match=reason) as raised:
        interact_with_env(env(), num_envs=2)
    assert "pass a factory of it" in str(raised.value)


@pytest.mark.parametrize("env", [DuckClock, DmClock])
def test_simulators_that_cannot_copy_say_so(env):
    with pytest.raises(ValueError, match=f"num_envs=2 wants copies, and a {env.__name__} that"):
        interact_with_env(env(), num_envs=2)
