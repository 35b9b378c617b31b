"""What populora_envs needs to know of it."""

import numpy as np
from gymnasium import spaces

from beam import Beams
from populora_envs.adapter import Autoreset, Transition

LIMIT = 200


class BeamAdapter:
    autoreset, seeds_slots, time_limit = Autoreset.CALLER, True, LIMIT
    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = spaces.Box(-1.0, 1.0, (1,), np.float64)

    def __init__(self, beams):
        self.beams, self.num_slots = beams, beams.num_envs

    def reset(self, seeds=None, slots=None):
        for slot in range(self.num_slots) if slots is None else np.flatnonzero(slots):
            self.beams.put(slot, None if seeds is None else seeds[slot])
        return self.beams.state

    def step(self, actions, slots=None):
        near, fallen = self.beams.advance(actions[:, 0])
        return Transition(
            self.beams.state, near.astype(np.float64), fallen, self.beams.time >= LIMIT
        )

    def close(self):
        pass


def adapt(envs):
    return BeamAdapter(envs[0])


def make(env_id):
    """Make "beam/one"."""
    return make_batch(env_id, 1)


def make_batch(env_id, num_envs):
    """Optional: ids that begin with "beam/" get a batch of as many as are of use."""
    if env_id != "beam/one":
        message = f"there is no {env_id}: near names: beam/one"
        raise ValueError(message)
    return Beams(num_envs)
