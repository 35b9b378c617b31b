"""ale-py: Atari games, single ones and its own vector environment, whose slots can be seeded alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.vector import VectorEnv

from populora_adapters.gymnasium import adapt as adapt_gymnasium
from populora_adapters.gymnasium import make as make_gymnasium
from populora_adapters.gymnasium import multiply
from populora_adapters.gymnasium import visible as visible
from populora_adapters.vectors import SlotResetVector

if TYPE_CHECKING:
    from collections.abc import Sequence

    from populora_envs.adapter import Adapter

__all__ = ["AtariVector", "adapt", "make", "multiply"]


def adapt(envs: list[Any]) -> Adapter:
    """Return one adapter over single games, or over one `AtariVectorEnv`."""
    if len(envs) == 1 and isinstance(envs[0], VectorEnv):
        inner: Any = envs[0].unwrapped
        if type(inner).__name__ == "AtariVectorEnv":
            return AtariVector(envs[0])
    return adapt_gymnasium(envs)


def make(env_id: str, render_mode: str | None = None) -> Any:
    """Make ``"ALE/Pong-v5"``; ImportError where ale-py is not installed."""
    try:
        import ale_py
        import gymnasium
    except ImportError as error:
        error.add_note('to get the Atari games: pip install "populora-envs[atari]"')
        raise
    gymnasium.register_envs(ale_py)
    return make_gymnasium(env_id, render_mode)


def ids() -> list[str]:
    """Return what `make` takes; ImportError where ale-py is missing."""
    import ale_py
    import gymnasium

    gymnasium.register_envs(ale_py)
    return sorted(name for name in gymnasium.registry if name.startswith("ALE/"))


class AtariVector(SlotResetVector):
    """An `AtariVectorEnv`; an episode depends on the seed of its reset alone, sticky actions included.

    Raises:
        ValueError: where it steps some of its games at a time.
    """

    def __init__(self, env: VectorEnv[Any, Any, Any]) -> None:
        inner: Any = env.unwrapped
        if inner.batch_size != env.num_envs:
            message = (
                f"the vector environment steps {inner.batch_size} of its {env.num_envs} games at a "
                "time: leave batch_size out"
            )
            raise ValueError(message)
        super().__init__(env, seeds_slots=True, rests=False)
        self.notes = (
            "AtariVectorEnv clips rewards to -1..1 unless it was made with reward_clipping=False: then "
            "a return is not the score of the game",
        )

    def reset(self, seeds: Sequence[int] | None = None, slots: np.ndarray | None = None) -> Any:
        """Begin episodes in `slots` and return the observations of all."""
        if slots is None or not self._started:
            slots, self._started = np.ones(self.num_slots, dtype=bool), True
        chosen = None if seeds is None else np.asarray(seeds)[slots]
        observation, _ = self._env.reset(seed=chosen, options={"reset_mask": slots.copy()})
        return observation
