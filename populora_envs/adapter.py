"""The contract of a simulator adapter: formats in, formats out, and nothing else.

`adapt(envs: list) -> Adapter` takes all environments of one kind. An adapter moves no device, rescales
no action, counts and sums nothing: the core does that, once.
"""

from __future__ import annotations

import math
from contextlib import ExitStack, contextmanager
from enum import Enum
from numbers import Real
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from gymnasium import Space


class Autoreset(Enum):
    """Who begins the next episode of a slot."""

    CALLER = "caller"
    """The caller: `reset` can restart one slot alone."""
    SAME_STEP = "same-step"
    """The step that ends an episode returns the first observation of the next one."""
    NEXT_STEP = "next-step"
    """The step after the end only resets: no action, no reward."""


class Transition(NamedTuple):
    """What one step of all slots gives; rows of slots that do not act mean nothing."""

    observation: Any
    """`[N, *obs]` array or tensor, or a nested dict or tuple of such."""
    reward: np.ndarray
    """`[N]` float64."""
    terminated: np.ndarray
    """`[N]` bool."""
    truncated: np.ndarray
    """`[N]` bool."""


@runtime_checkable
class Adapter(Protocol):
    """A batch of N slots of one simulator.

    Attributes:
        num_slots: N.
        observation_space: of one slot, a gymnasium space.
        action_space: of one slot.
        autoreset: who begins the next episode.
        seeds_slots: whether `reset` can seed one slot alone.
        time_limit: most steps of an episode as far as the simulator tells, else None.

    It may have three more:

    - `notes`, strings: what users should know of these environments; each is said once in a warning.
    - `team`, a tuple of floats: so many slots in a row are the agents of one environment. One individual
      plays them all, they begin together, and the return of an episode is the sum over the agents
      of these weights times their returns. Without it every slot is on its own.
    - `info`, a function of a slot that returns what the simulator told beside observation and reward at
      the slot's last step, a dict. Numbers and small arrays in it reach descriptors of behaviour.
    """

    num_slots: int
    observation_space: Space[Any]
    action_space: Space[Any]
    autoreset: Autoreset
    seeds_slots: bool
    time_limit: int | None

    def reset(self, seeds: Sequence[int] | None = None, slots: np.ndarray | None = None) -> Any:
        """Begin episodes and return the observation of all slots, `[N, *obs]`.

        Args:
            seeds: one int per slot, N in all; None lets the simulator choose.
            slots: `[N]` bool, which slots begin anew; None means all. Only an adapter whose
                autoreset is CALLER is asked for some.
        """
        ...

    def step(self, actions: Any, slots: np.ndarray | None = None) -> Transition:
        """Advance the slots by one step.

        Args:
            actions: `[N, *act]` in the simulator's range, dtype and shape, nested where the space is.
            slots: `[N]` bool, those that act; None means all. The rows of the others hold a harmless
                action for adapters that must step every slot.
        """
        ...

    def close(self) -> None:
        """Free what the simulator holds. Calling it twice is harmless."""
        ...


def team_of(adapter: Adapter) -> tuple[float, ...]:
    """Return the weights of the slots that play together; one slot alone has weight 1."""
    team: tuple[float, ...] = getattr(adapter, "team", (1.0,))
    return team


MOST_INFO = 64
"""Most numbers of an array in an info that are kept."""


def info_numbers(info: Mapping[Any, Any]) -> dict[str, float | np.ndarray]:
    """Return the numbers and small arrays of numbers in what a simulator told, copied."""
    kept: dict[str, float | np.ndarray] = {}
    for name, value in info.items():
        if isinstance(value, (bool, int, float, np.number, np.bool_)):
            kept[str(name)] = float(value)
        elif (
            isinstance(value, np.ndarray) and value.dtype.kind in "biuf" and value.size <= MOST_INFO
        ):
            kept[str(name)] = value.copy()
    return kept


def reward_number(reward: Any) -> float:
    """Return one reward as a float; an array or tensor with one element counts as its element.

    Raises:
        TypeError: where it is no number (None, text).
        ValueError: where it has none or several elements.
    """
    if isinstance(reward, float):
        return reward
    shape = tuple(getattr(reward, "shape", ()))
    if math.prod(shape) != 1:
        message = f"the environment gave a reward of shape {shape}: a reward is one number"
        raise ValueError(message)
    number = reward.item() if hasattr(reward, "item") else reward
    if not isinstance(number, Real):
        message = f"the environment gave the reward {reward!r}: a reward is one number"
        raise TypeError(message)
    return float(number)


@contextmanager
def noted(note: str) -> Iterator[None]:
    """Add `note` to an error that comes out of the block."""
    try:
        yield
    except Exception as error:
        error.add_note(note)
        raise


def blame(error: BaseException, *slots: int) -> None:
    """Mark `error` as raised by one slot, or by one of several; the core adds who acted there."""
    error.populora_slots = slots  # type: ignore[attr-defined]


def blamed(error: BaseException) -> tuple[int, ...]:
    """Return the slots that `blame` marked, none where it did not."""
    slots: tuple[int, ...] = getattr(error, "populora_slots", ())
    return slots


def inside_of(env: Any) -> Any:
    """Return what an environment says lies below its wrappers, None where it does not or cannot say."""
    try:
        return getattr(env, "unwrapped", None)
    except Exception:  # of the environment's own, which plays without it
        return None


def close_all(things: Iterable[Any]) -> None:
    """Close what can be closed, last first, all of them also where one of them raises."""
    with ExitStack() as stack:
        for thing in things:
            close = getattr(thing, "close", None)
            if callable(close):
                stack.callback(close)
