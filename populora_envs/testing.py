"""A check for whoever writes an adapter: does it keep the contract of `populora_envs.adapter`?"""

from __future__ import annotations

import copy
import dataclasses
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from gymnasium import Space

from populora_envs import simulators
from populora_envs.adapter import Adapter, Autoreset, Transition, close_all
from populora_envs.sources import as_factory, is_single
from populora_envs.spaces import Encoder, Stack, at, is_text, leaves, to_numpy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


@dataclasses.dataclass(frozen=True)
class AdapterReport:
    """What `check_adapter` found."""

    adapter: str
    """Name of the adapter's class."""
    num_slots: int
    observation_space: Space[Any]
    action_space: Space[Any]
    autoreset: Autoreset
    seeds_slots: bool
    time_limit: int | None
    num_ends: int
    """Episodes that ended while it was watched; with none, the ends were not checked."""


def check_adapter(
    make_env: Callable[[], Any] | str, num_envs: int = 2, steps: int = 50
) -> AdapterReport:
    """Drive the adapter of an environment with random actions and check what it gives.

    Args:
        make_env: an id, or a function or class that makes one environment, a single one or a vector
            environment; the latter is made once.
        num_envs: single environments to make; with two or more, slots are checked against each other.
        steps: to drive, enough for some episodes to end.

    Raises:
        ValueError: where the contract is broken, with the rule in its message. What the simulator
            itself raises comes out as it is.

    Example:
        >>> check_adapter("CartPole-v1").seeds_slots
        True
    """
    envs = _make(make_env, num_envs)
    try:
        adapter = simulators.find_adapter(envs[0])(envs)
        _check_attributes(adapter, envs)
        num_ends = _check_behaviour(adapter, steps)
    except BaseException:
        close_all(envs)
        raise
    adapter.close()
    _close_again(adapter)
    return AdapterReport(
        adapter=type(adapter).__name__,
        num_slots=adapter.num_slots,
        observation_space=adapter.observation_space,
        action_space=adapter.action_space,
        autoreset=adapter.autoreset,
        seeds_slots=adapter.seeds_slots,
        time_limit=adapter.time_limit,
        num_ends=num_ends,
    )


def _make(make_env: Callable[[], Any] | str, count: int) -> list[Any]:
    make = as_factory(make_env)
    if make is None:
        message = f"make_env is an id, or a function or class that makes one, not {make_env!r}"
        raise TypeError(message)
    envs = [make()]
    if is_single(envs[0]):
        envs.extend(make() for _ in range(count - 1))
    return envs


def _require(condition: object, rule: str) -> None:
    if not condition:
        message = f"the adapter breaks its contract: {rule}"
        raise ValueError(message)


def _check_attributes(adapter: Any, envs: list[Any]) -> None:
    wanted = [name for name in Adapter.__annotations__ if not hasattr(adapter, name)]
    wanted += [n for n in ("reset", "step", "close") if not callable(getattr(adapter, n, None))]
    _require(not wanted, f"it lacks {', '.join(wanted)}")
    count = adapter.num_slots
    _require(_is_count(count), f"num_slots is a positive int, not {count!r}")
    _require(
        len(envs) == 1 or count == len(envs),
        f"{len(envs)} single environments have {len(envs)} slots, not {count}",
    )
    for name in ("observation_space", "action_space"):
        space = getattr(adapter, name)
        _require(isinstance(space, Space), f"{name} is a gymnasium space, not {space!r}")
    _require(isinstance(adapter.autoreset, Autoreset), "autoreset is one of Autoreset")
    _require(type(adapter.seeds_slots) is bool, "seeds_slots is a bool")
    _require(
        adapter.autoreset is Autoreset.CALLER or not adapter.seeds_slots,
        "seeds_slots says that one slot can be reset alone, so its autoreset is CALLER",
    )
    limit = adapter.time_limit
    _require(
        limit is None or _is_count(limit), f"time_limit is a positive int or None, not {limit!r}"
    )


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _close_again(adapter: Adapter) -> None:
    try:
        adapter.close()
    except Exception as error:
        message = (
            f"the adapter breaks its contract: a second close is harmless, it raised {error!r}"
        )
        raise ValueError(message) from error


