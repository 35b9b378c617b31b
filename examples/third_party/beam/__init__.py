"""A ball on a beam, many of them at once: a simulator with an interface of its own."""

import numpy as np


class Beams:
    """`count` beams of length 2, each with a ball; an action tilts a beam by -1 to 1."""

    def __init__(self, count=1):
        self.num_envs = count
        self.state = np.zeros((count, 2))  # position, velocity
        self.time = np.zeros(count, dtype=int)

    def put(self, beam, seed):
        """Put the ball of one beam somewhere."""
        self.state[beam] = np.random.default_rng(seed).uniform(-0.5, 0.5, 2)
        self.time[beam] = 0

    def advance(self, tilt):
        """Advance every beam by 0.05 s; return which balls lie near the middle and which have fallen."""
        self.time += 1
        self.state[:, 1] += 0.05 * 5.0 * np.clip(tilt, -1.0, 1.0)
        self.state[:, 0] += 0.05 * self.state[:, 1]
        position = abs(self.state[:, 0])
        return position < 0.1, position > 1.0
