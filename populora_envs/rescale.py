"""Affine maps from one range of numbers onto another, exact at both ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

import numpy as np
import torch
from gymnasium.spaces import Box
from torch import Tensor

if TYPE_CHECKING:
    from numpy.typing import NDArray

# A pair (low, high) of numbers, arrays or tensors, or a Box that stands for its bounds.
Range: TypeAlias = "Box | tuple[Any, Any] | list[Any] | NDArray[Any]"
Float64Array: TypeAlias = "NDArray[np.float64]"
Number = TypeVar("Number", bound="int | float | np.number[Any] | NDArray[Any] | Tensor")


def _as_float64(bound: Any) -> Float64Array:
    if isinstance(bound, Tensor):
        bound = bound.detach().cpu()
    return np.asarray(bound, dtype=np.float64)


def read_range(given: Range, name: str) -> tuple[Float64Array, Float64Array]:
    """Return (low, high) of a range in float64."""
    if isinstance(given, Box):
        return _as_float64(given.low), _as_float64(given.high)
    try:
        low, high = given
    except (TypeError, ValueError):
        message = f"{name} is a pair (low, high) or a Box, not {given!r}"
        raise ValueError(message) from None
    return _as_float64(low), _as_float64(high)


def _check_order(low: Float64Array, high: Float64Array, name: str, *, may_be_equal: bool) -> None:
    ordered = low <= high if may_be_equal else low < high
    if not ordered.all():  # also where a bound is NaN, which is ordered with nothing
        worst = tuple(np.argwhere(~ordered)[0])
        message = (
            f"{name} needs low < high in every dimension, it has low {low[worst]:g} and "
            f"high {high[worst]:g}: check the order of the pair"
        )
        raise ValueError(message)


def _broadcast(*bounds: Float64Array) -> list[Float64Array]:
    try:
        return [np.array(bound) for bound in np.broadcast_arrays(*bounds)]
    except ValueError:
        shapes = sorted({str(bound.shape) for bound in bounds})
        message = f"from_range and to_range have shapes {', '.join(shapes)}, which do not fit"
        raise ValueError(message) from None


class Rescale:
    """Map `from_range` onto `to_range`, one affine map per dimension, in float64.

    Both ends are hit exactly, the map is monotone, and values outside `from_range` extrapolate.
    A dimension with an infinite bound in either range passes through untouched.

    Args:
        from_range: a pair (low, high) of numbers or arrays, or a Box; NaN is refused.
        to_range: likewise; only a Box may have low == high, which maps everything onto it.

    Attributes:
        from_low, from_high, to_low, to_high: the bounds, float64 `[*shape]`.
        bounded: bool `[*shape]`, false where the dimension passes through.
        is_identity: whether every dimension passes through or is mapped onto itself.

    Raises:
        ValueError: a range is not a pair, is out of order, or does not fit the other's shape.

    Example:
        >>> Rescale((-1, 1), (0, 10))(np.array([-1.0, 0.0, 1.0])).tolist()
        [0.0, 5.0, 10.0]
    """

    def __init__(self, from_range: Range, to_range: Range) -> None:
        bounds = _broadcast(
            *read_range(from_range, "from_range"), *read_range(to_range, "to_range")
        )
        self.from_low, self.from_high, self.to_low, self.to_high = bounds
        _check_order(self.from_low, self.from_high, "from_range", may_be_equal=False)
        _check_order(self.to_low, self.to_high, "to_range", may_be_equal=isinstance(to_range, Box))
        self._plan()

    def _plan(self) -> None:
        with np.errstate(over="ignore", invalid="ignore"):
            from_span, to_span = self.from_high - self.from_low, self.to_high - self.to_low
        # A span that overflows float64 counts as unbounded too.
        self.bounded = np.isfinite(from_span) & np.isfinite(to_span)
        equal = (self.from_low == self.to_low) & (self.from_high == self.to_high)
        self._moved = self.bounded & ~equal
        self._all_moved = bool(self._moved.all())
        self.is_identity = not self._moved.any()
        self._from_low = np.where(self._moved, self.from_low, 0.0)
        self._from_span = np.where(self._moved, from_span, 1.0)
        self._low = np.where(self._moved, self.to_low, 0.0)
        self._high = np.where(self._moved, self.to_high, 1.0)
        self._span = self._high - self._low
        self._adds_up = bool((self._low + self._span == self._high).all())

    @property
    def shape(self) -> tuple[int, ...]:
        """The common shape of all bounds, `()` where they are numbers."""
        return self.bounded.shape

    def check_fits(self, shape: tuple[int, ...]) -> None:
        """Raise ValueError where the bounds do not fit values of `shape`."""
        ending = shape[len(shape) - len(self.shape) :]
        pairs = zip(ending, self.shape, strict=False)
        if len(self.shape) > len(shape) or any(bound not in (1, size) for size, bound in pairs):
            message = f"the ranges have shape {self.shape}, which does not fit values of {shape}"
            raise ValueError(message)

    def __call__(self, x: Number) -> Number:
        """Return `x` mapped.

        Args:
            x: float64 array or tensor `[..., *shape]`; never changed, returned as it is where
                the map is the identity.
        """
        if self.is_identity:
            return x
        if isinstance(x, Tensor):
            return cast("Number", self._map_tensor(x))
        return cast("Number", self._map_array(np.asarray(x)))

    def _map_array(self, x: Float64Array) -> Float64Array:
        place = (x - self._from_low) / self._from_span
        mapped = self._low + place * self._span
        if not self._adds_up:
            # Rounding would miss the upper end: from there on, count from the upper end.
            above = self._high + (place - 1.0) * self._span
            mapped = np.where(place >= 1.0, above, np.minimum(mapped, self._high))
        return mapped if self._all_moved else np.where(self._moved, mapped, x)

    def _map_tensor(self, x: Tensor) -> Tensor:
        bounds = (self._from_low, self._from_span, self._low, self._high, self._span)
        from_low, from_span, low, high, span = (
            torch.as_tensor(bound, device=x.device) for bound in bounds
        )
        place = (x - from_low) / from_span
        mapped = low + place * span
        if not self._adds_up:
            above = high + (place - 1.0) * span
            mapped = torch.where(place >= 1.0, above, torch.minimum(mapped, high))
        return torch.where(torch.as_tensor(self._moved, device=x.device), mapped, x)


def rescale_from_range_to_range(x: Number, from_range: Range, to_range: Range) -> Number:
    """Return `x` mapped from one range onto another, in float64, exact at both ends.

    Args:
        x: a number, array or tensor `[..., *shape]`; never changed.
        from_range: a pair (low, high) of numbers or arrays of `shape`, or a Box.
        to_range: likewise; a dimension with an infinite bound passes through untouched.

    Returns:
        The type and floating dtype of `x`; whole numbers give float64, in a tensor torch's
        default dtype. Values outside `from_range` extrapolate.

    Raises:
        ValueError: a range is out of order or does not fit the shape of `x`.

    Example:
        >>> rescale_from_range_to_range(0.5, (-1, 1), (0, 10))
        7.5
    """
    rescale = Rescale(from_range, to_range)
    rescale.check_fits(tuple(np.shape(cast("Any", x))))
    if isinstance(x, Tensor):
        return cast("Number", _rescale_tensor(rescale, x))
    values = np.asarray(x)
    dtype = values.dtype if values.dtype.kind == "f" else np.dtype(np.float64)
    mapped = np.array(rescale(values.astype(np.float64)), dtype=dtype)
    if isinstance(x, np.ndarray):
        return cast("Number", mapped)
    return cast("Number", mapped[()] if isinstance(x, np.generic) else float(mapped))


def _rescale_tensor(rescale: Rescale, x: Tensor) -> Tensor:
    # MPS has no float64.
    device = "cpu" if x.device.type == "mps" else x.device
    dtype = x.dtype if x.is_floating_point() else torch.get_default_dtype()
    mapped = rescale(x.to(device, torch.float64, copy=True))
    return mapped.to(x.device, dtype)
