"""The action of one slot, taken out of a batch of actions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from gymnasium.spaces import Dict, Discrete, Space, Tuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    Picker: TypeAlias = Callable[[Any, int], Any]
    Splitter: TypeAlias = Callable[[Any, Sequence[int]], Iterable[Any]]


def slot_action(space: Space[Any], actions: Any, index: int) -> Any:
    """Return the action of row `index` alone, as the simulator takes it.

    Args:
        space: the action space of one slot.
        actions: arrays `[B, *act]`, nested as the space is.
        index: the row.

    Returns:
        An integer scalar for Discrete, an array for Box, MultiDiscrete and MultiBinary (a view
        of the row), a tuple for Tuple, a dict for Dict.
    """
    return make_picker(space)(actions, index)


def make_picker(space: Space[Any]) -> Picker:
    """Return a function `(actions, index) -> action` that does the same, prepared once."""
    if isinstance(space, Discrete):
        return _scalar
    if isinstance(space, Tuple):
        return _tuple_picker([make_picker(part) for part in space.spaces])
    if isinstance(space, Dict):
        return _dict_picker({key: make_picker(part) for key, part in space.spaces.items()})
    return _row


def make_splitter(space: Space[Any]) -> Splitter:
    """Return a function `(actions, rows) -> one action per row`, in the order of `rows`.

    Args of that function are a batch of actions and the rows that are wanted, a `range` where these
    are all.
    """
    pick = make_picker(space)
    is_array = not isinstance(space, (Dict, Tuple)) and (space.shape or pick is _scalar)

    def split(actions: Any, rows: Sequence[int]) -> Iterable[Any]:
        if is_array:
            # Iterating gives scalars of `[B]` and rows of `[B, ...]`.
            return actions if isinstance(rows, range) else actions[rows]  # type: ignore[no-any-return]
        return [pick(actions, row) for row in rows]

    return split


def _scalar(actions: Any, index: int) -> Any:
    return actions[index]


def _row(actions: Any, index: int) -> Any:
    # The ellipsis keeps an array where the space has no dimension.
    return actions[index, ...]


def _tuple_picker(pickers: list[Picker]) -> Picker:
    def pick(actions: Any, index: int) -> tuple[Any, ...]:
        return tuple([picker(part, index) for picker, part in zip(pickers, actions, strict=True)])

    return pick


def _dict_picker(pickers: dict[str, Picker]) -> Picker:
    def pick(actions: Any, index: int) -> dict[str, Any]:
        return {key: picker(actions[key], index) for key, picker in pickers.items()}

    return pick
