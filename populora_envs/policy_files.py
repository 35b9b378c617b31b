"""What a policy's file says beside its weights: spaces, head, ranges, and the layers where they are plain.

A file is one of safetensors: weights under their names, the rest as JSON in its header. Nothing in it can run.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor, nn

from populora_envs.files import replace_file
from populora_envs.normalizer import Normalizer, Standardized
from populora_envs.spaces import OrderedDictSpace, is_text

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

_KEY = "populora"
_PLAIN = {
    layer.__name__: layer
    for layer in (nn.Tanh, nn.ReLU, nn.Sigmoid, nn.Identity, nn.SiLU, nn.GELU, nn.ELU, nn.Flatten)
}
"""Layers without settings that a file names."""


def write(path: str | os.PathLike[str], model: nn.Module, described: dict[str, Any]) -> None:
    """Write a model's weights and what goes with them, whole or not at all."""
    tensors = {n: t.detach().cpu().contiguous().clone() for n, t in model.state_dict().items()}
    header = json.dumps({**described, "model": describe_model(model)})
    replace_file(Path(path), save(tensors, metadata={_KEY: header}))


def read(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return weights and description of a file; ValueError where it is none of a policy."""
    with safe_open(Path(path), framework="pt", device="cpu") as file:
        header = (file.metadata() or {}).get(_KEY)
        if header is None:
            message = f"{path} holds no policy: it was not written by policy.save"
            raise ValueError(message)
        return {name: file.get_tensor(name) for name in file.keys()}, json.loads(header)  # noqa: SIM118


def describe_model(model: nn.Module) -> Any:
    """Return a model as plain values, None where it holds more than Linear and plain layers."""
    if isinstance(model, Standardized):
        inner = describe_model(model.model)
        return None if inner is None else ["Standardized", len(model.normalizer.mean), inner]
    if type(model) is nn.Sequential:
        parts = [describe_model(part) for part in model]
        return None if None in parts else ["Sequential", *parts]
    if type(model) is nn.Linear:
        return ["Linear", model.in_features, model.out_features, model.bias is not None]
    name = type(model).__name__
    if _PLAIN.get(name) is not type(model):
        return None
    return [name] if _says_nothing(model) else None


def _says_nothing(layer: nn.Module) -> bool:
    """Return whether a layer has the settings that it has by default."""
    return str(layer) == str(_PLAIN[type(layer).__name__]())


def build_model(description: Any) -> nn.Module:
    """Return the model that `describe_model` has described, with weights of its own."""
    kind, *rest = description
    if kind == "Standardized":
        return Standardized(Normalizer(rest[0]), build_model(rest[1]))
    if kind == "Sequential":
        return nn.Sequential(*(build_model(part) for part in rest))
    if kind == "Linear":
        return nn.Linear(rest[0], rest[1], bias=rest[2])
    return _PLAIN[kind]()


def describe_space(space: spaces.Space[Any]) -> Any:
    """Return a space as plain values; TypeError for one that a file has no word for."""
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        return _describe_nested(space)
    if isinstance(space, spaces.Box):
        bounds = [_short(bound) for bound in (space.low, space.high)]
        return ["Box", *bounds, list(space.shape), np.dtype(space.dtype).name]
    if isinstance(space, spaces.MultiDiscrete):
        return ["MultiDiscrete", space.nvec.tolist(), np.asarray(space.start).tolist()]
    if isinstance(space, spaces.MultiBinary):
        return ["MultiBinary", list(space.shape)]
    if isinstance(space, spaces.Discrete):
        return ["Discrete", int(space.n), int(space.start)]
    if not is_text(space):
        message = f"a policy's file has no word for the space {space}"
        raise TypeError(message)
    return ["Text"]


def _describe_nested(space: Any) -> Any:
    if isinstance(space, spaces.Tuple):
        return ["Tuple", [describe_space(part) for part in space.spaces]]
    kind = "OrderedDict" if isinstance(space, OrderedDictSpace) else "Dict"
    return [kind, [[key, describe_space(part)] for key, part in space.spaces.items()]]


def _short(bound: np.ndarray) -> Any:
    """Return a bound as one number where all are equal, else as nested lists; JSON has a word for inf."""
    flat = bound.ravel()
    return flat[0].item() if flat.size and (flat == flat[0]).all() else bound.tolist()


def _build_box(low: Any, high: Any, shape: list[int], dtype: str) -> spaces.Space[Any]:
    kind: Any = np.dtype(dtype).type
    lowest, highest = (np.broadcast_to(np.asarray(bound, dtype), shape) for bound in (low, high))
    return spaces.Box(lowest, highest, tuple(shape), kind)


def _parts(described: list[Any]) -> list[tuple[str, spaces.Space[Any]]]:
    return [(key, build_space(part)) for key, part in described]


_SPACES: dict[str, Callable[..., spaces.Space[Any]]] = {
    "Box": _build_box,
    "Discrete": lambda n, start: spaces.Discrete(n, start=start),
    "MultiDiscrete": lambda n, start: spaces.MultiDiscrete(np.array(n), start=np.array(start)),
    "MultiBinary": spaces.MultiBinary,
    "Dict": lambda parts: spaces.Dict(_parts(parts)),
    "OrderedDict": lambda parts: OrderedDictSpace(_parts(parts)),
    "Tuple": lambda parts: spaces.Tuple([build_space(part) for part in parts]),
    "Text": lambda: spaces.Text(max_length=2**16),
}


def build_space(description: Any) -> spaces.Space[Any]:
    """Return the space that `describe_space` has described."""
    kind, *arguments = description
    return _SPACES[kind](*arguments)
