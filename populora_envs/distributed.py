"""One process among several: its rank, and what it may do."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from torch import nn


def rank() -> int:
    """Return this process's rank, 0 where there is only one.

    It is that of the process group, or the one that torchrun's RANK says where there is none yet.
    """
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank()
    return int(os.environ.get("RANK", "0"))


def world_size() -> int:
    """Return the number of processes of the job, as `rank` does (torchrun sets WORLD_SIZE)."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_world_size()
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_main_rank() -> bool:
    """Return whether this process writes files and draws the bar."""
    return rank() == 0


def local_rank() -> int | None:
    """Return this process's rank on its machine, None where no launcher has set it."""
    value = os.environ.get("LOCAL_RANK")
    return None if value is None else int(value)


def choose_device(model: nn.Module, device: torch.device | str | None) -> torch.device:
    """Return `device`, else this rank's own GPU under a launcher with CUDA, else the model's.

    Ranks share GPUs in turn where a machine has fewer of them. The GPU becomes the current one, so that
    nothing else is opened on another.
    """
    if device is not None:
        return torch.device(device)
    on_machine = local_rank()
    if on_machine is None or not torch.cuda.is_available():
        return device_of(model)
    chosen = torch.device("cuda", on_machine % torch.cuda.device_count())
    torch.cuda.set_device(chosen)
    return chosen


def device_of(model: nn.Module) -> torch.device:
    """Return where a model's parameters live, the CPU where it has none."""
    return next((p.device for p in model.parameters()), torch.device("cpu"))
