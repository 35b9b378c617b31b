"""``check``, ``bench`` and ``list``: what an environment is, what it costs, and what there is."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import tyro

from populora_envs import bench
from populora_envs.catalogue import catalogue, environments
from populora_envs.testing import check_adapter

_Env = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ENV")]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Check:
    """Check the adapter of an environment and print what was understood of it."""

    env: _Env
    """Id of the environment, such as CartPole-v1 or dm_control/cartpole-balance."""
    num_envs: int = 2
    """Environments to make; with two or more, they are checked against each other."""
    steps: int = 50
    """Steps to drive with random actions, enough for some episodes to end."""

    def run(self) -> None:
        """Check, then print a table."""
        print(check_adapter(self.env, num_envs=self.num_envs, steps=self.steps))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bench:
    """Measure env-steps/s of the bare environment, and of a population in it."""

    env: _Env = "CartPole-v1"
    """Id of the environment."""
    num_envs: int = 16
    """Environments, and individuals."""
    seconds: float = 3.0
    """Seconds of each measurement."""

    def run(self) -> None:
        """Measure, then print a table."""
        for line in bench.measured(self.env, self.num_envs, self.seconds):
            print(line)


@dataclasses.dataclass(frozen=True, kw_only=True)
class List:
    """List simulators, operators, heads, searches, loggers and presets, or the ids that hold a word."""

    word: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="WORD")] = None
    """Part of an environment's id, such as cartpole; None lists what there is beside ids."""

    def run(self) -> None:
        """Print the list."""
        for line in catalogue() if self.word is None else environments(self.word):
            print(line)
