"""MiniGrid and BabyAI: grid worlds of gymnasium whose step limit and mission are their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from populora_adapters.gymnasium import adapt as adapt_gymnasium
from populora_adapters.gymnasium import make as make_gymnasium
from populora_adapters.gymnasium import members, multiply

if TYPE_CHECKING:
    from populora_envs.adapter import Adapter

__all__ = ["adapt", "make", "multiply"]


def adapt(envs: list[Any]) -> Adapter:
    """Return gymnasium's adapter, which learns the step limit that these environments count themselves."""
    adapter: Any = adapt_gymnasium(envs)
    if adapter.time_limit is None:
        limits = [_limit(env) for env in members(envs)]
        adapter.time_limit = None if not limits or None in limits else max(map(int, limits))
    return adapter  # type: ignore[no-any-return]


def _limit(env: Any) -> Any:
    """Return the most steps; BabyAI's levels choose theirs at each reset."""
    limit = getattr(env.unwrapped, "max_steps", None)
    return limit if isinstance(limit, (int, np.integer)) and limit > 0 else None


def make(env_id: str) -> Any:
    """Make ``"MiniGrid-Empty-5x5-v0"`` or ``"BabyAI-..."``; ImportError where minigrid is missing."""
    try:
        import minigrid  # noqa: F401 - registers its ids
    except ImportError as error:
        error.add_note('to get MiniGrid: pip install "populora-envs[minigrid]"')
        raise
    return make_gymnasium(env_id)
