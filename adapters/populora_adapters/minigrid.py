"""MiniGrid and BabyAI: grid worlds of gymnasium whose step limit and mission are their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from populora_adapters.gymnasium import adapt as adapt_gymnasium
from populora_adapters.gymnasium import make as make_gymnasium
from populora_adapters.gymnasium import members, multiply
from populora_adapters.gymnasium import visible as visible

if TYPE_CHECKING:
    from collections.abc import Iterator

    from populora_envs.adapter import Adapter

__all__ = ["adapt", "make", "multiply"]

_BONUS = (
    "pays less for what earlier episodes have visited, so who plays later earns less: leave it out"
)

_HABITS = {
    "ActionBonus": f"minigrid's ActionBonus {_BONUS}",
    "PositionBonus": f"minigrid's PositionBonus {_BONUS}",
    "ReseedWrapper": (
        "minigrid's ReseedWrapper begins its own seeds in turn, not those of the episodes: leave it "
        "out and pass episode_seeds"
    ),
}
"""What wrappers carry from one episode into the next."""


def adapt(envs: list[Any]) -> Adapter:
    """Return gymnasium's adapter, which learns what these environments and their wrappers do."""
    adapter: Any = adapt_gymnasium(envs)
    if adapter.time_limit is None:
        limits = [_limit(env) for env in members(envs)]
        adapter.time_limit = None if not limits or None in limits else max(map(int, limits))
    habits = {name for env in members(envs) for name in _wrappers(env)} & _HABITS.keys()
    if habits:
        adapter.seeds_slots = False
        adapter.notes = tuple(_HABITS[name] for name in sorted(habits))
    return adapter  # type: ignore[no-any-return]


def _limit(env: Any) -> Any:
    """Return the most steps, None for BabyAI's levels that choose anew at each reset."""
    inner = env.unwrapped
    limit = getattr(inner, "max_steps", None) if getattr(inner, "fixed_max_steps", True) else None
    return limit if isinstance(limit, (int, np.integer)) and limit > 0 else None


def _wrappers(env: Any) -> Iterator[str]:
    """Yield the names of minigrid's wrappers around an environment."""
    while env is not None:
        if type(env).__module__ == "minigrid.wrappers":
            yield type(env).__name__
        env = getattr(env, "__dict__", {}).get("env")


def make(env_id: str, render_mode: str | None = None) -> Any:
    """Make ``"MiniGrid-Empty-5x5-v0"`` or ``"BabyAI-..."``; ImportError where minigrid is missing."""
    try:
        import minigrid  # noqa: F401 - registers its ids
    except ImportError as error:
        error.add_note('to get MiniGrid: pip install "populora-envs[minigrid]"')
        raise
    return make_gymnasium(env_id, render_mode)


def ids() -> list[str]:
    """Return what `make` takes; ImportError where minigrid is missing."""
    import gymnasium
    import minigrid  # noqa: F401 - registers its ids

    return sorted(i for i in gymnasium.registry if i.startswith(("MiniGrid-", "BabyAI-")))
