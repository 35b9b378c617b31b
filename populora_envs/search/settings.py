"""Numbers that searches are set by, and the ranges they lie in."""

from __future__ import annotations

import math


def positive(name: str, value: float) -> float:
    """Return `value` as a float; ValueError where it is not finite and above 0."""
    if not 0 < value < math.inf:
        message = f"{name} must be above 0 and finite, not {value}"
        raise ValueError(message)
    return float(value)


def within(name: str, value: float, low: float, high: float) -> float:
    """Return `value` as a float; ValueError where it does not lie in [low, high]."""
    if not low <= value <= high:
        message = f"{name} must lie in [{low:g}, {high:g}], not {value}"
        raise ValueError(message)
    return float(value)
