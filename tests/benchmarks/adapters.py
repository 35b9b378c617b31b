"""What an adapter costs beside its simulator: ``python -m tests.benchmarks.adapters [--only envpool]``.

The same actions are played on the bare environments and through the adapter, in turns; what is over is
begun anew in both. The ratio, bare to our seconds, is the median over the rounds. "wanted" is the least one:
0.90 for batches of 64, 0.75 for single environments of a few microseconds a step.
"""

from __future__ import annotations

import argparse
import time
import warnings
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import gymnasium
import numpy as np

from populora_envs import simulators
from populora_envs.adapter import Autoreset, close_all
from populora_envs.stacks import Stack
from tests.benchmarks.table import machine_line, print_table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Play = Callable[[list[Any], list[Any]], None]

HEADER = ["environments", "bare steps/s", "ours steps/s", "ratio", "wanted"]


def play_gym(envs: list[Any], actions: list[Any]) -> None:
    """Single environments of gymnasium's interface."""
    for env in envs:
        env.reset(seed=0)
    for rows in actions:
        for i, env in enumerate(envs):
            _, _, terminated, truncated, _ = env.step(rows[i])
            if terminated or truncated:
                env.reset(seed=0)


def play_dm(envs: list[Any], actions: list[Any]) -> None:
    """dm_control."""
    for env in envs:
        env.reset()
    for rows in actions:
        for i, env in enumerate(envs):
            if env.step(rows[i]).last():
                env.reset()


def play_parallel(envs: list[Any], actions: list[Any]) -> None:
    """PettingZoo; the rows of a team are those of its agents."""
    count = len(envs[0].possible_agents)
    for env in envs:
        env.reset(seed=0)
    for rows in actions:
        for i, env in enumerate(envs):
            chosen = {a: rows[i * count + k] for k, a in enumerate(env.possible_agents)}
            env.step({agent: chosen[agent] for agent in env.agents})
            if not env.agents:
                env.reset(seed=0)


def play_batch(envs: list[Any], actions: list[Any]) -> None:
    """One batch that begins its episodes itself."""
    (env,) = envs
    env.reset()
    for rows in actions:
        env.step(rows)


def play_gymnax(envs: list[Any], actions: list[Any]) -> None:
    """gymnax's own step, vmapped and jitted, with the resets inside."""
    import jax

    (batch,) = envs
    keys = jax.random.split(jax.random.PRNGKey(0), batch.num_envs)
    _, state = jax.vmap(batch.env.reset, (0, None))(keys, batch.params)
    if not hasattr(batch, "bare"):
        batch.bare = jax.jit(jax.vmap(batch.env.step, (0, 0, 0, None)))
    for rows in actions:
        observation, state, *_ = batch.bare(keys, state, rows, batch.params)
        np.asarray(observation)


class Case(NamedTuple):
    """Some environments, and how they are played without an adapter."""

    name: str
    make: Callable[[], list[Any]]
    play: Play = play_gym
    wanted: float = 0.75
    steps: int = 300


def ids(env_id: str, count: int) -> list[Any]:
    return [simulators.make(env_id) for _ in range(count)]


def batch(env_id: str, count: int) -> list[Any]:
    make = simulators.batch_maker(env_id)
    assert make is not None
    return [make(count)]


def vector(env_id: str, count: int) -> list[Any]:
    simulators.make(env_id).close()  # some packages register their ids then
    return [gymnasium.make_vec(env_id, num_envs=count, vectorization_mode="vector_entry_point")]


def serial(count: int) -> list[Any]:
    import pufferlib.emulation
    import pufferlib.vector

    def creator(buf: Any = None, seed: int = 0) -> Any:
        make = partial(gymnasium.make, "CartPole-v1")
        return pufferlib.emulation.GymnasiumPufferEnv(env_creator=make, buf=buf, seed=seed)

    return [pufferlib.vector.make(creator, num_envs=count, backend=pufferlib.vector.Serial)]


