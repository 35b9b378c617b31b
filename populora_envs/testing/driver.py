"""Driving an adapter with random actions, and checking the form of everything it gives."""

from __future__ import annotations

import copy
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from populora_envs.adapter import Autoreset, Transition, team_of
from populora_envs.spaces import Encoder, at, is_text, leaves, rebuild, to_numpy
from populora_envs.stacks import Stack
from populora_envs.testing.ledger import Ledger
from populora_envs.testing.rules import require

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gymnasium import Space

    from populora_envs.adapter import Adapter

MOST_ACTIONS = 1021
"""Most actions that are drawn. A prime number, so whatever the number of slots, no step is like the last."""

PATIENCE = 1.0
"""Seconds after which nobody waits any longer for a time limit to be reached."""


class ActionTable:
    """Random actions of one slot, always the same ones.

    Args:
        space: of the actions of one slot.
        size: how many are drawn, at most `MOST_ACTIONS`.
    """

    def __init__(self, space: Space[Any], size: int) -> None:
        self.size = min(size, MOST_ACTIONS)
        self._space = copy.deepcopy(space)
        self._space.seed(0)
        stack = Stack(self._space, self.size)
        for row in range(self.size):
            stack.write(row, self._space.sample())
        self._columns = {leaf.path: at(stack.value, leaf.path) for leaf in leaves(space)}

    def __getitem__(self, rows: np.ndarray) -> Any:
        """Return the actions with these numbers, which go round, as a batch of their own."""
        picked = {path: column[rows % self.size] for path, column in self._columns.items()}
        return rebuild(self._space, picked)


class Moment(NamedTuple):
    """Copies of what one step gave; zeros in slots that did not act."""

    observation: np.ndarray
    """Encoded."""
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray

    @property
    def ended(self) -> np.ndarray:
        """`[N]` bool, where an episode ended."""
        ended: np.ndarray = self.terminated | self.truncated
        return ended


class Driver:
    """Resets and steps an adapter as its contract says, and checks the form of all that comes.

    Each restart of a slot has a seed of its own, so two drives with the same actions are equal where
    the slots can be seeded.

    Attributes:
        acting: `[N]` bool, the slots in an episode. Where the caller resets, one that has ended rests
            until its whole team has.
        ledger: the episodes so far.
        begun: the encoded observations with which the episodes of all slots began.
        seconds: spent in the simulator.
    """

    def __init__(self, adapter: Adapter) -> None:
        self.adapter = adapter
        self.count, self.team = adapter.num_slots, len(team_of(adapter))
        self.acting = np.zeros(self.count, dtype=bool)
        self.ledger = Ledger(self.count, adapter.autoreset)
        self.seconds = 0.0
        self._encoder = Encoder(adapter.observation_space)
        self._numbers = [
            leaf for leaf in leaves(adapter.observation_space) if not is_text(leaf.space)
        ]
        self._buffer = self._encoder.allocate(self.count)
        self._episodes = np.zeros(self.count, dtype=np.int64)
        self.begun = self.shown

    def team_mask(self, number: int) -> np.ndarray:
        """Return the slots of a team, `[N]` bool; of one slot where slots are on their own."""
        slots = np.zeros(self.count, dtype=bool)
        slots[number * self.team : (number + 1) * self.team] = True
        return slots

    @property
    def shown(self) -> np.ndarray:
        """A copy of the encoded observations of all slots."""
        return self._buffer[0].copy()

    @property
    def over(self) -> np.ndarray:
        """`[N]` bool, the slots of teams in which nobody acts."""
        resting: np.ndarray = ~self.acting.reshape(-1, self.team).any(axis=1).repeat(self.team)
        return resting

    def begin(self) -> None:
        """Reset all slots, each to a seed of its own."""
        self.reset([1000 * slot for slot in range(self.count)])

    def reset(self, seeds: Sequence[int] | None, slots: np.ndarray | None = None) -> np.ndarray:
        """Reset `slots`, None means all, and return a copy of all encoded observations."""
        mask, given = _copied(slots), None if seeds is None else list(seeds)
        start = perf_counter()
        observation = self.adapter.reset(given, mask)
        self.seconds += perf_counter() - start
        require(
            _is_same(mask, slots) and (given is None or given == list(seeds or ())),
            "reset leaves the seeds and the mask that it is given as they are",
        )
        self.ledger.reset(slots)
        begun = np.ones_like(self.acting) if slots is None else slots
        self.acting = self.acting | begun
        shown = self._encoded(observation, "reset")
        self.begun[begun] = shown[begun]
        return shown

    def step(self, actions: Any) -> Moment:
        """Step the slots that act."""
        asked = None if self.acting.all() else self.acting
        mask = _copied(asked)
        start = perf_counter()
        given = self.adapter.step(actions, mask)
        self.seconds += perf_counter() - start
        require(
            isinstance(given, Transition), f"step gives a Transition, not {type(given).__name__}"
        )
        require(_is_same(mask, asked), "step leaves the mask that it is given as it is")
        kinds = {"reward": np.float64, "terminated": np.bool_, "truncated": np.bool_}
        for name, dtype in kinds.items():
            _check_array(getattr(given, name), f"step gives {name}", self.count, dtype)
        return self._noted(self._encoded(given.observation, "step"), given)

    def _noted(self, observation: np.ndarray, given: Transition) -> Moment:
        self.ledger.step(given.reward, given.terminated, given.truncated, self.acting)
        moment = Moment(
            observation, given.reward.copy(), given.terminated.copy(), given.truncated.copy()
        )
        for values in moment:
            values[~self.acting] = 0
        if self.adapter.autoreset is Autoreset.CALLER:
            self.acting = self.acting & ~moment.ended
        return moment

    def restart(self, slots: np.ndarray) -> None:
        """Reset whole teams, each to a new seed, and check that the others stay where they are."""
        before, stay = self.shown, self.acting & ~slots
        self._episodes[slots] += 1
        after = self.reset([1000 * i + int(e) for i, e in enumerate(self._episodes)], slots)
        require(
            np.array_equal(after[stay], before[stay], equal_nan=True),
            f"a reset of the slots {np.flatnonzero(slots).tolist()} leaves the observations of others",
        )

    def restart_over(self) -> None:
        """Restart who has ended, where that is up to the caller."""
        over = self.over
        if over.any():
            self.restart(over)

    def _encoded(self, observation: Any, method: str) -> np.ndarray:
        for leaf in self._numbers:
            dtype, wanted = to_numpy(at(observation, leaf.path)).dtype, np.dtype(leaf.space.dtype)
            require(
                np.can_cast(dtype, wanted, "same_kind"),
                f"{method} gives observations of the space's dtype {wanted}"
                f"{' at ' + str(list(leaf.path)) if leaf.path else ''}, not {dtype}",
            )
        try:
            self._encoder.write(observation, self._buffer)
        except ValueError as error:
            message = f"the adapter breaks its contract: {method} gives [N, *obs]: {error}"
            raise ValueError(message) from error
        return self.shown


