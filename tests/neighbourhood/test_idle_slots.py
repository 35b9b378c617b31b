"""Slots that have no job yet do no harm."""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from populora_envs import interact_with_env
from tests.clock import anyone


class Late(gymnasium.Env):
    """Shows the first choice of a space that does not begin at 0; one step pays 1."""

    def __init__(self, space):
        self.observation_space, self.action_space = space, spaces.Discrete(2)
        self._max_episode_steps = 3

    def _shown(self):
        if isinstance(self.observation_space, spaces.Dict):
            return {"a": np.int64(4)}
        return np.asarray(self.observation_space.start)

    def reset(self, *, seed=None, options=None):
        return self._shown(), {}

    def step(self, action):
        return self._shown(), 1.0, True, False, {}


@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(2, start=4),
        spaces.Discrete(3, start=-7),
        spaces.MultiDiscrete([2, 3], start=[5, 1]),
        spaces.Dict({"a": spaces.Discrete(2, start=4)}),
    ],
    ids=str,
)
@pytest.mark.parametrize("slots", [1, 2, 5])
def test_more_slots_than_jobs_play_where_discrete_observations_do_not_begin_at_0(space, slots):
    with interact_with_env([Late(space) for _ in range(slots)]) as interactor:
        assert interactor.evaluate(anyone(interactor, 1)).tolist() == [1.0]
