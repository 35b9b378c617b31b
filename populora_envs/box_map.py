"""Maps a policy's numbers onto what a Box takes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from gymnasium.spaces import Box

from populora_envs.action_arrays import all_rows, fit_shape, to_array, whole_rows
from populora_envs.rescale import Rescale

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from populora_envs.rescale import Range

    BoolArray: TypeAlias = NDArray[np.bool_]
    Float64Array: TypeAlias = NDArray[np.float64]

_LARGEST = float(np.finfo(np.float64).max)


class BoxMap:
    """Maps the numbers of a Box.

    Every array is float64 `[*shape]`: the bounds to clip to, what the numbers given should lie
    in, and what stands for a number that is not finite.

    Args:
        space: the Box.
        source: what the numbers lie in, None where they are in the simulator's units.
        to_range: what they are mapped onto, None for the space's bounds.
        warn: called with a message where a number lies clearly outside `source`.
    """

    def __init__(
        self,
        space: Box,
        source: Range | None,
        to_range: Range | None,
        warn: Callable[[str], None],
    ) -> None:
        self.space = space
        self.source = source
        self.dtype = space.dtype
        self.is_whole = space.dtype.kind != "f"
        self.low, self.high = _clip_bounds(space)
        self._warn = warn
        if to_range is not None:
            _check_target(space, to_range, source)
        target = _finite_bounds(space) if to_range is None else to_range
        rescale = Rescale((-1.0, 1.0) if source is None else source, target)
        rescale.check_fits(space.shape)
        low, high = np.where(rescale.bounded, [rescale.to_low, rescale.to_high], 0.0)
        self.middle = low / 2 + high / 2
        self.rescale = None if source is None else rescale
        self.least, self.most = _expected(self.rescale)
        self._bounds_tell = to_range is None

    def map(self, actions: Any) -> tuple[NDArray[Any], BoolArray]:
        """Return the batch in the space's dtype, `[B, *shape]`, and which rows were finite."""
        given = fit_shape(to_array(actions, self.space), self.space)
        numbers = given.astype(np.float64)
        if self._bounds_tell and given.dtype != np.float64:  # which may overflow
            with np.errstate(over="ignore", invalid="ignore"):
                mapped = self._place(numbers)
            clipped = self._clip(mapped)
            # Whatever lies outside of from_range, or is no number, was clipped.
            if np.count_nonzero(clipped == mapped) == mapped.size:
                return self._cast(clipped), all_rows(len(numbers))
        expected = (numbers >= self.least) & (numbers <= self.most)
        if np.count_nonzero(expected) < expected.size:
            return self._map_unexpected(numbers, expected)
        return self._cast(self._clip(self._place(numbers))), all_rows(len(numbers))

    def _map_unexpected(
        self, numbers: Float64Array, expected: BoolArray
    ) -> tuple[NDArray[Any], BoolArray]:
        is_finite = np.isfinite(numbers)
        outside = is_finite & ~expected
        if outside.any():
            self._warn_outside(numbers, outside)
        with np.errstate(over="ignore"):
            mapped = self._place(np.where(is_finite, numbers, 0.0))
        clipped = self._clip(np.where(is_finite, mapped, self.middle))
        return self._cast(clipped), whole_rows(is_finite)

    def _place(self, numbers: Float64Array) -> Float64Array:
        return numbers if self.rescale is None else self.rescale(numbers)

    def _clip(self, mapped: Float64Array) -> Float64Array:
        clipped = np.maximum(mapped, self.low)
        return np.minimum(clipped, self.high, out=clipped)

    def _cast(self, clipped: Float64Array) -> NDArray[Any]:
        """Return the numbers rounded where the dtype is whole, in the space's dtype."""
        if self.is_whole:
            clipped = np.rint(clipped)
        return clipped.astype(self.dtype, copy=False)

    def _warn_outside(self, numbers: Float64Array, outside: BoolArray) -> None:
        place = tuple(np.argwhere(outside)[0])
        self._warn(
            f"the policy gives {numbers[place]:g} for {self.space}, outside its from_range "
            f"{self.source} by more than 1 %: the action is clipped to the space's bounds; end the "
            "policy in tanh or pass the from_range it gives"
        )


def _finite_bounds(space: Box) -> Box:
    """Return the space's bounds, infinite where a whole dtype stands for no bound."""
    low = np.where(space.bounded_below, space.low.astype(np.float64), -np.inf)
    high = np.where(space.bounded_above, space.high.astype(np.float64), np.inf)
    return Box(low, high, dtype=np.float64)


def _clip_bounds(space: Box) -> tuple[Float64Array, Float64Array]:
    """Return the space's bounds, drawn in to the numbers that its dtype can hold."""
    least, most = _limits(space.dtype)
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    return np.maximum(low, least), np.minimum(high, most)


def _limits(dtype: np.dtype[Any]) -> tuple[float, float]:
    if dtype.kind == "b":
        return 0.0, 1.0
    if dtype.kind == "f":
        return float(np.finfo(dtype).min), float(np.finfo(dtype).max)
    whole = np.iinfo(dtype)
    most = float(whole.max)
    # The largest int64 rounds up in float64, to one that does not fit.
    return float(whole.min), most if int(most) <= whole.max else math.nextafter(most, 0.0)


def _check_target(space: Box, to_range: Range, source: Range | None) -> None:
    if source is None:
        message = "to_range needs a from_range to map from, it is None: pass both or neither"
        raise ValueError(message)
    target = Rescale((-1.0, 1.0), to_range)
    target.check_fits(space.shape)
    low, high = target.to_low, target.to_high
    if space.dtype.kind == "f":
        # 0.7 lies within a float32 bound of 0.7, which is a little less.
        with np.errstate(over="ignore"):
            low, high = low.astype(space.dtype), high.astype(space.dtype)
    if (low < space.low).any() or (high > space.high).any():
        message = (
            f"to_range [{low.min():g}, {high.max():g}] leaves the bounds of {space}: "
            "choose a range within them"
        )
        raise ValueError(message)


def _expected(rescale: Rescale | None) -> tuple[Float64Array, Float64Array]:
    """Return what the numbers given should lie in: from_range and 1 % of its span around it."""
    if rescale is None:
        return np.array(-_LARGEST), np.array(_LARGEST)
    low, high = np.where(rescale.bounded, [rescale.from_low, rescale.from_high], 0.0)
    slack = 0.01 * (high - low)
    least = np.where(rescale.bounded, low - slack, -_LARGEST)
    return least, np.where(rescale.bounded, high + slack, _LARGEST)
