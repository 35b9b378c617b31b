"""Environments that can be drawn, whatever simulator they come from.

The module of an adapter may have, beside `adapt` and `make`:

- `make(env_id, render_mode)`, which is then asked for ``"rgb_array"``;
- `visible(env)`, an environment like one that exists which draws pictures;
- `draw(env)`, a picture, where that is not ``env.render()``;
- `frames_per_second(env)`, where that is not ``env.metadata["render_fps"]``.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from populora_envs import simulators

if TYPE_CHECKING:
    from collections.abc import Callable

DEFAULT_FPS = 30.0
"""Where an environment does not say."""


class Scene(NamedTuple):
    """One environment and how it is drawn."""

    env: Any
    draw: Callable[[], np.ndarray]
    """Returns a picture, uint8 `[height, width, 3]`."""
    fps: float
    """Steps per second of the environment's own time."""


def set_scene(source: Any) -> Scene:
    """Return an environment that can be drawn.

    Args:
        source: an id, a class, a factory or an environment; of a list or dict the first one is taken.

    Raises:
        ValueError: where its simulator does not draw pictures.
    """
    env = _visible(_first(source))
    module = simulators.module_of(env)
    return Scene(env, lambda: _picture(module, env), _fps(module, env))


def _first(source: Any) -> Any:
    while isinstance(source, (list, tuple, Mapping)) and source:
        source = next(iter(source.values() if isinstance(source, Mapping) else source))
    return source


def _visible(source: Any) -> Any:
    if isinstance(source, str):
        module = simulators.module_of_id(source)
        if "render_mode" in inspect.signature(module.make).parameters:
            return module.make(source, render_mode="rgb_array")
        env = module.make(source)
        if not hasattr(module, "draw"):
            env.close()
            message = (
                f"{source} draws no pictures here: pass a factory of an environment like it that does, "
                'such as lambda: gymnasium.make(id, render_mode="rgb_array")'
            )
            raise ValueError(message)
        return env
    env = (
        source()
        if isinstance(source, type) or not simulators.looks_like_environment(source)
        else source
    )
    visible = getattr(simulators.module_of(env), "visible", None)
    return env if visible is None else visible(env)


def _picture(module: Any, env: Any) -> np.ndarray:
    draw = getattr(module, "draw", None)
    drawn = env.render() if draw is None else draw(env)
    if isinstance(drawn, list) and drawn:
        drawn = drawn[-1]
    picture = np.asarray(drawn.cpu() if hasattr(drawn, "cpu") else drawn)
    if picture.ndim == 4 and len(picture) == 1:
        picture = picture[0]
    if picture.ndim != 3 or picture.shape[-1] not in (3, 4) or picture.dtype != np.uint8:
        message = (
            f"{type(env).__name__}.render gave {type(drawn).__name__} of shape {picture.shape} and dtype "
            f'{picture.dtype}, not uint8 [height, width, 3]: make it with render_mode="rgb_array"'
        )
        raise ValueError(message)
    return np.ascontiguousarray(picture[..., :3])


def _fps(module: Any, env: Any) -> float:
    own = getattr(module, "frames_per_second", None)
    if own is not None:
        return float(own(env))
    metadata = getattr(env, "metadata", None) or {}
    return float(metadata.get("render_fps") or DEFAULT_FPS)
