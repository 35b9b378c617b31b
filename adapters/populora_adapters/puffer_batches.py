"""PufferLib's batches: its native environments, and vector environments that it steps as a whole."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from gymnasium import spaces

from populora_adapters.duck import DuckEnvs, read_space
from populora_envs.adapter import Autoreset, Transition
from populora_envs.spaces import leaves

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# What the sources of PufferLib 3.0.0 say of its native environments, by the names of their classes.
_NEXT_STEP = frozenset({"Connect4", "TripleTriad"})
"""Those that begin anew in the step after the end, whatever the action."""
_LIMITS = {"Cartpole": 200, "TripleTriad": 30}
"""After so many steps they begin anew and do not say so."""
_SILENT = frozenset(
    {
        *("Boids", "Checkers", "Convert", "Enduro", "Go", "GPUDrive", "Grid", "Moba", "NMMO3"),
        *("Rware", "School", "Snake", "Target", "Terraform", "TowerClimb"),
    }
)
"""Those that do not say of every end that it is one, many of them of none."""
_SHARED = frozenset(
    {
        *("Convert", "GPUDrive", "Moba", "NMMO3", "Rware", "School", "Snake", "Target"),
        *("Terraform", "TrashPickupEnv"),
    }
)
"""Those in which several agents live in one world."""
_BROKEN = {
    "Blastar": "once an episode has ended, it says so at every step",
    "PyCPR": "agents that have died stay in the world, and it says at every step that they end",
}

_RECEIVING, _IDLE, _TOLD = 3, 5, 6
"""States of `Multiprocessing` and its processes: RECV, MAIN and INFO in `pufferlib.vector`."""
_LOOKS = 1000
"""So often it is asked whether processes have done their step before it is asked whether they live."""


def action_space(env: Any) -> spaces.Space[Any]:
    """Return the action space of one environment, with the bounds that `ClipAction` clips to.

    That wrapper itself shows the largest numbers there are; a policy's numbers mapped onto these would
    all end at one bound or the other.
    """
    space = read_space(env, "action_space")
    while _is_endless(space) and hasattr(env, "env"):
        env = env.env
        space = read_space(env, "action_space")
    return _bounded(space)


def _bounded(space: spaces.Space[Any]) -> spaces.Space[Any]:
    """Return `space`, with infinite bounds where they are the largest numbers there are."""
    if isinstance(space, spaces.Box) and _is_endless(space):
        return spaces.Box(-np.inf, np.inf, space.shape, space.dtype.type)
    return space


def _is_endless(space: spaces.Space[Any]) -> bool:
    if not isinstance(space, spaces.Box) or space.dtype.kind != "f":
        return False
    return bool((space.high == np.finfo(space.dtype).max).any())


class Layout:
    """How an emulated environment lays an observation out in one row of numbers, often as bare bytes.

    Args:
        env: a `GymnasiumPufferEnv`.

    Attributes:
        space: of the observations of the environment inside.

    Raises:
        ValueError: where PufferLib loses some of the observation, or of the action.
    """

    def __init__(self, env: Any) -> None:
        self.space = read_space(env.env, "observation_space")
        self._dtype = np.dtype(env.obs_dtype)
        self._is_plain = isinstance(self.space, spaces.Box)
        row = env.single_observation_space
        size = row.dtype.itemsize * math.prod(row.shape)
        if not self._is_plain and self._dtype.itemsize > size:
            message = (
                f"PufferLib loses observations of {self.space}, of which it keeps {size} bytes: pass the "
                "environment inside (env.env), or put its observations in a Dict"
            )
            raise ValueError(message)
        if env.is_atn_emulated:
            _check_choices(read_space(env.env, "action_space"))

    def read(self, rows: np.ndarray) -> Any:
        """Return rows `[N, *row]` as nested arrays `[N, *obs]`."""
        return rows if self._is_plain else _unpack(self._values(rows), self.space)

    def read_one(self, rows: np.ndarray) -> Any:
        """Return the only one of `rows`, nested."""
        return rows[0] if self._is_plain else _unpack(self._values(rows)[0], self.space)

    def _values(self, rows: np.ndarray) -> np.ndarray:
        values: np.ndarray = np.ascontiguousarray(rows).view(self._dtype)
        return values.reshape(len(rows), *self._dtype.shape)


def _unpack(values: Any, space: spaces.Space[Any]) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: _unpack(values[key], part) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_unpack(values[f"f{i}"], part) for i, part in enumerate(space.spaces))
    return values


def _check_choices(space: spaces.Space[Any]) -> None:
    """Refuse packed actions other than choices that start at 0, which PufferLib reads wrongly."""
    for leaf in leaves(space):
        if not isinstance(leaf.space, spaces.Discrete) or leaf.space.start != 0:
            message = (
                f"PufferLib reads actions of {space} wrongly, for {leaf.space} is no choice from 0 on: "
                "pass the environment inside (env.env)"
            )
            raise ValueError(message)


class _Habits(NamedTuple):
    """How a batch begins episodes, and what to know of it."""

    autoreset: Autoreset
    time_limit: int | None
    notes: tuple[str, ...]


def _native_name(env: Any) -> str:
    """Return the name of the class among PufferLib's native environments, "" for others."""
    names = (c.__name__ for c in type(env).__mro__ if c.__module__.startswith("pufferlib.ocean."))
    return next(names, "")


