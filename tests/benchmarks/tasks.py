"""What the search benchmark runs, the score that solves a task and its budget, and what a run gives."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

EPISODES = 100
UNTOUCHED = 1_000_000
"""Added to the seed of a run for the episodes that score its policy."""

SPARE = 1.15
"""A budget counts looks too: so much more leaves about the whole of it for training."""


class Task(NamedTuple):
    """An environment."""

    solved: float | None
    """The mean return that solves it; None where the score is what is asked for."""
    budget: int
    """Steps of training."""


TASKS = {
    "CartPole-v1": Task(475, 100_000),
    "Acrobot-v1": Task(-100, 300_000),
    "MountainCarContinuous-v0": Task(90, 300_000),
    "Pendulum-v1": Task(-200, 2_500_000),
    "LunarLander-v3": Task(200, 2_000_000),
    "dm_control/cartpole-balance": Task(950, 2_000_000),
    "dm_control/cartpole-swingup": Task(800, 8_000_000),
    "design": Task(760, 400_000),
    "Swimmer-v5": Task(325, 1_000_000),
    "HalfCheetah-v5": Task(None, 3_000_000),
    "Hopper-v5": Task(None, 3_000_000),
}
"""``design`` is the example of the README: 25 generations on dm_control's cartpole, with actions of +-1."""


class Row(NamedTuple):
    """What a run gave; a line of the CSV file."""

    task: str
    search: str
    seed: int
    score: float
    score_se: float
    reported: float
    reported_se: float
    train_steps: int
    look_steps: int
    """Before the end of the run."""
    env_steps: int
    generations: int
    seconds: float

    @property
    def is_solved(self) -> bool:
        """Whether the returned policy reaches the score on untouched episodes."""
        solved = TASKS[self.task].solved
        return solved is not None and self.score >= solved

    @property
    def is_honest(self) -> bool:
        """Whether the reported score lies within two standard errors of the untouched one."""
        error = 2 * np.hypot(self.score_se, self.reported_se)
        return bool(abs(self.score - self.reported) <= error + 1e-9)
