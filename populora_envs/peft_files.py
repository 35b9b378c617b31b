"""Individuals as the folders of PEFT's LoRA: ``adapter_model.safetensors`` and ``adapter_config.json``.

PEFT adds ``lora_alpha / r * lora_B @ lora_A`` to a weight; here `lora_A` is `down` transposed, `lora_B` is `up`,
and `lora_alpha` equals `r`.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from safetensors.torch import load_file, save_file

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX = "base_model.model."
_A, _B = ".lora_A.weight", ".lora_B.weight"


def save_folder(folder: Path, weights: Mapping[str, Mapping[str, Tensor]]) -> None:
    """Write the factors of one individual; the folder is made where it is missing.

    Args:
        folder: two files in it are written.
        weights: ``{path: {"down": [in, r], "up": [out, r]}}``, paths as in the model of the user.

    Raises:
        ValueError: for changes that a LoRA of PEFT cannot hold: of biases, or of a model that is one layer.
    """
    for name, parts in weights.items():
        if not name:
            message = "PEFT names layers inside a model, and this model is one layer: wrap it"
            raise ValueError(message)
        if "offset" in parts and bool(parts["offset"].any()):
            message = (
                f"the individual changes the bias of {name}, which PEFT's files of LoRA do not hold: "
                "evolve with adapt_bias=False, or save without format="
            )
            raise ValueError(message)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {}
    for name, parts in weights.items():
        tensors[f"{_PREFIX}{name}{_A}"] = parts["down"].T.contiguous()
        tensors[f"{_PREFIX}{name}{_B}"] = parts["up"].contiguous()
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    rank = next(iter(weights.values()))["down"].shape[1]
    (folder / CONFIG).write_text(json.dumps(_config(rank, sorted(weights)), indent=2) + "\n")


def _config(rank: int, targets: list[str]) -> dict[str, Any]:
    return {
        "peft_type": "LORA",
        "task_type": None,
        "base_model_name_or_path": None,
        "r": rank,
        "lora_alpha": rank,
        "target_modules": targets,
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
        name, part = _place(key)
        found.setdefault(name, {})[part] = tensor.T if part == "down" else tensor
    for name, parts in found.items():
        parts["up"] = parts["up"] * _scale(config, name)
    return found


def _check(folder: Path, config: dict[str, Any]) -> None:
    unfit = [n for n in ("use_dora", "fan_in_fan_out", "modules_to_save") if config.get(n)]
    if config.get("peft_type") != "LORA" or unfit or config.get("bias", "none") != "none":
        message = (
            f"{folder} holds a {config.get('peft_type')} adapter with bias={config.get('bias')!r} and "
            f"{', '.join(unfit) or 'nothing else'}: only plain LoRA can become an individual"
        )
        raise ValueError(message)


def _place(key: str) -> tuple[str, str]:
    """Return the path of a layer and ``"down"`` or ``"up"``."""
    for ending, part in ((_A, "down"), (_B, "up")):
        if key.startswith(_PREFIX) and key.endswith(ending):
            return key[len(_PREFIX) : -len(ending)], part
    message = (
        f"{key!r} is no weight of a LoRA on linear layers: it cannot become part of an individual"
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
