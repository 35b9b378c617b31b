"""Numbers that searches are set by, and the ranges they lie in."""

from __future__ import annotations

import math

from populora_envs.settings import real_number


def positive(name: str, value: float) -> float:
    """Return `value` as a float; ValueError where it is not finite and above 0."""
    number = real_number(name, value)
    if not 0 < number < math.inf:
        message = f"{name} must be above 0 and finite, not {value}"
        raise ValueError(message)
    return number


def within(name: str, value: float, low: float, high: float) -> float:
    """Return `value` as a float; ValueError where it does not lie in [low, high]."""
    number = real_number(name, value)
    if not low <= number <= high:
        message = f"{name} must lie in [{low:g}, {high:g}], not {value}"
        raise ValueError(message)
    return number