def _copied(mask: np.ndarray | None) -> np.ndarray | None:
    return None if mask is None else mask.copy()


def _is_same(mask: np.ndarray | None, wanted: np.ndarray | None) -> bool:
    return mask is None or wanted is None or np.array_equal(mask, wanted)


def _check_array(values: Any, what: str, count: int, dtype: type[np.generic]) -> None:
    shape, given = getattr(values, "shape", None), getattr(values, "dtype", type(values).__name__)
    require(
        isinstance(values, np.ndarray) and shape == (count,) and given == dtype,
        f"{what} as a NumPy array of shape ({count},) and dtype {dtype.__name__}, not "
        f"{type(values).__name__} of {shape} and {given}",
    )


class Drive(NamedTuple):
    """What a drive gave."""

    moments: list[Moment]
    """Of the steps that were asked for."""
    ledger: Ledger
    """Of all steps."""
    after_ends: list[tuple[int, float, bool]]
    """Slot, reward and end of every step that follows the end of an episode in its slot."""
    num_unpaid: int
    """Rewards of 0."""


def drive(
    adapter: Adapter,
    table: ActionTable,
    steps: int,
    *,
    forced_at: int | None = None,
    until: int = 0,
) -> Drive:
    """Play `steps` steps and restart who ends.

    Args:
        adapter: what is driven.
        table: the actions.
        steps: whose moments are returned.
        forced_at: before this step the first team is restarted too.
        until: go on to so many steps while that takes less than `PATIENCE`.
    """
    driver = Driver(adapter)
    driver.begin()
    moments: list[Moment] = []
    after, unpaid, ended, start = [], 0, driver.over, perf_counter()
    for number in range(max(steps, until)):
        if number >= steps and perf_counter() - start > PATIENCE:
            break
        if number == forced_at:
            driver.restart(driver.team_mask(0))
        moment = driver.step(table[number * driver.count + np.arange(driver.count)])
        if number < steps:
            moments.append(moment)
        after += [
            (slot, float(moment.reward[slot]), bool(moment.ended[slot]))
            for slot in np.flatnonzero(ended).tolist()
        ]
        unpaid += int(np.count_nonzero(moment.reward == 0.0))
        ended = moment.ended
        driver.restart_over()
    return Drive(moments, driver.ledger, after, unpaid)
