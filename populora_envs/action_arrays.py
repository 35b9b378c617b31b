"""Actions as NumPy arrays of the shape that a space asks for."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from gymnasium.spaces import Space
    from numpy.typing import NDArray


def to_array(actions: Any, space: Space[Any]) -> NDArray[Any]:
    """Return the numbers of a tensor, array or list, not copied where they need not be."""
    try:
        if isinstance(actions, list | tuple) and actions and isinstance(actions[0], Tensor):
            actions = torch.stack(list(actions))
        if isinstance(actions, Tensor):
            # NumPy has no bfloat16.
            actions = actions.float() if actions.dtype is torch.bfloat16 else actions
            plain = actions.is_cpu and not actions.requires_grad
            array: NDArray[Any] = actions.numpy() if plain else actions.numpy(force=True)
            return array
        array = np.asarray(actions)
    except (TypeError, ValueError, RuntimeError) as error:
        message = f"the action for {space} is no array of numbers: {error}"
        raise ValueError(message) from error
    if array.dtype.kind not in "biuf":
        message = f"the action for {space} is a {type(actions).__name__}, not numbers [B, ...]"
        raise ValueError(message)
    return array


def fit_shape(values: NDArray[Any], space: Space[Any]) -> NDArray[Any]:
    """Return `values` as `[B, *shape]`, from that, `[B, size]`, or `[B]` where the size is 1."""
    shape = space.shape or ()
    if values.ndim and values.shape[1:] == shape:
        return values
    size = math.prod(shape)
    if values.ndim and (values.shape[1:] == (size,) or (values.ndim == 1 and size == 1)):
        return values.reshape(len(values), *shape)
    wanted = ", ".join(["B", *map(str, shape)])
    message = f"the actions have shape {list(values.shape)}, {space} takes [{wanted}], one per slot"
    raise ValueError(message)


@lru_cache(maxsize=256)
def all_rows(count: int) -> NDArray[np.bool_]:
    """Return that all of `count` rows are finite, an array that cannot be written."""
    rows = np.ones(count, np.bool_)
    rows.flags.writeable = False
    return rows


def whole_rows(is_finite: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return which rows are finite throughout, bool `[B]`."""
    return np.asarray(is_finite.reshape(len(is_finite), math.prod(is_finite.shape[1:])).all(axis=1))
