"""A routed `nn.Sequential` as one run over arrays: the same numbers with a third of the calls.

A small policy costs what its calls cost, more so behind a simulator that has filled the processor's caches:
a call into torch costs 5 to 15 microseconds there, one into NumPy 2. Where a Sequential holds adapted
layers and activations alone, and no hook listens, its layers hand arrays to each other.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules import module as hooks_of_all

from populora_envs.invariance import ELEMENTWISE, NUMPY_FLOATS, TILE, VECTOR, InstalledForward
from populora_envs.normalizer import Standardized

if TYPE_CHECKING:
    from collections.abc import Callable

    from populora_envs.invariance import Operation

    Activation = Callable[[np.ndarray], Any]
    Stamp = tuple[object, int] | None
    OnArray = Callable[[np.ndarray, Stamp], np.ndarray | None]


class ArrayPlan(Protocol):
    """How an adapted layer multiplies arrays."""

    fan_out: int

    def takes(self, rows: int) -> bool:
        """Return whether so many rows are one per sample."""
        ...

    def gather(self) -> list[np.ndarray]:
        """Return the matrices of the present route; the same list where it was only rewritten."""
        ...

    def operations(self, array: np.ndarray, output: np.ndarray, rows: int) -> list[Operation]:
        """Return what writes the layer's output `[padded, out]` for `[padded, in]`.

        Both are C-contiguous; of the rows, padded to a multiple of 16, the first ones count.
        """
        ...


class ArrayLayer(InstalledForward):
    """The forward of a layer that may work on arrays."""

    def array_plan(self, dtype: np.dtype[Any]) -> ArrayPlan | None:
        """Return the present plan, None where arrays of `dtype` cannot go through."""
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
        self._stamp: Stamp = None

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles look at their own layers anew."""
        return {"sequence": self.sequence}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Look at the layers anew."""
        self.sequence = state["sequence"]
        self._forget()

    def __call__(self, input: Tensor) -> Tensor:
        """Return what the layers give; they are called one by one where they must be."""
        output = None
        needs_tensors = torch.compiler.is_compiling() or (
            input.requires_grad and torch.is_grad_enabled()
        )
        if not needs_tensors and input.is_cpu and input.dtype in NUMPY_FLOATS:
            output = self.on_array(input.numpy(force=True), None)
        if output is None:
            return nn.Sequential.forward(self.sequence, input)  # type: ignore[no-any-return, no-untyped-call]
        return torch.from_numpy(output)

    def on_array(self, array: np.ndarray, stamp: Stamp) -> np.ndarray | None:
        """Return a fresh `[rows, out]` for `[rows, in]`, None where the layers must be called.

        Args:
            array: C-contiguous.
            stamp: of the route; while it is the same and not None, nothing is looked at anew.
        """
        script = self._script
        if script is None or stamp is None or stamp != self._stamp or not script.takes(array):
            script = self._find_script(array)
            self._stamp = stamp
        return None if script is None else script.play(array)

    def _find_script(self, array: np.ndarray) -> _Script | None:
        """Return what the layers do to an array of this shape, as they are now."""
        plans = self._plans(array.dtype) if array.ndim == 2 and len(array) else []
        if not plans or not plans[0].takes(len(array)):
            self._script = None
            return None
        matrices = [plan.gather() for plan in plans]
        script = self._script
        if script is None or not script.takes(array) or not script.holds(plans, matrices):
            activations = [functions for _, functions in self._stages]
            with torch.inference_mode(mode=False):  # its tensors are written in any mode
                script = self._script = _Script(array, plans, matrices, activations)
        return script

    def _plans(self, dtype: np.dtype[Any]) -> list[ArrayPlan]:
        """Return the plans of all layers, none where one of them cannot work on arrays."""
        modules = list(self.sequence._modules.values())
        if modules != self._modules:
            self._forget()
            self._modules, self._stages = modules, _stages(modules)
            self._hooks = [hooks for module in modules for hooks in hooks_of(module)]
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
        count = len(array)
        # Full tiles, and an even number of them: activations round alike on multiples of 32 numbers.
        padded = count + -count % (2 * TILE)
        buffer = np.zeros((padded, array.shape[1]), array.dtype)
        self._input = buffer[:count]
        self._operations: list[Operation] = []
        for plan, functions in zip(plans, activations, strict=True):
            before, buffer = buffer, np.zeros((padded, plan.fan_out), array.dtype)
            self._operations += plan.operations(before, buffer, count)
            filled = -(-count * plan.fan_out // VECTOR) * VECTOR
            flat = buffer.reshape(-1)[:filled]
            self._operations += [(function, (flat,)) for function in functions]
        self._output = buffer[:count]

    def takes(self, array: np.ndarray) -> bool:
        """Return whether it is for arrays like this one."""
        return array.shape == self._shape and array.dtype == self._input.dtype

    def holds(self, plans: list[ArrayPlan], matrices: list[list[np.ndarray]]) -> bool:
        """Return whether it is still what the layers do."""
        return all(map(operator.is_, plans, self._plans)) and all(
            map(operator.is_, matrices, self._matrices)
        )

    @np.errstate(over="ignore", invalid="ignore")
    def play(self, array: np.ndarray) -> np.ndarray:
        """Return a fresh array with what the layers give for `array`."""
        self._input[...] = array
        for function, operands in self._operations:
            function(*operands)
        return self._output.copy()


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
    nn.Tanh: lambda flat: np.tanh(flat, out=flat),
    nn.Identity: lambda flat: flat,
}


def hooks_of(module: nn.Module) -> list[Any]:
    """Return the tables of everything that listens to a module's forward."""
    own = [module._forward_hooks, module._forward_pre_hooks]
    return [*own, hooks_of_all._global_forward_hooks, hooks_of_all._global_forward_pre_hooks]


def array_forward(model: nn.Module) -> OnArray | None:
    """Return what runs a whole model on arrays, which may give None where its layers must be called.

    Returns:
        None where no model of this kind can run so.
    """
    inner: OnArray | None = None
    hooks, forward = hooks_of(model), model.__dict__.get("forward")
    if isinstance(forward, FusedSequential):
        inner = forward.on_array
    elif type(model) is Standardized and forward is None:
        inner, hooks = array_forward(model.model), hooks + hooks_of(model.normalizer)
    if inner is None:
        return None
    before = model.normalizer.on_array if isinstance(model, Standardized) else None

    def run(array: np.ndarray, stamp: Stamp) -> np.ndarray | None:
        if any(hooks):
            return None
        return inner(array if before is None else before(array), stamp)

    return run


def fuse(model: nn.Module) -> None:
    """Install such forwards on the Sequentials of `model` that have none of their own."""
    for layer in model.modules():
        if type(layer) is nn.Sequential and "forward" not in layer.__dict__:
            FusedSequential(layer).install(layer)