class _Moment(NamedTuple):
    """Copies of what one step gave."""

    observation: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray

    @property
    def ended(self) -> np.ndarray:
        ended: np.ndarray = self.terminated | self.truncated
        return ended


class _Driver:
    """Resets and steps an adapter, and checks the form of everything it gives.

    Each restart of a slot has a seed of its own, so two drives with the same actions are equal where
    the slots can be seeded.
    """

    def __init__(self, adapter: Adapter) -> None:
        self.adapter = adapter
        self.count = adapter.num_slots
        self.encoder = Encoder(adapter.observation_space)
        self.steps: list[_Moment] = []
        self._numbers = [
            leaf for leaf in leaves(adapter.observation_space) if not is_text(leaf.space)
        ]
        self._buffer = self.encoder.allocate(self.count)
        self._episodes = np.zeros(self.count, dtype=np.int64)

    def reset(self, seeds: Sequence[int] | None, slots: np.ndarray | None = None) -> np.ndarray:
        mask = None if slots is None else slots.copy()
        return self._encoded(self.adapter.reset(seeds, mask), "reset")

    def step(self, actions: Any, slots: np.ndarray | None = None) -> _Moment:
        given = self.adapter.step(copy.deepcopy(actions), slots)
        _require(
            isinstance(given, Transition), f"step gives a Transition, not {type(given).__name__}"
        )
        kinds = {"reward": np.float64, "terminated": np.bool_, "truncated": np.bool_}
        for name, dtype in kinds.items():
            _check_array(getattr(given, name), f"step gives {name}", self.count, dtype)
        observation = self._encoded(given.observation, "step")
        flags = given.reward.copy(), given.terminated.copy(), given.truncated.copy()
        self.steps.append(_Moment(observation, *flags))
        return self.steps[-1]

    def restart(self, slots: np.ndarray) -> None:
        """Reset some slots, each to a new seed, and check that the others stay where they are."""
        before = self._buffer[0].copy()
        self._episodes[slots] += 1
        after = self.reset([1000 * i + int(e) for i, e in enumerate(self._episodes)], slots)
        stay = ~slots
        _require(
            np.array_equal(after[stay], before[stay], equal_nan=True),
            f"a reset of the slots {np.flatnonzero(slots).tolist()} leaves the observations of others",
        )

    def _encoded(self, observation: Any, method: str) -> np.ndarray:
        for leaf in self._numbers:
            dtype, wanted = to_numpy(at(observation, leaf.path)).dtype, np.dtype(leaf.space.dtype)
            _require(
                np.can_cast(dtype, wanted, "same_kind"),
                f"{method} gives observations of the space's dtype {wanted}"
                f"{' at ' + str(list(leaf.path)) if leaf.path else ''}, not {dtype}",
            )
        try:
            self.encoder.write(observation, self._buffer)
        except ValueError as error:
            message = f"the adapter breaks its contract: {method} gives [N, *obs]: {error}"
            raise ValueError(message) from error
        return self._buffer[0].copy()


def _check_array(values: Any, what: str, count: int, dtype: type[np.generic]) -> None:
    shape, given = getattr(values, "shape", None), getattr(values, "dtype", type(values).__name__)
    _require(
        isinstance(values, np.ndarray) and shape == (count,) and given == dtype,
        f"{what} as a NumPy array of shape ({count},) and dtype {dtype.__name__}, not "
        f"{type(values).__name__} of {shape} and {given}",
    )


def _draw_actions(adapter: Adapter, steps: int) -> list[Any]:
    """Return random actions `[N, *act]`, nested, for every step."""
    space = copy.deepcopy(adapter.action_space)
    space.seed(0)
    drawn = []
    for _ in range(steps):
        stack = Stack(space, adapter.num_slots)
        for slot in range(adapter.num_slots):
            stack.write(slot, space.sample())
        drawn.append(stack.value)
    return drawn


