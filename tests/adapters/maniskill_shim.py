"""ManiSkill's physics without its pictures, for machines that have no Vulkan driver.

Tests alone use this. Tasks give every body a coloured look, and sapien builds none without a rendering
device. Here looks are left out: materials become plain records, and `add_..._visual` adds nothing. Shapes
that collide, masses, joints, controllers, rewards and ends are the real ones.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from typing import Any

import gymnasium


class PlainMaterial:
    """Takes what a task says of a surface, and keeps it to itself."""

    def __init__(self, **look: Any) -> None:
        self.base_color = [1.0, 1.0, 1.0, 1.0]
        self.__dict__.update(look)

    def set_base_color(self, color: Any) -> None:
        self.base_color = color

    def __getattr__(self, name: str) -> Any:
        if name.startswith("set_"):
            return lambda *values: None
        raise AttributeError(name)


class PlainTexture:
    """A picture that is never loaded."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        del arguments, settings


def _nothing_to_see(builder: Any, *arguments: Any, **settings: Any) -> Any:
    del arguments, settings
    return builder


def replacements() -> list[tuple[Any, str, Any]]:
    """Return what is put in place of what: an object, the name of an attribute, its stand-in."""
    with warnings.catch_warnings():
        # sapien says that it looks for Vulkan's library.
        warnings.simplefilter("ignore")
        importlib.import_module("mani_skill.envs")
    from sapien.pysapien.render import RenderMaterial, RenderTexture2D
    from sapien.wrapper.actor_builder import ActorBuilder

    stand_ins = {RenderMaterial: PlainMaterial, RenderTexture2D: PlainTexture}
    found = [
        (module, real.__name__, stand_in)
        for name, module in list(sys.modules.items())
        for real, stand_in in stand_ins.items()
        if name.startswith(("sapien.", "mani_skill.")) and vars(module).get(real.__name__) is real
    ]
    looks = [name for name in dir(ActorBuilder) if name.startswith("add_") and "visual" in name]
    return found + [(ActorBuilder, name, _nothing_to_see) for name in looks]


def install() -> None:
    """Leave out all looks in this process from now on."""
    for place, name, stand_in in replacements():
        setattr(place, name, stand_in)


def make_without_pictures(name: str, **settings: Any) -> Any:
    """Make an environment on the CPU as the adapter's `make` does, after `install`."""
    standard = {"obs_mode": "state", "sim_backend": "cpu", "render_backend": "none", "num_envs": 1}
    return gymnasium.make(name, **{**standard, **settings})
