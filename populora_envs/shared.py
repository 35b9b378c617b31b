"""Memory that several processes see, and objects whose tensors lie in it."""

from __future__ import annotations

import io
import math
import mmap
import os
import pickle
import tempfile
from dataclasses import dataclass
from typing import Any

import cloudpickle
import numpy as np
import torch
from torch import Tensor, nn

ALIGNMENT = 64
"""Bytes; a tensor begins at a multiple of it."""

_KINDS: dict[type[Any], str] = {Tensor: "tensor", nn.Parameter: "parameter"}


class Block:
    """Anonymous memory that goes when the last process that has it ends; no name, so no leak.

    Args:
        size: bytes.
        descriptor: of a block that another process made; None makes one.

    Attributes:
        descriptor: the open file behind it, to be handed to other processes.
    """

    def __init__(self, size: int, descriptor: int | None = None) -> None:
        self.size = max(size, 1)
        self.descriptor = _new_file(self.size) if descriptor is None else descriptor
        self._memory = mmap.mmap(self.descriptor, self.size)

    def array(self, shape: tuple[int, ...], dtype: Any, offset: int = 0) -> np.ndarray:
        """Return a view of the memory."""
        return np.ndarray(shape, dtype, buffer=self._memory, offset=offset)

    def tensor(self, place: Place) -> Tensor:
        """Return a view of the memory as a tensor."""
        if not place.count:
            return torch.empty(place.shape, dtype=place.dtype, device="cpu")
        flat = torch.frombuffer(
            self._memory, dtype=place.dtype, count=place.count, offset=place.offset
        )
        return flat.reshape(place.shape)

    def close(self) -> None:
        """Close the file; the memory stays as long as views of it do."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        """Leave no file open."""
        self.close()


def _new_file(size: int) -> int:
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("populora_envs")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, size)
    return descriptor


@dataclass(frozen=True)
class Place:
    """Where a tensor lies in a block."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    offset: int

    @property
    def count(self) -> int:
        """How many numbers it holds."""
        return math.prod(self.shape)

    @property
    def end(self) -> int:
        """The byte behind its last."""
        return self.offset + self.count * self.dtype.itemsize


class Packed:
    """An object taken apart: its structure as bytes, its CPU tensors by themselves.

    Two objects of one structure give the same bytes, so that of a changed one only the numbers need to
    travel.

    Args:
        thing: anything that cloudpickle takes.
    """

    def __init__(self, thing: Any) -> None:
        file = io.BytesIO()
        pickler = _Pickler(file)
        pickler.dump(thing)
        self.structure = file.getvalue()
        self.tensors = pickler.tensors
        self.places: list[Place] = []
        self.size = 0
        for tensor in self.tensors:
            self.places.append(Place(tuple(tensor.shape), tensor.dtype, self.size))
            self.size += tensor.nbytes + -tensor.nbytes % ALIGNMENT

    @property
    def key(self) -> tuple[bytes, tuple[Place, ...]]:
        """What two objects have in common whose numbers alone differ."""
        return self.structure, tuple(self.places)

    def write(self, block: Block) -> None:
        """Copy the numbers into a block of at least `size` bytes."""
        with torch.no_grad():
            for tensor, place in zip(self.tensors, self.places, strict=True):
                block.tensor(place).copy_(tensor.detach())


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc] # cloudpickle publishes no types
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.tensors: list[Tensor] = []
        self._numbers: dict[int, int] = {}

    def persistent_id(self, thing: Any) -> tuple[str, int, bool] | None:
        """Take plain CPU tensors out; everything else is pickled."""
        kind = _KINDS.get(type(thing))
        if kind is None or not thing.is_cpu or thing.layout is not torch.strided:
            return None
        number = self._numbers.setdefault(id(thing), len(self.tensors))
        if number == len(self.tensors):
            self.tensors.append(thing)
        return kind, number, thing.requires_grad


class _Unpickler(pickle.Unpickler):
    def __init__(self, structure: bytes, tensors: list[Tensor]) -> None:
        super().__init__(io.BytesIO(structure))
        self._tensors = tensors
        self._made: dict[int, Tensor] = {}

    def persistent_load(self, name: Any) -> Tensor:
        """Return the tensor that was taken out; the same one for the same name."""
        kind, number, requires_grad = name
        if number not in self._made:
            tensor = self._tensors[number]
            made = nn.Parameter(tensor, requires_grad) if kind == "parameter" else tensor
            self._made[number] = made
        return self._made[number]


def unpack(structure: bytes, places: list[Place], block: Block) -> Any:
    """Put an object together whose tensors are views of `block`."""
    return _Unpickler(structure, [block.tensor(place) for place in places]).load()