def _drive(adapter: Adapter, actions: Iterable[Any], forced_at: int | None = None) -> list[_Moment]:
    """Return the steps of a play that restarts who ends, and slot 0 before step `forced_at`."""
    driver = _Driver(adapter)
    driver.reset([1000 * slot for slot in range(adapter.num_slots)])
    for number, action in enumerate(actions):
        if number == forced_at:
            driver.restart(_first_slot(adapter))
        ended = driver.step(action).ended
        if adapter.autoreset is Autoreset.CALLER and ended.any():
            driver.restart(ended)
    return driver.steps


def _first_slot(adapter: Adapter) -> np.ndarray:
    slots = np.zeros(adapter.num_slots, dtype=bool)
    slots[0] = True
    return slots


def _check_behaviour(adapter: Adapter, steps: int) -> int:
    """Return how many episodes ended."""
    actions = _draw_actions(adapter, steps)
    played = _drive(adapter, actions)
    if adapter.autoreset is Autoreset.NEXT_STEP:
        _check_next_step(played)
    elif adapter.autoreset is Autoreset.SAME_STEP:
        _check_same_step(played)
    else:
        _check_restart(adapter, actions, played)
    if adapter.seeds_slots:
        _check_seeds(adapter, actions, played)
    driver = _Driver(adapter)
    driver.reset(None)
    driver.step(actions[0], _first_slot(adapter))
    return int(sum(moment.ended.sum() for moment in played))


def _after_ends(played: list[_Moment]) -> list[tuple[int, float, bool]]:
    """Return slot, reward and end of every step that follows the end of an episode."""
    found = []
    for before, now in pairwise(played):
        slots = np.flatnonzero(before.ended)
        found += [(int(i), float(now.reward[i]), bool(now.ended[i])) for i in slots]
    return found


def _check_next_step(played: list[_Moment]) -> None:
    for slot, reward, ended in _after_ends(played):
        _require(
            reward == 0.0 and not ended,
            "with autoreset NEXT_STEP the step after an end only resets, pays 0 and ends nothing; in "
            f"slot {slot} it paid {reward} and {'ended' if ended else 'did not end'}",
        )


def _check_same_step(played: list[_Moment]) -> None:
    after = _after_ends(played)
    silent = all(reward == 0.0 and not ended for _, reward, ended in after)
    unpaid = sum(int((moment.reward == 0.0).sum()) for moment in played)
    _require(
        not after or not silent or unpaid > len(after),
        "with autoreset SAME_STEP the step after an end is one of the next episode; here only these "
        f"{len(after)} steps paid 0 and ended nothing, as the reset steps of NEXT_STEP do",
    )


def _check_restart(adapter: Adapter, actions: list[Any], played: list[_Moment]) -> None:
    """Check that a restart of slot 0 does not touch the others, then or later."""
    if adapter.num_slots == 1:
        return
    forced = _drive(adapter, actions, forced_at=len(actions) // 2)
    rule = "a reset of slot 0 alone leaves the episodes of the other slots as they are"
    if adapter.seeds_slots:
        _require(_same(played, forced, slice(1, None)), rule)


def _check_seeds(adapter: Adapter, actions: list[Any], played: list[_Moment]) -> None:
    again = _drive(adapter, actions)
    _require(
        _same(played, again, slice(None)),
        "with seeds_slots the same seeds and actions give the same observations, rewards and ends",
    )
    driver = _Driver(adapter)
    seeds = [7] * adapter.num_slots
    begun = driver.reset(seeds)
    _require(
        all(np.array_equal(row, begun[0], equal_nan=True) for row in begun),
        "with seeds_slots an episode depends on its seed, not on its slot",
    )
    driver.step(actions[0])
    alone = driver.reset(seeds, _first_slot(adapter))
    _require(
        np.array_equal(alone[0], begun[0], equal_nan=True),
        "with seeds_slots a slot that is reset alone begins as its seed says",
    )


def _same(played: list[_Moment], again: list[_Moment], slots: slice) -> bool:
    """Return whether two plays are equal in some slots."""
    return all(
        np.array_equal(one[slots], other[slots], equal_nan=True)
        for before, after in zip(played, again, strict=True)
        for one, other in zip(before, after, strict=True)
    )
