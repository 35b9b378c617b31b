"""A routed `nn.Sequential` as one run over arrays: the same numbers with half of the calls.

A small policy costs what its Python calls cost. Where a Sequential holds adapted layers and activations
alone, and no hook listens, its layers hand NumPy arrays to each other.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from populora_envs.invariance import ELEMENTWISE, VECTOR, InstalledForward

if TYPE_CHECKING:
    from collections.abc import Callable

    from populora_envs.plans import Operation

    Activation = Callable[[Tensor], Any]


class ArrayPlan(Protocol):
    """How an adapted layer multiplies arrays."""

    fan_in: int
    fan_out: int

    def gather(self) -> list[np.ndarray]:
        """Return the matrices of the present route; the same list where it was only rewritten."""
        ...

    def operations(self, array: np.ndarray, output: np.ndarray) -> list[Operation]:
        """Return what writes the layer's `[rows, out]` for `[rows, in]`, both C-contiguous."""
        ...


class ArrayLayer(InstalledForward):
    """The forward of a layer that may work on arrays."""

    def array_plan(self, dtype: torch.dtype) -> ArrayPlan | None:
        """Return the present plan, None where inputs of `dtype` cannot go through as arrays."""
        raise NotImplementedError


class FusedSequential(InstalledForward):
    """The forward of a Sequential of adapted layers and activations, beginning with a layer.

    What the layers do to arrays of one shape is written down once and repeated while their plans and
    their matrices stay where they are.
    """

    def __init__(self, sequence: nn.Sequential) -> None:
        self.sequence = sequence
        self._forget()

    def _forget(self) -> None:
        self._modules: list[nn.Module] = []
        self._hooks: list[Any] = []
        self._stages: list[tuple[ArrayLayer, list[Activation]]] = []
        self._script: _Script | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles look at their own layers anew."""
        return {"sequence": self.sequence}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Look at the layers anew."""
        self.sequence = state["sequence"]
        self._forget()

    def __call__(self, input: Tensor) -> Tensor:
        """Return what the layers give; they are called one by one where they must be."""
        shape, needs_graph = input.shape, input.requires_grad and torch.is_grad_enabled()
        plans = None
        if len(shape) == 2 and shape[0] and not needs_graph:
            plans = self._plans(input.dtype)
        if not plans:
            return nn.Sequential.forward(self.sequence, input)  # type: ignore[no-any-return, no-untyped-call]
        array = input.detach().numpy() if input.requires_grad else input.numpy()
        matrices = [plan.gather() for plan in plans]
        script = self._script
        if script is None or not script.holds(array, plans, matrices):
            activations = [functions for _, functions in self._stages]
            with torch.inference_mode(mode=False):  # its tensors are written in any mode
                script = self._script = _Script(array, plans, matrices, activations)
        return script.play(array)

    def _plans(self, dtype: torch.dtype) -> list[ArrayPlan]:
        """Return the plans of all layers, none where one of them cannot work on arrays."""
        modules = list(self.sequence._modules.values())
        if modules != self._modules:
            self._forget()
            self._modules, self._stages = modules, _stages(modules)
            self._hooks = [h for m in modules for h in (m._forward_hooks, m._forward_pre_hooks)]
        if any(self._hooks):
            return []
        plans = [layer.array_plan(dtype) for layer, _ in self._stages]
        return [] if None in plans else plans  # type: ignore[return-value]


class _Script:
    """What the layers do to an array of one shape, as operations on buffers of its own."""

    def __init__(
        self,
        array: np.ndarray,
        plans: list[ArrayPlan],
        matrices: list[list[np.ndarray]],
        activations: list[list[Activation]],
    ) -> None:
        self._shape, self._plans, self._matrices = array.shape, plans, matrices
        self._input = rows = np.empty(array.shape, array.dtype)
        self._operations: list[Operation] = []
        for plan, functions in zip(plans, activations, strict=True):
            numbers = len(array) * plan.fan_out
            # Activations round alike on multiples of 32 numbers.
            flat = np.zeros(numbers + -numbers % VECTOR, dtype=array.dtype)
            output = flat[:numbers].reshape(len(array), plan.fan_out)
            self._operations += plan.operations(rows, output)
            tensor = torch.from_numpy(flat)
            self._operations += [(function, (tensor,)) for function in functions]
            rows = output
        self._output = rows

    def holds(
        self, array: np.ndarray, plans: list[ArrayPlan], matrices: list[list[np.ndarray]]
    ) -> bool:
        """Return whether it is still what the layers do."""
        return (
            array.shape == self._shape
            and all(map(operator.is_, plans, self._plans))
            and all(map(operator.is_, matrices, self._matrices))
        )

    def play(self, array: np.ndarray) -> Tensor:
        """Return a fresh tensor with what the layers give for `array`."""
        self._input[...] = array
        for function, operands in self._operations:
            function(*operands)
        return torch.from_numpy(self._output.copy())


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
    return lambda flat: flat.copy_(type(module).forward(module, flat))


# torch's, for those of NumPy take wide registers, which slow down the simulator that runs next.
_IN_PLACE: dict[type[nn.Module], Activation] = {
    nn.ReLU: torch.relu_,
    nn.Tanh: torch.tanh_,
    nn.Sigmoid: torch.sigmoid_,
    nn.Identity: lambda flat: flat,
}


def fuse(model: nn.Module) -> None:
    """Install such forwards on the Sequentials of `model` that have none of their own."""
    for layer in model.modules():
        if type(layer) is nn.Sequential and "forward" not in layer.__dict__:
            FusedSequential(layer).install(layer)
