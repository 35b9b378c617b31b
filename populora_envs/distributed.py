"""One process among several: its rank, and what it may do."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import nn


def rank() -> int:
    """Return this process's rank, 0 where there is only one (torchrun sets RANK)."""
    return int(os.environ.get("RANK", "0"))


def world_size() -> int:
    """Return the number of processes of the job (torchrun sets WORLD_SIZE)."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_main_rank() -> bool:
    """Return whether this process writes files and draws the bar."""
    return rank() == 0


def local_rank() -> int | None:
    """Return this process's rank on its machine, None where no launcher has set it."""
    value = os.environ.get("LOCAL_RANK")
    return None if value is None else int(value)


def choose_device(model: nn.Module, device: torch.device | str | None) -> torch.device:
    """Return `device`, else ``cuda:LOCAL_RANK`` under a launcher with CUDA, else the model's."""
    if device is not None:
        return torch.device(device)
    on_machine = local_rank()
    if on_machine is not None and torch.cuda.is_available():
        return torch.device("cuda", on_machine)
    return device_of(model)


def device_of(model: nn.Module) -> torch.device:
    """Return where a model's parameters live, the CPU where it has none."""
    return next((p.device for p in model.parameters()), torch.device("cpu"))


def require_one_process(what: str) -> None:
    """Refuse to run `what` on several ranks: RuntimeError."""
    if world_size() > 1:
        message = (
            f"{what} runs in one process in this version, and WORLD_SIZE is {world_size()}: "
            "start it without torchrun"
        )
        raise RuntimeError(message)
