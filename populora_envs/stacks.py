"""Batches put together from single observations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from populora_envs.spaces import Leaf, at, numbers, rebuild, to_numpy

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gymnasium import spaces

_SCALARS = frozenset({float, int, bool, np.float64, np.float32, np.int64, np.int32, np.bool_})


class _Row:
    """Where one leaf of single observations is put together, `[N, *shape]`."""

    def __init__(self, leaf: Leaf, count: int) -> None:
        self.path, self.shape = leaf.path, leaf.space.shape or ()
        self.values = np.zeros((count, *self.shape), dtype=leaf.space.dtype)
        # A slot that has not begun shows something that its space holds.
        self.values[...] = getattr(leaf.space, "start", 0)
        self._where = f" at {list(self.path)}" if self.path else ""

    def write(self, index: int, observation: Any) -> None:
        value: Any = at(observation, self.path) if self.path else observation
        if not isinstance(value, (np.ndarray, np.generic)):
            value = to_numpy(value)
        if value.shape != self.shape:
            message = (
                f"the environment gave an observation of shape {value.shape}{self._where}, "
                f"its space says {self.shape}"
            )
            raise ValueError(message)
        if not self._holds(value):
            message = f"the environment gave {value}{self._where}, its space holds {self.values.dtype} alone"
            raise ValueError(message)
        self.values[index] = value

    def _holds(self, values: np.ndarray) -> bool:
        """Return whether values of another dtype stay what they are in this one, up to rounding."""
        dtype = self.values.dtype
        if values.dtype == dtype or dtype.kind not in "biu" or values.dtype.kind not in "biuf":
            return True
        with np.errstate(invalid="ignore"):
            return bool((values.astype(dtype) == values).all())

    def fill(self, observations: Sequence[Any], rows: Sequence[int]) -> bool:
        """Write several at once; return whether that was possible."""
        parts = observations
        try:
            for key in self.path:
                parts = [part[key] for part in parts]
            if set(map(type, parts)) != {np.ndarray} and not _SCALARS.issuperset(map(type, parts)):
                return False
            batch = np.array(parts)
            if batch.shape[1:] != self.shape or not self._holds(batch):
                return False
            self.values[slice(None) if isinstance(rows, range) else rows] = batch
        except (ArithmeticError, LookupError, TypeError, ValueError):
            return False
        return True


class Stack:
    """A batch of the observations of N single environments, written one at a time.

    Args:
        space: of one observation. Leaves of text are left out.
        count: N.
    """

    def __init__(self, space: spaces.Space[Any], count: int) -> None:
        self._rows = [_Row(leaf, count) for leaf in numbers(space)]
        self.value: Any = rebuild(space, {row.path: row.values for row in self._rows})
        """Nested arrays `[N, *shape]`, the same ones after every `write`."""
        single = len(self._rows) == 1 and not self._rows[0].path
        self.write: Callable[[int, Any], None] = self._rows[0].write if single else self._write
        """``write(i, observation)``; ValueError where the shape is not the space's."""

    def _write(self, index: int, observation: Any) -> None:
        for row in self._rows:
            row.write(index, observation)

    def fill(self, observations: Sequence[Any], rows: Sequence[int]) -> bool:
        """Write one observation for each of `rows`, a `range` where these are all.

        Returns:
            False where they must be written one at a time, for one of them is out of the ordinary.
        """
        return all(row.fill(observations, rows) for row in self._rows)
