"""Individuals as the folders of PEFT's LoRA: ``adapter_model.safetensors`` and ``adapter_config.json``.

PEFT adds ``lora_alpha / r * lora_B @ lora_A`` to a weight; here `lora_A` is `down` transposed, `lora_B` is `up`,
and `lora_alpha` equals `r`. A layer whose smaller side is below the rank has its own in `rank_pattern`.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, Protocol

from safetensors.torch import load_file, save_file

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX = "base_model.model."
_ENDINGS = {
    ".lora_A.weight": "down",
    ".lora_B.weight": "up",
    ".lora_embedding_A": "up",
    ".lora_embedding_B": "down",
}
"""By the end of a tensor's name, which factor it is; of an embedding the roles are exchanged."""


class Adapted(Protocol):
    """What the files ask of an adapted matrix."""

    kind: str
    parameter: Tensor

    @property
    def weight(self) -> Tensor:
        """`[out, in]`."""
        ...


def save_folder(
    folder: Path,
    weights: Mapping[str, Mapping[str, Tensor]],
    layers: Mapping[str, Adapted],
) -> None:
    """Write the factors of one individual; the folder is made where it is missing.

    Args:
        folder: two files in it are written.
        weights: ``{path: {"down": [in, r], "up": [out, r]}}``, paths as in the model of the user.
        layers: the adapted matrices of the same paths.

    Raises:
        ValueError: for changes that a LoRA of PEFT cannot hold: of biases, of norms, recurrent layers,
            attention and grouped convolutions, or of a model that is one layer.
    """
    tensors = {}
    for name, parts in weights.items():
        _check_fits(name, parts, layers[name])
        tensors.update(_tensors(f"{_PREFIX}{name}", parts, layers[name]))
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    ranks = {name: parts["down"].shape[1] for name, parts in weights.items()}
    (folder / CONFIG).write_text(json.dumps(_config(ranks), indent=2) + "\n")


def _check_fits(name: str, parts: Mapping[str, Tensor], layer: Adapted) -> None:
    if not name:
        message = "PEFT names layers inside a model, and this model is one layer: wrap it"
        raise ValueError(message)
    if layer.kind not in {"linear", "conv", "embedding"}:
        message = (
            f"the individual changes {name} of a {layer.kind} layer, which PEFT's files of LoRA do not "
            "hold: leave it out of lora_targets, or save without format="
        )
        raise ValueError(message)
    if "offset" in parts and bool(parts["offset"].any()):
        message = (
            f"the individual changes the bias of {name}, which PEFT's files of LoRA do not hold: "
            "evolve with adapt_bias=False, or save without format="
        )
        raise ValueError(message)


def _tensors(name: str, parts: Mapping[str, Tensor], layer: Adapted) -> dict[str, Tensor]:
    """Return the factors of one layer under PEFT's names and in its shapes."""
    down, up = parts["down"], parts["up"]
    if layer.kind == "embedding":
        found = {"lora_embedding_A": up.T, "lora_embedding_B": down}
    elif layer.kind == "conv":
        kernel = layer.parameter.shape[1:]
        ones = [1] * (len(kernel) - 1)
        found = {
            "lora_A.weight": down.T.reshape(-1, *kernel),
            "lora_B.weight": up.reshape(*up.shape, *ones),
        }
    else:
        found = {"lora_A.weight": down.T, "lora_B.weight": up}
    return {f"{name}.{end}": tensor.contiguous().clone() for end, tensor in found.items()}


def _config(ranks: Mapping[str, int]) -> dict[str, Any]:
    rank = max(ranks.values())
    others = {name: own for name, own in ranks.items() if own != rank}
    return {
        "peft_type": "LORA",
        "task_type": None,
        "base_model_name_or_path": None,
        "r": rank,
        "lora_alpha": rank,
        "rank_pattern": others,
        "alpha_pattern": others,
        "target_modules": sorted(ranks),
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
    }


def load_folder(folder: Path) -> dict[str, dict[str, Tensor]]:
    """Return the factors in a folder of PEFT's, scaled so that `up @ down.T` is the change.

    Raises:
        ValueError: for another kind of adapter, or one with parts that have no place here.
        FileNotFoundError: where a file is missing.
    """
    config = json.loads((folder / CONFIG).read_text())
    _check(folder, config)
    found: dict[str, dict[str, Tensor]] = {}
    for key, tensor in load_file(folder / WEIGHTS).items():
        name, part, is_first = _place(key)
        matrix = tensor.flatten(1)
        found.setdefault(name, {})[part] = matrix.T if is_first else matrix
    for name, parts in found.items():
        parts["up"] = parts["up"] * _scale(config, name)
    return found


def _check(folder: Path, config: dict[str, Any]) -> None:
    unfit = [n for n in ("use_dora", "modules_to_save") if config.get(n)]
    if config.get("peft_type") != "LORA" or unfit or config.get("bias", "none") != "none":
        message = (
            f"{folder} holds a {config.get('peft_type')} adapter with bias={config.get('bias')!r} and "
            f"{', '.join(unfit) or 'nothing else'}: only plain LoRA can become an individual"
        )
        raise ValueError(message)


def _place(key: str) -> tuple[str, str, bool]:
    """Return the path of a layer, ``"down"`` or ``"up"``, and whether it is PEFT's `A`, `[r, ...]`."""
    for ending, part in _ENDINGS.items():
        if key.startswith(_PREFIX) and key.endswith(ending):
            return key[len(_PREFIX) : -len(ending)], part, "_A" in ending
    message = (
        f"{key!r} is no weight of a LoRA on linear layers, convolutions or embeddings: it cannot become "
        "part of an individual"
    )
    raise ValueError(message)


def _scale(config: dict[str, Any], name: str) -> float:
    """Return what PEFT multiplies the change of a layer by."""
    rank = _own(config.get("rank_pattern"), name, config["r"])
    alpha = _own(config.get("alpha_pattern"), name, config["lora_alpha"])
    return float(alpha / (math.sqrt(rank) if config.get("use_rslora") else rank))


def _own(pattern: Mapping[str, float] | None, name: str, default: float) -> float:
    """Return the number of the first entry that names a layer, or the end of its path."""
    for key, value in (pattern or {}).items():
        if name == key or name.endswith(f".{key}"):
            return value
    return default