def _native_habits(env: Any) -> _Habits:
    """Return those of a native environment; ValueError for one whose episodes nothing tells apart."""
    name = _native_name(env)
    if name in _BROKEN:
        message = f"PufferLib's {name} has no adapter: {_BROKEN[name]}"
        raise ValueError(message)
    late = name in _NEXT_STEP
    autoreset = Autoreset.NEXT_STEP if late else Autoreset.SAME_STEP
    return _Habits(autoreset, _LIMITS.get(name), tuple(_native_notes(name)))


def _native_notes(name: str) -> list[str]:
    notes = [
        "PufferLib seeds a native environment as a whole, and those in C share one stream of random "
        "numbers: the same seed gives the same episodes only to the same actions in a batch of the "
        "same size"
    ]
    if name in _LIMITS:
        notes.append(
            f"{name} begins anew after {_LIMITS[name]} steps and does not say so: with a larger horizon= "
            "a return is that of several games"
        )
    elif name in _SILENT:
        notes.append(
            f"{name} does not say of every end that it is one: a return may be that of several games in "
            "a row, as long as horizon= in all"
        )
    if name in _SHARED:
        notes.append(
            f"several agents of {name} live in one world: each is a slot, another individual plays each, "
            "and num_envs counts agents"
        )
    return notes


class Batch:
    """A native environment or a vector environment, whose slots begin episodes by themselves.

    It is reset as a whole, from one seed. Its arrays are buffers that every step fills anew.

    Args:
        env: the batch.
        is_native: whether it is a `PufferEnv` or consists of such.

    Raises:
        ValueError: where it would give wrong numbers.
    """

    seeds_slots = False

    def __init__(self, env: Any, *, is_native: bool) -> None:
        driver = env.driver_env
        self._env, self._is_closed = env, False
        self.num_slots = int(env.num_agents)
        self._layout = None if is_native else Layout(driver)
        if self._layout is None:
            habits = _native_habits(driver)
            self.observation_space = read_space(env, "single_observation_space")
            self.action_space = _bounded(read_space(env, "single_action_space"))
        else:
            limit = DuckEnvs([driver.env]).time_limit
            habits = _Habits(Autoreset.NEXT_STEP, limit, ())
            self.observation_space, self.action_space = self._layout.space, action_space(driver)
        self.autoreset, self.time_limit, self.notes = habits
        self._is_packed = not is_native and bool(driver.is_atn_emulated)

    def reset(self, seeds: Sequence[int] | None = None, slots: np.ndarray | None = None) -> Any:
        """Begin episodes in all slots, from the first of the seeds."""
        del slots
        return self._read(self._begin(0 if seeds is None else int(seeds[0])))

    def _begin(self, seed: int) -> Any:
        return self._env.reset(seed=seed)[0]

    def step(self, actions: Any, slots: np.ndarray | None = None) -> Transition:
        """Step all slots."""
        del slots
        given = np.ascontiguousarray(actions, dtype=np.int32 if self._is_packed else None)
        observation, reward, terminated, truncated, *_ = self._step(given)
        return Transition(
            self._read(observation),
            np.array(reward, dtype=np.float64),
            np.array(terminated, dtype=np.bool_),
            np.array(truncated, dtype=np.bool_),
        )

    def _step(self, actions: np.ndarray) -> tuple[Any, ...]:
        return self._env.step(actions)  # type: ignore[no-any-return]

    def _read(self, observation: Any) -> Any:
        return observation if self._layout is None else self._layout.read(observation)

    def close(self) -> None:
        """Close the batch, once: the second time it would free its memory again."""
        if not self._is_closed:
            self._is_closed = True
            self._env.close()


class Processes(Batch):
    """PufferLib's `Multiprocessing`.

    Its processes answer with infos or without; a reset would wait for ever for an answer that has been
    read already, and a step for one of a process that has died. Here neither happens.
    """

    def __init__(self, env: Any, *, is_native: bool) -> None:
        if env.agents_per_batch != env.num_agents:
            message = (
                f"the vector environment steps {env.agents_per_batch} of its {env.num_agents} agents at "
                "a time: leave batch_size out"
            )
            raise ValueError(message)
        super().__init__(env, is_native=is_native)
        if np.any(getattr(self.action_space, "start", 0)):
            message = (
                f"PufferLib's vector environments take choices from 0 on, not {self.action_space}"
            )
            raise ValueError(message)
        self.notes = (
            *self.notes,
            "PufferLib's Multiprocessing seeds its processes so that their slots overlap: some begin with "
            "the same episode as others; Serial has no such slots",
        )

    def _begin(self, seed: int) -> Any:
        self._check_lives()
        if self._env.flag != _RECEIVING:
            states = self._env.buf["semaphores"]
            states[states == _TOLD] = _IDLE
        return self._exchange(self._env.async_reset, seed)[0]

    def _step(self, actions: np.ndarray) -> tuple[Any, ...]:
        return self._exchange(self._env.send, actions)

    def _exchange(self, send: Callable[[Any], None], what: Any) -> tuple[Any, ...]:
        send(what)
        states, looks = self._env.buf["semaphores"], 0
        while (states < _IDLE).any():
            looks += 1
            if looks % _LOOKS == 0:
                self._check_lives()
            time.sleep(0)
        return self._env.recv()  # type: ignore[no-any-return]

    def _check_lives(self) -> None:
        dead = [i for i, process in enumerate(self._env.processes) if not process.is_alive()]
        if dead:
            message = (
                f"process {dead[0]} of PufferLib's Multiprocessing has died: its error is above"
            )
            raise RuntimeError(message)
