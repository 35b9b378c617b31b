"""What a run is and what it was made with, as plain values for config.json and checkpoints."""

from __future__ import annotations

import dataclasses
import platform
from collections.abc import Mapping
from importlib import metadata
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from gymnasium import spaces

from populora_envs.search import Search

if TYPE_CHECKING:
    from populora_envs.interactor import EnvInteractor
    from populora_envs.settings import EvolveSettings


def begin_name(init_from: Any) -> str:
    """Return where a run begins: the kind of a module, or a path."""
    is_module = isinstance(init_from, torch.nn.Module)
    return type(init_from).__qualname__ if is_module else str(init_from)


def settings_of(
    settings: EvolveSettings, interactor: EnvInteractor | None, choices: dict[str, Any]
) -> dict[str, Any]:
    """Return what makes a run the run it is, as plain values."""
    plain = {name: _plain(value) for name, value in dataclasses.asdict(settings).items()}
    if interactor is not None:
        plain["observation_space"] = str(interactor.observation_space)
        plain["action_space"] = str(interactor.action_space)
    plain["choices"] = {name: name_of(value) for name, value in choices.items()}
    return plain


def _plain(value: Any) -> Any:
    if isinstance(value, spaces.Box):
        return [value.low.tolist(), value.high.tolist()]
    if isinstance(value, (np.ndarray, torch.Tensor)):
        return value.tolist()
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): name_of(item) for key, item in value.items()}
    return value if isinstance(value, (bool, int, float, str, type(None))) else str(value)


def name_of(thing: Any) -> Any:
    """Return a plain value, or the name of a function or object."""
    if callable(thing) or isinstance(thing, Search):
        return getattr(thing, "__qualname__", type(thing).__qualname__)
    return _plain(thing)


def machine_of(interactor: EnvInteractor | None) -> dict[str, Any]:
    """Return what a run was made with."""
    players = None if interactor is None else interactor.players
    return {
        "workers": 0 if players is None else players.num_workers,
        "workers_chosen": "" if players is None else players.choice,
        "versions": versions(),
        "machine": f"{platform.system()} {platform.machine()}",
    }


def versions() -> dict[str, str]:
    """Return the versions on which numbers depend."""
    packages = ("populora-envs", "torch", "numpy", "gymnasium")
    return {"python": platform.python_version(), **{name: _version(name) for name in packages}}


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"
