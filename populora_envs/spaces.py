"""Spaces: their leaves, and the encoding of observations as what a policy takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from gymnasium import spaces

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Path = tuple[Any, ...]


class Leaf(NamedTuple):
    """A space that holds no other, and the keys that lead to it."""

    path: Path
    space: spaces.Space[Any]


class OrderedDictSpace(spaces.Dict):
    """A Dict whose leaves come in its own order, not in that of its keys."""


def leaves(space: spaces.Space[Any], path: Path = ()) -> list[Leaf]:
    """Return the leaves of a nested space, Dict sorted by key, Tuple and OrderedDictSpace as they are."""
    if isinstance(space, spaces.Dict):
        # gymnasium sorts the keys itself in some versions and for some arguments.
        children: list[tuple[Any, spaces.Space[Any]]] = list(space.spaces.items())
        if not isinstance(space, OrderedDictSpace):
            children.sort(key=lambda item: str(item[0]))
    elif isinstance(space, spaces.Tuple):
        children = list(enumerate(space.spaces))
    else:
        return [Leaf(path, space)]
    return [leaf for key, child in children for leaf in leaves(child, (*path, key))]


def at(nested: Any, path: Path) -> Any:
    """Return what lies at `path` inside nested dicts and tuples."""
    for key in path:
        nested = nested[key]
    return nested


def rebuild(space: spaces.Space[Any], values: Mapping[Path, Any], path: Path = ()) -> Any:
    """Return `values` nested as `space` is; leaves without a value (text) are left out."""
    if isinstance(space, spaces.Dict):
        items = ((key, (*path, key), child) for key, child in space.spaces.items())
        return {k: rebuild(c, values, p) for k, p, c in items if _holds(values, p)}
    if isinstance(space, spaces.Tuple):
        parts = (((*path, i), child) for i, child in enumerate(space.spaces))
        return tuple(rebuild(c, values, p) for p, c in parts if _holds(values, p))
    return values[path]


def _holds(values: Mapping[Path, Any], prefix: Path) -> bool:
    return any(path[: len(prefix)] == prefix for path in values)


def is_text(space: spaces.Space[Any]) -> bool:
    """Return whether a space holds text, gymnasium's or another package's."""
    return isinstance(space, spaces.Text) or space.dtype == np.dtype(str)


def is_image(space: spaces.Space[Any]) -> bool:
    """Return whether a space is a uint8 picture or a stack of such."""
    return isinstance(space, spaces.Box) and space.dtype == np.uint8 and len(space.shape) >= 2


def check_same(first: Any, other: Any, name: Any, first_name: Any, what: str) -> None:
    """Refuse environments of different spaces in one batch, text aside: ValueError naming both."""
    if dict(numbers(first)) != dict(numbers(other)):
        message = (
            f"environment {name} has the {what} space {other}, environment {first_name} has {first}: "
            "pass environments of different spaces as separate interactors"
        )
        raise ValueError(message)


def numbers(space: spaces.Space[Any]) -> list[Leaf]:
    """Return the leaves that are not text."""
    return [leaf for leaf in leaves(space) if not is_text(leaf.space)]


def to_numpy(values: Any) -> np.ndarray:
    """Return an array, scalar, list or tensor on any device as an array, copied only if it must be."""
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu()
    array: np.ndarray = np.asarray(values)
    return array


class _Field(NamedTuple):
    """One leaf of an encoded observation."""

    leaf: Leaf
    columns: slice
    write: Callable[[np.ndarray, np.ndarray], None]


def _write_numbers(values: np.ndarray, out: np.ndarray) -> None:
    out[...] = values.reshape(out.shape)


def _one_hot_writer(starts: np.ndarray, sizes: np.ndarray) -> Callable[..., None]:
    """Return a writer of one-hot columns, one block per factor."""
    blocks = np.concatenate([[0], np.cumsum(sizes)[:-1]])

    def write(values: np.ndarray, out: np.ndarray) -> None:
        choices = values.reshape(len(out), -1) - starts
        if ((choices < 0) | (choices >= sizes)).any():
            message = (
                f"the environment gave the discrete observations {values.tolist()}, its space starts "
                f"at {starts.tolist()} with {sizes.tolist()} choices"
            )
            raise ValueError(message)
        out[...] = 0.0
        out[np.arange(len(out))[:, None], choices + blocks] = 1.0

    return write


def _width_and_writer(leaf: Leaf) -> tuple[int, Callable[..., None]]:
    space = leaf.space
    if isinstance(space, spaces.Discrete):
        sizes, starts = np.array([int(space.n)]), np.array([int(space.start)])
        return int(space.n), _one_hot_writer(starts, sizes)
    if isinstance(space, spaces.MultiDiscrete):
        sizes = np.asarray(space.nvec, dtype=np.int64).ravel()
        return int(sizes.sum()), _one_hot_writer(np.asarray(space.start).ravel(), sizes)
    return int(np.prod(space.shape or (), dtype=np.int64)), _write_numbers


def _check_supported(leaf: Leaf) -> None:
    kinds = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
    if not isinstance(leaf.space, kinds):
        where = f" at {list(leaf.path)}" if leaf.path else ""
        message = f"observations of {type(leaf.space).__name__}{where} are not supported"
        raise TypeError(message)


class Encoder:
    """Batched observations of a simulator as the batch a policy takes.

    Args:
        space: of one observation.
        flatten: one float32 vector per observation: Dict sorted by key, Discrete and
            MultiDiscrete one-hot, text left out. A space that is one uint8 image stays an image,
            0..255 as float32. False keeps the nesting: floats as float32, integers as int64.

    Attributes:
        shape: of one encoded observation, None where it stays nested.
        dropped: paths of the text leaves.
    """

    def __init__(self, space: spaces.Space[Any], *, flatten: bool = True) -> None:
        self.space = space
        self.dropped = [leaf.path for leaf in leaves(space) if is_text(leaf.space)]
        self._leaves = numbers(space)
        for leaf in self._leaves:
            _check_supported(leaf)
        if not self._leaves:
            message = f"the observation space {space} holds no numbers"
            raise ValueError(message)
        self.nested = not flatten
        self._fields: list[_Field] = []
        self._is_plain = len(self._leaves) == 1 and _holds_floats(self._leaves[0])
        self.shape: tuple[int, ...] | None = None
        if flatten:
            self._lay_out()
            self._is_plain = self._is_plain and self.shape == self._leaves[0].space.shape

    def _lay_out(self) -> None:
        only = self._leaves[0].space
        if len(self._leaves) == 1 and is_image(only):
            self.shape = tuple(only.shape or ())
            self._fields = [_Field(self._leaves[0], slice(None), _write_numbers)]
            return
        start = 0
        for leaf in self._leaves:
            width, write = _width_and_writer(leaf)
            self._fields.append(_Field(leaf, slice(start, start + width), write))
            start += width
        self.shape = (start,)

    @property
    def is_vector(self) -> bool:
        """Whether an encoded observation is one float32 vector."""
        return self.shape is not None and len(self.shape) == 1

    def allocate(self, count: int) -> list[np.ndarray]:
        """Return arrays for `count` encoded observations."""
        if self.shape is not None:
            return [np.zeros((count, *self.shape), dtype=np.float32)]
        return [np.zeros((count, *(s.shape or ())), dtype=_kept(s)) for _, s in self._leaves]

    def write(self, observation: Any, buffer: list[np.ndarray]) -> None:
        """Encode a batch `[N, *obs]` into arrays from `allocate(N)`; ValueError on a wrong shape."""
        out = buffer[0]
        if (
            self._is_plain
            and isinstance(observation, np.ndarray)
            and observation.shape == out.shape
        ):
            out[...] = observation
            return
        count = len(out)
        if self.nested:
            for leaf, out in zip(self._leaves, buffer, strict=True):
                out[...] = _checked(observation, leaf, count)
            return
        for leaf, columns, write in self._fields:
            write(_checked(observation, leaf, count), out[:, columns])

    def batch(self, buffer: list[np.ndarray], rows: Any, device: torch.device) -> Any:
        """Return copies of `rows` as tensors on `device`, nested where the observation stays so."""
        tensors = [torch.from_numpy(copied_rows(array, rows)).to(device) for array in buffer]
        if not self.nested:
            return tensors[0]
        paths = [leaf.path for leaf in self._leaves]
        return rebuild(self.space, dict(zip(paths, tensors, strict=True)))

    def encode(self, observation: Any, count: int, device: torch.device) -> Any:
        """Encode one batch of `count` observations at once."""
        buffer = self.allocate(count)
        self.write(observation, buffer)
        return self.batch(buffer, slice(None), device)

    def batch_size(self, observation: Any) -> int | None:
        """Return the batch size of raw observations, None for a single one."""
        leaf = self._leaves[0]
        value = at(observation, leaf.path)
        if np.ndim(value) == len(leaf.space.shape or ()):
            return None
        return len(value)


def _holds_floats(leaf: Leaf) -> bool:
    """Return whether a leaf is the whole observation, and floats whatever the encoding."""
    space = leaf.space
    return not leaf.path and isinstance(space, spaces.Box) and space.dtype.kind == "f"


def copied_rows(array: np.ndarray, rows: Any) -> np.ndarray:
    """Return a copy of the rows that a slice or indices name."""
    picked: np.ndarray = array[rows]
    return picked.copy() if isinstance(rows, slice) else picked  # indices copy already


def _kept(space: spaces.Space[Any]) -> type[np.generic]:
    floating = isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating)
    return np.float32 if floating or is_image(space) else np.int64


def _checked(observation: Any, leaf: Leaf, count: int) -> np.ndarray:
    """Return the leaf's values as an array `[count, *shape]`."""
    values = to_numpy(at(observation, leaf.path))
    shape = (count, *(leaf.space.shape or ()))
    if values.shape != shape:
        where = f" at {list(leaf.path)}" if leaf.path else ""
        message = (
            f"the environment gave observations of shape {values.shape}{where} for {count} slots, "
            f"its space says {shape[1:]} each"
        )
        raise ValueError(message)
    return values
