"""A routed `nn.Sequential` as one run over arrays: the same numbers with half of the calls.

A small policy costs what its Python calls cost. Where a Sequential holds adapted layers and activations
alone, and no hook listens, its layers hand NumPy arrays to each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from populora_envs.invariance import ELEMENTWISE, VECTOR, InstalledForward

if TYPE_CHECKING:
    from collections.abc import Callable

    Activation = Callable[[np.ndarray], Any]


class ArrayPlan(Protocol):
    """How an adapted layer multiplies arrays."""

    fan_out: int

    def write(self, array: np.ndarray, output: np.ndarray) -> None:
        """Write what the layer gives for `[rows, in]` into `[rows, out]`."""
        ...


class ArrayLayer(InstalledForward):
    """The forward of a layer that may work on arrays."""

    def array_plan(self, dtype: torch.dtype) -> ArrayPlan | None:
        """Return the present plan, None where inputs of `dtype` cannot go through as arrays."""
        raise NotImplementedError


class FusedSequential(InstalledForward):
    """The forward of a Sequential of adapted layers and activations, beginning with a layer."""

    def __init__(self, sequence: nn.Sequential) -> None:
        self.sequence = sequence
        self._modules: list[nn.Module] = []
        self._stages: list[tuple[ArrayLayer, list[Activation]]] = []

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles look at their own layers anew."""
        return {"sequence": self.sequence, "_modules": [], "_stages": []}

    def __call__(self, input: Tensor) -> Tensor:
        """Return what the layers give; they are called one by one where they must be."""
        plans = None
        needs_graph = input.requires_grad and torch.is_grad_enabled()
        if input.dim() == 2 and len(input) and not needs_graph:
            plans = self._plans(input.dtype)
        if not plans:
            return nn.Sequential.forward(self.sequence, input)  # type: ignore[no-any-return, no-untyped-call]
        array = np.ascontiguousarray(input.numpy(force=True))
        for plan, (_, activations) in zip(plans, self._stages, strict=True):
            numbers = len(array) * plan.fan_out
            flat = np.empty(numbers + -numbers % VECTOR, dtype=array.dtype)
            output = flat[:numbers].reshape(len(array), plan.fan_out)
            plan.write(array, output)
            for activate in activations:
                activate(flat)
            array = output
        return torch.from_numpy(array)

    def _plans(self, dtype: torch.dtype) -> list[ArrayPlan]:
        """Return the plans of all layers, none where one of them cannot work on arrays."""
        modules = list(self.sequence._modules.values())
        if modules != self._modules:
            self._modules, self._stages = modules, _stages(modules)
        if any(m._forward_hooks or m._forward_pre_hooks for m in self._modules):
            return []
        plans = [layer.array_plan(dtype) for layer, _ in self._stages]
        return [] if None in plans else plans  # type: ignore[return-value]


def _stages(modules: list[Any]) -> list[tuple[ArrayLayer, list[Activation]]]:
    """Return each adapted layer with the activations behind it, none where there is anything else."""
    stages: list[tuple[ArrayLayer, list[Activation]]] = []
    for module in modules:
        forward = getattr(module, "__dict__", {}).get("forward")
        activation = _activation(module)
        if isinstance(forward, ArrayLayer):
            stages.append((forward, []))
        elif activation is not None and stages:
            stages[-1][1].append(activation)
        else:
            return []
    return stages


def _activation(module: Any) -> Activation | None:
    """Return what applies an activation in place to a multiple of 32 numbers."""
    if type(module) in _IN_PLACE:
        return _IN_PLACE[type(module)]
    if type(module) not in ELEMENTWISE:
        return None

    def activate(flat: np.ndarray) -> None:
        flat[:] = type(module).forward(module, torch.from_numpy(flat)).numpy()

    return activate


_IN_PLACE: dict[type[nn.Module], Activation] = {
    nn.ReLU: lambda flat: np.maximum(flat, 0, out=flat),
    nn.Tanh: lambda flat: torch.tanh_(torch.from_numpy(flat)),
    nn.Sigmoid: lambda flat: torch.sigmoid_(torch.from_numpy(flat)),
    nn.Identity: lambda flat: flat,
}


def fuse(model: nn.Module) -> None:
    """Install such forwards on the Sequentials of `model` that have none of their own."""
    for layer in model.modules():
        if type(layer) is nn.Sequential and "forward" not in layer.__dict__:
            FusedSequential(layer).install(layer)
