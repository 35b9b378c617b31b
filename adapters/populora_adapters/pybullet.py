"""PyBullet: the environments of pybullet-envs-gymnasium; each has a physics client of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gymnasium

from populora_adapters.gymnasium import adapt as adapt_gymnasium
from populora_adapters.gymnasium import make as make_gymnasium
from populora_adapters.gymnasium import members, multiply
from populora_adapters.gymnasium import visible as visible
from populora_envs.registry import near_names

if TYPE_CHECKING:
    from populora_envs.adapter import Adapter

__all__ = ["adapt", "make", "multiply"]


def adapt(envs: list[Any]) -> Adapter:
    """Return gymnasium's adapter over environments that have built their world.

    The first reset of the walking robots builds it and later ones restore it, and an episode in a
    world just built goes a little otherwise than all later ones. Here no episode is played in one.
    """
    adapter = adapt_gymnasium(envs)
    for env in members(envs):
        if getattr(env.unwrapped, "stateId", 0) < 0:
            env.reset(seed=0)
    return adapter


def make(env_id: str, render_mode: str | None = None) -> Any:
    """Make ``"pybullet/HopperBulletEnv-v0"``.

    Raises:
        ValueError: for an unknown id, with near names.
        ImportError: where the package is not installed, with what installs it.
    """
    try:
        import pybullet_envs_gymnasium  # noqa: F401 - registers its ids
    except ImportError as error:
        error.add_note('to get PyBullet: pip install "populora-envs[pybullet]"')
        raise
    name = env_id.removeprefix("pybullet/")
    known = _known()
    if name not in known:
        message = f"pybullet_envs_gymnasium has no environment {name!r}; {near_names(name, known)}"
        raise ValueError(message)
    return make_gymnasium(name, render_mode)


def _known() -> list[str]:
    own = "pybullet_envs_gymnasium"
    return [i for i, spec in gymnasium.registry.items() if str(spec.entry_point).startswith(own)]


def ids() -> list[str]:
    """Return what `make` takes; ImportError where the package is missing."""
    import pybullet_envs_gymnasium  # noqa: F401 - registers its ids

    return [f"pybullet/{name}" for name in sorted(_known())]