CASES = [
    Case("16 CartPole-v1", partial(ids, "CartPole-v1", 16)),
    Case("16 LunarLander-v3", partial(ids, "LunarLander-v3", 16)),
    Case("16 HalfCheetah-v5", partial(ids, "HalfCheetah-v5", 16)),
    Case("CartPoleVectorEnv 64", partial(vector, "CartPole-v1", 64), play_batch, 0.9, 3000),
    Case("16 dm_control cartpole", partial(ids, "dm_control/cartpole-balance", 16), play_dm),
    Case("16 MiniGrid-Empty-5x5-v0", partial(ids, "MiniGrid-Empty-5x5-v0", 16)),
    Case("16 pybullet Hopper", partial(ids, "pybullet/HopperBulletEnv-v0", 16), steps=60),
    Case(
        "4 PettingZoo multiwalker", partial(ids, "pettingzoo/sisl/multiwalker-v9", 4), play_parallel
    ),
    Case("EnvPool CartPole 64", partial(batch, "envpool/CartPole-v1", 64), play_batch, 0.9, 3000),
    Case("EnvPool HalfCheetah 64", partial(batch, "envpool/HalfCheetah-v5", 64), play_batch, 0.9),
    Case("AtariVectorEnv Pong 4", partial(vector, "ALE/Pong-v5", 4), play_batch, 0.9, 1000),
    Case(
        "PufferLib native cartpole 64",
        partial(batch, "pufferlib/cartpole", 64),
        play_batch,
        0.9,
        3000,
    ),
    Case("PufferLib Serial CartPole 64", partial(serial, 64), play_batch, 0.9),
    Case("ManiSkill FMBAssembly1Easy", partial(ids, "maniskill/FMBAssembly1Easy-v1", 1), steps=60),
    Case("gymnax CartPole 64", partial(batch, "gymnax/CartPole-v1", 64), play_gymnax, 0.9, 2000),
]


def draw(adapter: Any, steps: int) -> list[Any]:
    """Random actions of all slots for every step, as the core gives them."""
    adapter.action_space.seed(0)
    drawn = []
    for _ in range(steps):
        stack = Stack(adapter.action_space, adapter.num_slots)
        for slot in range(adapter.num_slots):
            stack.write(slot, adapter.action_space.sample())
        drawn.append(stack.value.copy())
    return drawn


def play_adapter(adapter: Any, actions: list[Any]) -> None:
    seeds = [0] * adapter.num_slots
    size = len(getattr(adapter, "team", (1.0,)))
    adapter.reset(seeds)
    restarts = adapter.autoreset is Autoreset.CALLER
    alive = np.ones(adapter.num_slots, dtype=bool)
    for rows in actions:
        given = adapter.step(rows, None if alive.all() else alive)
        ended = given.terminated | given.truncated
        if restarts and ended.any():
            alive &= ~ended
            over = (~alive).reshape(-1, size).all(axis=1).repeat(size)
            if over.any():
                adapter.reset(seeds, over)
                alive |= over


def measure(case: Case, rounds: int) -> list[str]:
    envs = case.make()
    try:
        adapter = simulators.adapt(envs)
        actions = draw(adapter, case.steps)
        bare, ours = partial(case.play, envs, actions), partial(play_adapter, adapter, actions)
        turns = np.array([[timed(bare), timed(ours)] for _ in range(1 + rounds)][1:])
    finally:
        close_all(envs)
    steps = case.steps * adapter.num_slots
    rates = [f"{np.median(steps / seconds):.0f}" for seconds in turns.T]
    ratio = f"{np.median(turns[:, 0] / turns[:, 1]):.2f}"
    return [case.name, *rates, ratio, f"{case.wanted:.2f}"]


def timed(play: Callable[[], None]) -> float:
    start = time.perf_counter()
    play()
    return time.perf_counter() - start


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="part of a case's name")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    print(f"{machine_line()}, {options.rounds} rounds")
    rows = []
    for case in [case for case in CASES if options.only in case.name]:
        try:
            rows.append(measure(case, options.rounds))
        except Exception as error:  # of a simulator that is missing here, whatever its kind
            print(f"left out {case.name}: {type(error).__name__}: {error}")
    print_table(HEADER, rows)


if __name__ == "__main__":
    main()
