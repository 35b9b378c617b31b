"""Settings that were tried on an environment, with the score they reached."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

from populora_envs.registry import near_names


def presets() -> dict[str, dict[str, Any]]:
    """Return the presets by environment: ``settings`` of `evolve_with_env`, and what they ``reached``."""
    text = resources.files("populora_envs").joinpath("presets.json").read_text(encoding="utf-8")
    told: dict[str, dict[str, Any]] = json.loads(text)
    return told


def preset(env: str) -> dict[str, Any]:
    """Return the settings for an environment.

    Raises:
        ValueError: where there are none, with the environments that have some.
    """
    known = presets()
    if env not in known:
        message = f"there is no preset for {env!r}; {near_names(env, known)}"
        raise ValueError(message)
    settings: dict[str, Any] = known[env]["settings"]
    return settings
