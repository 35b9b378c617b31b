"""Spaces in words, and what becomes of a policy's numbers on their way to the simulator."""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces

from populora_envs.action_map import ActionMap
from populora_envs.box_map import BoxMap
from populora_envs.direct_head import output_size
from populora_envs.spaces import Leaf, at, is_text, leaves, rebuild

if TYPE_CHECKING:
    from collections.abc import Iterable

MOST_KINDS = 8
"""Most kinds of dimensions, or of factors, that are told apart."""

_LEAST, _MOST = -1.0, 1.0
"""What the numbers of a policy for a Box lie in, unless the user says otherwise."""


def space_words(space: spaces.Space[Any]) -> list[str]:
    """Return one line for each part of a space."""
    return [_at(leaf) + _kind(leaf.space) for leaf in leaves(space)]


def _at(leaf: Leaf) -> str:
    return ".".join(map(str, leaf.path)) + ": " if leaf.path else ""


def _kind(space: spaces.Space[Any]) -> str:
    if is_text(space):
        return "text"
    if isinstance(space, spaces.Box):
        return f"Box {shape_words(space.shape)} {space.dtype}, {_bounds(space)}"
    if isinstance(space, spaces.Discrete):
        return f"Discrete, {_span(space.start, space.n)}"
    if isinstance(space, spaces.MultiDiscrete):
        return f"MultiDiscrete {shape_words(space.shape)}, {_factors(space)}"
    if isinstance(space, spaces.MultiBinary):
        return f"MultiBinary {shape_words(space.shape)}"
    return str(space)


def shape_words(shape: tuple[int, ...]) -> str:
    """Return a shape as ``"[4, 2]"``."""
    return f"[{', '.join(map(str, shape))}]"


def _span(start: Any, count: Any) -> str:
    return f"{int(start)} to {int(start) + int(count) - 1}"


def _factors(space: spaces.MultiDiscrete) -> str:
    starts = np.broadcast_to(np.asarray(space.start), space.nvec.shape)
    spans = [_span(*pair) for pair in zip(starts.ravel(), space.nvec.ravel(), strict=True)]
    return f"{spans[0]} each" if len(set(spans)) == 1 else _some(spans)


def _some(words: list[str]) -> str:
    rest = f" and {len(words) - MOST_KINDS} more" if len(words) > MOST_KINDS else ""
    return ", ".join(words[:MOST_KINDS]) + rest


def _bounds(space: spaces.Box) -> str:
    lows, highs = ((bounds.ravel() + 0.0).tolist() for bounds in (space.low, space.high))
    pairs = dict.fromkeys(zip(lows, highs, strict=True))
    if list(pairs) == [(-math.inf, math.inf)]:
        return "without bounds"
    if len(pairs) > 1 and len(lows) > MOST_KINDS:
        return f"bounds from {min(lows):g} to {max(highs):g}"
    told = list(pairs) if len(pairs) == 1 else zip(lows, highs, strict=True)
    return "in " + " ".join(f"[{low:g}, {high:g}]" for low, high in told)


def action_words(space: spaces.Space[Any]) -> list[str]:
    """Return what a policy gives, and for each part what it becomes in the simulator's units.

    The numbers go through the map that rollouts use.

    Raises:
        ValueError: where no policy can act in the space.
    """
    size = output_size(space)
    probes = {leaf.path: _probe(leaf.space) for leaf in leaves(space)}
    mapped, _ = ActionMap(space, from_range=(_LEAST, _MOST)).map(rebuild(space, probes), 3)
    total = f"{size} number" if size == 1 else f"{size} numbers"
    parts = [
        _at(leaf) + line
        for leaf in leaves(space)
        for line in _fates(leaf.space, probes[leaf.path], at(mapped, leaf.path))
    ]
    return [f"{total}: {parts[0]}"] if len(parts) == 1 else [f"{total} in all", *parts]


def _probe(space: spaces.Space[Any]) -> np.ndarray:
    """Return three actions as a policy gives them: the least, the middle or least, and the largest."""
    if isinstance(space, spaces.Box):
        return np.stack([np.full(space.shape, x) for x in (_LEAST, 0.0, _MOST)])
    if isinstance(space, spaces.Discrete):
        return np.array([0, 0, int(space.n) - 1])
    most = space.nvec - 1 if isinstance(space, spaces.MultiDiscrete) else np.ones(space.shape or ())
    return np.stack([0 * most, 0 * most, most]).astype(np.int64)


def _fates(space: spaces.Space[Any], given: np.ndarray, mapped: np.ndarray) -> list[str]:
    """Return lines on what three actions of a policy, `[3, *act]`, have become."""
    if isinstance(space, spaces.Box):
        return _box_fates(space, mapped)
    if isinstance(space, spaces.MultiBinary):
        return [f"above 0 becomes {mapped[2].max()}, else {mapped[0].min()}"]
    indices = [f"{a} to {b}" for a, b in zip(given[0].ravel(), given[2].ravel(), strict=True)]
    actions = [f"{a} to {b}" for a, b in zip(mapped[0].ravel(), mapped[2].ravel(), strict=True)]
    if isinstance(space, spaces.Discrete):
        return [f"the index of the largest, {indices[0]}, is action {actions[0]}"]
    told = dict.fromkeys(f"{a} is {b}" for a, b in zip(indices, actions, strict=True))
    groups = f"{len(indices)} groups; the index of the largest in each is an action"
    return [f"{groups}, {_some([*told])}"]


def _box_fates(space: spaces.Box, mapped: np.ndarray) -> list[str]:
    rescale = BoxMap(space, (_LEAST, _MOST), None, warnings.warn).rescale
    assert rescale is not None
    bounded = np.broadcast_to(rescale.bounded, space.shape).ravel()
    passes = "passes through" if space.dtype.kind == "f" else "passes through, rounded"
    lows = np.where(space.bounded_below, space.low, -np.inf).ravel().tolist()
    highs = np.where(space.bounded_above, space.high, np.inf).ravel().tolist()
    rows = zip(mapped.reshape(3, -1).T.tolist(), bounded, lows, highs, strict=True)
    groups: dict[str, list[int]] = {}
    for number, (values, is_bounded, low, high) in enumerate(rows):
        words = _become(values) if is_bounded else passes + _clip_words(low, high)
        groups.setdefault(words, []).append(number)
    if len(groups) == 1:
        return list(groups)
    lines = [f"dimension {_ranges(who)}: {words}" for words, who in groups.items()]
    rest = [f"and so on, {len(lines) - MOST_KINDS} more"] if len(lines) > MOST_KINDS else []
    return lines[:MOST_KINDS] + rest


def _become(values: list[float]) -> str:
    return "-1, 0, 1 become " + ", ".join(f"{value + 0.0:.4g}" for value in values)


def _clip_words(low: float, high: float) -> str:
    if math.isfinite(low):
        return f", at least {low:g}"
    return f", at most {high:g}" if math.isfinite(high) else ""


def _ranges(numbers: Iterable[int]) -> str:
    """Return sorted numbers as ``"0-2, 5"``."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
