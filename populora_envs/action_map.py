"""From what a head or a user's function gives to a batch of actions the simulator takes."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple

from populora_envs.action_arrays import all_rows, fit_shape, to_array, whole_rows
from populora_envs.box_map import BoxMap

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from populora_envs.rescale import Range

    BoolArray: TypeAlias = NDArray[np.bool_]
    Mapped: TypeAlias = tuple[Any, BoolArray]


class ActionMap:
    """Turns the actions of a batch of slots into what the simulator takes.

    Discrete and MultiDiscrete get indices from 0, `start` is added. A Box is mapped per dimension
    in float64 from `from_range` onto `to_range`, clipped to its finite bounds, rounded where its
    dtype is whole and cast. A dimension with an infinite bound passes through untouched unless
    `to_range` says otherwise. Tuple and Dict map each part.

    Args:
        space: the action space of one slot.
        head_range: the range of the head; it wins over `from_range` unless it is None.
        from_range: what the numbers for a Box lie in; None where they are in the simulator's
            units already.
        to_range: a pair, per-dimension arrays or a Box; None means the space's bounds.

    Raises:
        ValueError: a range is out of order, does not fit the space, or `to_range` leaves its
            bounds or has no `from_range`.

    Example:
        >>> ActionMap(Box(0, 10, (1,))).map([[-1.0], [0.5]])[0].tolist()
        [[0.0], [7.5]]
    """

    def __init__(
        self,
        space: Space[Any],
        head_range: tuple[float, float] | None = None,
        from_range: Range | None = (-1.0, 1.0),
        to_range: Range | None = None,
    ) -> None:
        self.space = space
        self._warned = False
        source = from_range if head_range is None else head_range
        self._mapper = _make_mapper(space, source, to_range, self._warn_once)

    def map(self, actions: Any, num_rows: int | None = None) -> Mapped:
        """Return the batch of actions and which rows were finite.

        Args:
            actions: a tensor, array or list `[B, *act]`, or `[B, size]`, or `[B]` where the space
                has one element; nested as the space is. Never changed.
            num_rows: B, where the caller knows it.

        Returns:
            Fresh arrays `[B, *act]` in the space's dtype, nested as the space is, and a bool array
            `[B]`. A number that was not finite is the middle of the range there, or 0.

        Raises:
            ValueError: a wrong shape or nesting, or an index that is no choice.
        """
        mapped, finite = self._mapper.map(actions)
        if num_rows is not None and len(finite) != num_rows:
            message = f"the action function gives {len(finite)} actions for {num_rows} observations"
            raise ValueError(message)
        return mapped, finite

    def _warn_once(self, message: str) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(message, UserWarning, stacklevel=2)


class _Mapper(Protocol):
    def map(self, actions: Any) -> Mapped: ...


def _make_mapper(
    space: Space[Any],
    source: Range | None,
    to_range: Range | None,
    warn: Callable[[str], None],
) -> _Mapper:
    if isinstance(space, Discrete | MultiDiscrete | MultiBinary):
        return _Indices(space)
    if isinstance(space, Box):
        return BoxMap(space, source, to_range, warn)
    if isinstance(space, Tuple | Dict):
        parts = space.spaces if isinstance(space, Dict) else dict(enumerate(space.spaces))
        mappers = {name: _make_mapper(part, source, to_range, warn) for name, part in parts.items()}
        return _Parts(space, mappers)
    message = f"actions of the space {space} are not supported"
    raise ValueError(message)


class _Parts:
    """Maps the parts of a Tuple or Dict."""

    def __init__(self, space: Tuple[Any] | Dict[Any], mappers: dict[Any, _Mapper]) -> None:
        self.space = space
        self.mappers = mappers

    def map(self, actions: Any) -> Mapped:
        mapped, finite = {}, []
        for name, part in self._take_apart(actions).items():
            mapped[name], rows = self.mappers[name].map(part)
            finite.append(rows)
        if len({len(rows) for rows in finite}) > 1:
            message = (
                f"the parts have {[len(rows) for rows in finite]} rows, {self.space} needs equal"
            )
            raise ValueError(message)
        nested = mapped if isinstance(self.space, Dict) else tuple(mapped.values())
        return nested, np.logical_and.reduce(finite)

    def _take_apart(self, actions: Any) -> dict[Any, Any]:
        """Return the parts by name, in the order of the space."""
        is_dict = isinstance(self.space, Dict)
        if isinstance(actions, dict if is_dict else (tuple, list)):
            parts = dict(actions if is_dict else enumerate(actions))
            if parts.keys() == self.mappers.keys():
                return {name: parts[name] for name in self.mappers}
            given = f"{type(actions).__name__} with {list(parts)}"
        else:
            given = type(actions).__name__
        wanted = "dict with the keys" if is_dict else "tuple with the parts"
        message = f"the action is a {given}, {self.space} takes a {wanted} {list(self.mappers)}"
        raise ValueError(message)


class _Indices:
    """Maps the indices of Discrete, MultiDiscrete and MultiBinary."""

    def __init__(self, space: Discrete | MultiDiscrete | MultiBinary) -> None:
        self.space = space
        counts: Any = 2
        if not isinstance(space, MultiBinary):
            counts = space.n if isinstance(space, Discrete) else space.nvec
        shape: tuple[int, ...] = space.shape or ()
        self.counts = np.broadcast_to(np.asarray(counts, np.int64), shape)
        self.unsigned_counts = self.counts.astype(np.uint64)
        self.start = np.asarray(getattr(space, "start", 0), np.int64)
        self.starts_elsewhere = bool(self.start.any())
        self.dtype = np.int8 if isinstance(space, MultiBinary) else np.int64

    def map(self, actions: Any) -> Mapped:
        values = fit_shape(to_array(actions, self.space), self.space)
        finite = all_rows(len(values))
        if values.dtype.kind == "f":
            values, finite = self._read_floats(values)
        values = values.astype(np.int64)  # a copy
        # As unsigned numbers, negative ones are the largest of all.
        wrong = values.view(np.uint64) >= self.unsigned_counts
        if np.count_nonzero(wrong):
            raise self._complain(values, wrong)
        if self.starts_elsewhere:
            values += self.start
        return values if self.dtype is np.int64 else values.astype(self.dtype), finite

    def _read_floats(self, values: NDArray[Any]) -> Mapped:
        is_finite = np.isfinite(values)
        values = np.where(is_finite, values, 0)
        wrong = (values != np.rint(values)) | (np.abs(values) > 2**62)
        if np.count_nonzero(wrong):
            raise self._complain(values, wrong)
        return values, whole_rows(is_finite)

    def _complain(self, values: NDArray[Any], wrong: BoolArray) -> ValueError:
        place = tuple(int(index) for index in np.argwhere(wrong)[0])
        factor = f" at factor {list(place[1:])}" if place[1:] else ""
        note = f" (start={self.start.tolist()} is added to it)" if self.start.any() else ""
        return ValueError(
            f"row {place[0]} of the actions has {values[place]}{factor}, {self.space} takes a whole "
            f"number from 0 to {self.counts[place[1:]] - 1}: return the index of a choice{note}"
        )
