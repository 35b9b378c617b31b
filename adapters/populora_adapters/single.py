"""What the adapters of single environments share: one Python loop over N of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from populora_adapters.clients import check_clients, check_worlds
from populora_envs.adapter import Autoreset, Transition, blame, close_all, reward_number
from populora_envs.slot_actions import make_splitter
from populora_envs.spaces import check_same
from populora_envs.stacks import Stack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from gymnasium import Space

    Step = tuple[Any, Any, Any, Any]
    Columns = tuple[Sequence[Any], Sequence[Any], Sequence[Any], Sequence[Any]]

_LOOKS = 20
"""Steps over which environments are watched for an array that they share."""

_NUMBERS = frozenset({float, int, np.float64, np.float32, np.int64, np.int32})


class SingleEnvs:
    """N single environments, each a slot; a simulator says how one of them begins and what steps give.

    Args:
        envs: of one kind.
        spaces: the observation space and the action space of each.
        seeds_slots: whether every one can be seeded before an episode.
        time_limit: most steps of an episode, None where they tell none.

    Raises:
        ValueError: where their spaces differ, or two share one PyBullet client.
    """

    autoreset = Autoreset.CALLER

    def __init__(
        self,
        envs: list[Any],
        spaces: Sequence[tuple[Space[Any], Space[Any]]],
        *,
        seeds_slots: bool,
        time_limit: int | None,
    ) -> None:
        check_clients(envs)
        self.num_slots = len(envs)
        self.observation_space, self.action_space = spaces[0]
        for slot, (observation_space, action_space) in enumerate(spaces):
            check_same(self.observation_space, observation_space, slot, 0, "observation")
            check_same(self.action_space, action_space, slot, 0, "action")
        self.seeds_slots, self.time_limit = seeds_slots, time_limit
        self._envs = envs
        self._steps = [env.step for env in envs]
        self._split = make_splitter(self.action_space)
        self._everyone = range(self.num_slots)
        self._unbegun = set(self._everyone)
        self._last: tuple[Sequence[int], list[Any]] = ((), [])
        self._looks = _LOOKS
        self._shared: dict[int, tuple[Any, np.ndarray]] = {}
        self._stack = Stack(self.observation_space, self.num_slots)
        self._reward = np.zeros(self.num_slots)
        self._terminated = np.zeros(self.num_slots, dtype=bool)
        self._truncated = np.zeros(self.num_slots, dtype=bool)

    def _begin(self, slot: int, seed: int | None) -> Any:
        """Begin an episode in one slot and return its first observation."""
        raise NotImplementedError

    def _read(self, result: Any) -> Step:
        """Return observation, reward, terminated, truncated of what one step returned."""
        raise NotImplementedError

    def _columns(self, results: list[Any]) -> Columns | None:
        """Read the results of several slots at once; None where one of them is out of the ordinary."""
        raise NotImplementedError

    def reset(self, seeds: Sequence[int] | None = None, slots: np.ndarray | None = None) -> Any:
        """Begin episodes in `slots` and return the observations of all."""
        i, rows = 0, self._everyone if slots is None else np.flatnonzero(slots).tolist()
        try:
            for i in rows:
                seed = None if seeds is None else seeds[i]
                self._stack.write(i, self._begin(i, seed))
        except Exception as error:
            blame(error, i)
            raise
        if self._unbegun:
            self._unbegun.difference_update(rows)
            begun = sorted(set(self._everyone) - self._unbegun)
            check_worlds({i: self._envs[i] for i in begun})
        return self._stack.value

    def step(self, actions: Any, slots: np.ndarray | None = None) -> Transition:
        """Step the environments of `slots`."""
        rows: Sequence[int] = self._everyone
        steps = self._steps
        if slots is not None:
            rows = np.flatnonzero(slots).tolist()
            steps = [steps[i] for i in rows]
        results: list[Any] = []
        try:
            for step, action in zip(steps, self._split(actions, rows), strict=True):
                results.append(step(action))
        except Exception as error:
            if len(results) < len(rows):
                blame(error, rows[len(results)])
            raise
        self._last = rows, results
        return self._transition(results, rows)

    def info(self, slot: int) -> dict[Any, Any]:
        """Return the info that a slot gave when it was last stepped, empty where it gives none."""
        rows, results = self._last
        result = results[rows.index(slot)]
        # A dm_env TimeStep is a tuple too, and ends with its observation.
        info = result[-1] if type(result) is tuple else None
        return info if isinstance(info, dict) else {}

    def _transition(self, results: list[Any], rows: Sequence[int]) -> Transition:
        columns = self._columns(results)
        if columns is None:
            columns = _transposed(_each(self._read, results, rows))
        observations, rewards, terminated, truncated = columns
        if self._looks:
            self._looks -= 1
            self._check_apart(observations, rows)
        if not self._stack.fill(observations, rows):
            _each(self._write_one, zip(rows, observations, strict=True), rows)
        if not _NUMBERS.issuperset(map(type, rewards)):
            rewards = _each(reward_number, rewards, rows)
        where: Any = slice(None) if rows is self._everyone else rows
        self._reward[where] = rewards
        self._terminated.fill(False)
        self._truncated.fill(False)
        if not _none(terminated):
            self._terminated[where] = _each(bool, terminated, rows)
        if not _none(truncated):
            self._truncated[where] = _each(bool, truncated, rows)
        return Transition(self._stack.value, self._reward, self._terminated, self._truncated)

    def _check_apart(self, observations: Sequence[Any], rows: Sequence[int]) -> None:
        """Refuse environments that write into one array between them, as one made in their class."""
        places: dict[int, int] = {}
        for row, seen in zip(rows, observations, strict=True):
            first = places.setdefault(id(seen), row)
            if first == row or not isinstance(seen, np.ndarray):
                continue
            _, before = self._shared.setdefault(id(seen), (seen, seen.copy()))
            if (before != seen).any():
                message = (
                    f"environments {first} and {row} show one array between them and write into it: "
                    "make it in __init__ (self.name = ...) instead of in the class, or return copies"
                )
                raise ValueError(message)

    def _write_one(self, place: tuple[int, Any]) -> None:
        self._stack.write(*place)

    def close(self) -> None:
        """Close every environment that can be closed."""
        close_all(self._envs)


def _none(flags: Sequence[Any]) -> bool:
    """Return whether all flags are False for sure."""
    try:
        return set(flags) == {False}
    except TypeError:  # arrays and tensors
        return False


def _each(function: Callable[[Any], Any], values: Iterable[Any], rows: Sequence[int]) -> list[Any]:
    """Return ``function(value)`` of each slot; an error is blamed on its slot."""
    done: list[Any] = []
    try:
        for value in values:
            done.append(function(value))
    except Exception as error:
        blame(error, rows[len(done)])
        raise
    return done


def _transposed(steps: list[Step]) -> Columns:
    observations, rewards, terminated, truncated = zip(*steps, strict=True)
    return observations, rewards, terminated, truncated
