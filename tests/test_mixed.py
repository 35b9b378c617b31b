"""Environments of several simulators in one list."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

from populora_envs import interact_with_env
from populora_envs.mixed import Mixed
from tests.clock import ANYTHING, Clock, DuckClock, anyone, by_clock, echo, numbered


class Home(DuckClock):
    """A home-made environment that can be seeded."""

    def __init__(self, length=3, pay=by_clock):
        super().__init__(length, pay)
        self.action_space = ANYTHING if pay is echo else self.action_space

    def reset(self, seed=None):
        self.seeds.append(seed)
        return super().reset()


def both(count=2, **settings):
    """`count` pairs of a gymnasium environment and a home-made one, one after the other."""
    return [kind(**settings) for _ in range(count) for kind in (Clock, Home)]


def test_environments_of_two_simulators_play_together_when_their_spaces_agree():
    with interact_with_env(both()) as interactor:
        assert isinstance(interactor.players.entries[0].adapter, Mixed)
        assert interactor.num_envs == 4
        assert interactor.evaluate(anyone(interactor, 6)).tolist() == [6.0] * 6


def test_each_gets_its_own_actions_and_seeds():
    envs = both(pay=echo)
    with interact_with_env(envs) as interactor:
        fitness = interactor.evaluate(numbered(interactor, 9), action=lambda out: out)
        assert fitness.tolist() == [3.0 * i for i in range(9)]
        observation = interactor.reset(seeds=[5, 6, 7, 8])
    assert observation.shape == (4, 1)
    assert [env.seeds[-1] for env in envs] == [5, 6, 7, 8]


def test_numbers_are_those_of_one_simulator_alone():
    def play(envs, **settings):
        with interact_with_env(envs, **settings) as interactor:
            population = interactor.population(pop_size=5, init="random")
            return interactor.rollout(population, num_episodes=2).returns

    alone = play([Clock(pay=echo)])
    assert torch.equal(alone, play(both(pay=echo)))
    assert torch.equal(alone, play(both(pay=echo), num_workers=2))


def test_an_error_names_the_slot_among_all():
    class Broken(Home):
        def step(self, action):
            message = "it broke"
            raise RuntimeError(message)

    with (
        interact_with_env([Clock(), Clock(), Broken()]) as interactor,
        pytest.raises(RuntimeError, match="it broke") as raised,
    ):
        interactor.evaluate(anyone(interactor, 3))
    assert "in slot 2 of 3" in raised.value.__notes__


@pytest.mark.parametrize(("own", "expected"), [(30, 30), (4, 20), (None, None)])
def test_the_longest_time_limit_counts_and_none_where_one_is_missing(own, expected):
    for order in (1, -1):
        pair = [Clock(limit=own), Home()][::order]
        with interact_with_env(pair) as interactor:
            assert interactor.players.entries[0].adapter.time_limit == expected


def test_other_spaces_are_refused_with_both_kinds():
    class Wide(Home):
        def __init__(self):
            super().__init__()
            self.observation_space = spaces.Box(0.0, np.inf, (2,), np.float32)

    message = r"environment 1 \(a Wide\) has the observation space .*environment 0 \(a Clock\)"
    with pytest.raises(ValueError, match=message):
        interact_with_env([Clock(), Wide()])


def test_a_batch_that_begins_episodes_itself_is_refused_in_a_mixed_list():
    batch = SyncVectorEnv([Clock, Clock])
    with pytest.raises(ValueError, match=r"environment 1 goes to .*gymnasium.* pass it alone"):
        interact_with_env([Home(), batch])
    batch.close()
