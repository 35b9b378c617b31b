"""The head of `action=None`: it reads the deterministic action of any space off the output."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    Reader: TypeAlias = Callable[[Tensor], Any]


class DirectHead:
    """Reads an action off a policy's output, without noise.

    Discrete takes the largest of n logits, MultiDiscrete the largest of each factor, MultiBinary
    what is above 0, Box the numbers as they are. Tuple and Dict split the output into consecutive
    parts, a Dict in the order of `space.spaces`.

    Args:
        space: the action space of one slot.

    Attributes:
        range: (-1, 1) where the space holds a Box, else None.

    Raises:
        ValueError: the space has a part that no output can be read as.

    Example:
        >>> DirectHead(Discrete(3))(torch.tensor([[0.1, 0.7, 0.2]]))
        tensor([1])
    """

    sample = False

    def __init__(self, space: Space[Any]) -> None:
        self.space = space
        self.size = output_size(space)
        self.range: tuple[float, float] | None = (-1.0, 1.0) if _holds_box(space) else None
        self._read = _reader(space)

    def __call__(self, output: Tensor, keys: Tensor | None = None) -> Any:
        """Return the action, a tensor `[..., *act]` or a tuple or dict of such.

        Args:
            output: `[..., size]`; never changed.
            keys: ignored, there is no noise.
        """
        return self.mean(output)

    def mean(self, output: Tensor) -> Any:
        """Return the action, as calling the head does."""
        given = output.shape[-1] if output.ndim else 0
        if given != self.size:
            message = (
                f"the policy gives {given} numbers per observation, {self.space} wants "
                f"{self.size}: change the width of its last layer or pass action="
            )
            raise ValueError(message)
        return self._read(output)

    def output_size(self, space: Space[Any]) -> int:
        """Say how many numbers per observation the policy must give for `space`."""
        return output_size(space)


def output_size(space: Space[Any]) -> int:
    """Say how many numbers per observation a policy gives for `space` when no action is drawn."""
    if isinstance(space, Discrete):
        return int(space.n)
    if isinstance(space, MultiDiscrete):
        return int(space.nvec.sum())
    if isinstance(space, Box | MultiBinary):
        return math.prod(space.shape)
    return sum(output_size(part) for part in _parts(space))


def _parts(space: Space[Any]) -> list[Space[Any]]:
    if isinstance(space, Tuple):
        return list(space.spaces)
    if isinstance(space, Dict):
        return list(space.spaces.values())
    message = (
        f"no action can be read for the space {space}: use Discrete, MultiDiscrete, MultiBinary, "
        "Box, or a Tuple or Dict of such"
    )
    raise ValueError(message)


def _holds_box(space: Space[Any]) -> bool:
    if isinstance(space, Tuple | Dict):
        return any(_holds_box(part) for part in _parts(space))
    return isinstance(space, Box)


def _reader(space: Space[Any]) -> Reader:
    if isinstance(space, Discrete):
        return _largest
    if isinstance(space, MultiDiscrete):
        return partial(_largest_of_each, counts=space.nvec.ravel().tolist(), shape=space.shape)
    if isinstance(space, MultiBinary):
        return partial(_above_zero, shape=space.shape)
    if isinstance(space, Box):
        return partial(_shaped, shape=space.shape)
    parts = _parts(space)
    names = list(space.spaces) if isinstance(space, Dict) else None
    sizes = [output_size(part) for part in parts]
    return partial(_read_parts, sizes=sizes, readers=[_reader(part) for part in parts], names=names)


def _shaped(output: Tensor, shape: tuple[int, ...]) -> Tensor:
    return output.reshape((*output.shape[:-1], *shape))


def _largest(output: Tensor) -> Tensor:
    return output.argmax(-1)


def _largest_of_each(output: Tensor, counts: list[int], shape: tuple[int, ...]) -> Tensor:
    best = [logits.argmax(-1) for logits in torch.split(output, counts, dim=-1)]
    return _shaped(torch.stack(best, dim=-1), shape)


def _above_zero(output: Tensor, shape: tuple[int, ...]) -> Tensor:
    return _shaped((output > 0).to(torch.int8), shape)


def _read_parts(
    output: Tensor, sizes: list[int], readers: list[Reader], names: list[str] | None
) -> Any:
    pieces = torch.split(output, sizes, dim=-1)
    values = [reader(piece) for reader, piece in zip(readers, pieces, strict=True)]
    return tuple(values) if names is None else dict(zip(names, values, strict=True))
