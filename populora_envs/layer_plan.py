"""The plan of one adapted layer: which products, on which numbers, in NumPy or in torch."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor

from populora_envs.invariance import SMALL_PRODUCT, TILE, Tiles
from populora_envs.plans import ArrayChain, Route, TensorChain

if TYPE_CHECKING:
    from populora_envs.invariance import Operation


class AdaptedLayer(Protocol):
    """What a plan is made from."""

    route: Route
    down: Tensor
    up: Tensor
    offset: Tensor | None

    @property
    def weight(self) -> Tensor:
        """Of the base layer, `[out, in]`."""
        ...

    @property
    def bias(self) -> Tensor | None:
        """Of the base layer, `[out]`."""
        ...

    @property
    def materialises(self) -> bool:
        """Whether the rows meet full matrices rather than base and factors."""
        ...

    def merged(self, ids: Tensor) -> Tensor:
        """Return base plus change, `[len(ids), out, in]`."""
        ...

    def merged_bias(self, ids: Tensor) -> Tensor | None:
        """Return the bias plus its change, `[len(ids), out]`."""
        ...


class LayerPlan:
    """What a layer multiplies by, from its present weights.

    Args:
        layer: whose plan it is.
        versions: of the tensors it is made from.
    """

    def __init__(self, layer: AdaptedLayer, versions: tuple[int, ...]) -> None:
        self.versions, self.route = versions, layer.route
        weight = layer.weight.detach()
        self.fan_out, self.fan_in = weight.shape
        # Products of half-precision matrices on a CPU depend on how many there are.
        least = torch.float32 if weight.is_cpu else weight.dtype
        self.dtype = torch.promote_types(weight.dtype, least)
        everyone = torch.arange(len(layer.down), device=weight.device)
        bias, own_bias = _biases(layer, everyone, self.dtype)
        self.bias, self.shared = bias, None
        if layer.materialises:
            links = [layer.merged(everyone).transpose(1, 2).to(self.dtype)]
        else:
            links = [layer.down.to(self.dtype), layer.up.transpose(1, 2).to(self.dtype)]
            self.bias, self.shared = None, Tiles(weight.to(self.dtype), bias)
        self.by_tensors = TensorChain(links, layer.route, own_bias)
        self.most_rows = 0
        self.by_arrays: ArrayChain | None = None
        self.array_dtype: np.dtype[Any] | None = None
        if weight.is_cpu:
            self._allow_arrays(links, own_bias, weight.dtype)

    bias: Tensor | None
    """Added to the products of a materialised layer, where it is the same for all."""
    shared: Tiles | None
    """What all share of a factored layer, its bias included."""

    def _allow_arrays(
        self, links: list[Tensor], own_bias: Tensor | None, dtype: torch.dtype
    ) -> None:
        self.by_arrays = ArrayChain(links, self.route, own_bias)
        self.most_rows = SMALL_PRODUCT // max(link[0].numel() for link in links)
        self.numpy_dtype = links[0].numpy().dtype
        if self.most_rows and self.dtype == dtype:
            self.array_dtype = self.numpy_dtype

    def __call__(self, input: Tensor) -> Tensor:
        """Return `[rows, ..., out]` for `[rows, ..., in]`."""
        shape = input.shape
        self._check_width(shape[-1])
        groups, samples = self.route.count, self.route.samples_in(shape[0])
        rows = 1 if len(shape) == 2 else math.prod(shape[1:-1])
        grouped = (groups, samples, rows * shape[0] // (groups * samples), self.fan_in)
        needs_graph = input.requires_grad and torch.is_grad_enabled()
        if grouped[2] <= self.most_rows and not needs_graph:
            output = self._in_numpy(input, grouped)
        else:
            output = self._in_torch(input, grouped)
        return output if output.dtype == input.dtype else output.to(input.dtype)

    def _check_width(self, width: int) -> None:
        if width != self.fan_in:
            message = (
                f"a layer that takes {self.fan_in} numbers met {width}: the model does not fit its "
                "input"
            )
            raise ValueError(message)

    def takes(self, rows: int) -> bool:
        """Return whether so many rows are one per sample."""
        return self.route.count * self.route.samples_in(rows) == rows

    def gather(self) -> list[np.ndarray]:
        """Return the matrices of the present groups."""
        assert self.by_arrays is not None
        return self.by_arrays.gather()

    def operations(self, array: np.ndarray, output: np.ndarray, rows: int) -> list[Operation]:
        """Return what writes the layer's output `[padded, out]` for `[padded, in]`.

        Both are C-contiguous; of the rows, padded to a multiple of 16, the first ones count.
        """
        self._check_width(array.shape[1])
        groups, samples = self.route.count, self.route.samples_in(rows)
        return self._operations(array, output, (groups, samples, 1, self.fan_in))

    def _operations(
        self, array: np.ndarray, output: np.ndarray, grouped: tuple[int, ...]
    ) -> list[Operation]:
        assert self.by_arrays is not None
        rows = math.prod(grouped[:-1])
        samples, results = array[:rows].reshape(grouped), output[:rows]
        changes = results if self.shared is None else np.empty_like(results)
        found = self.by_arrays.operations(samples, changes.reshape(*grouped[:-1], self.fan_out))
        if self.bias is not None:
            found.append((np.add, (results, self.bias.numpy(), results)))
        if self.shared is not None:
            found += self.shared.operations(torch.from_numpy(array), torch.from_numpy(output))
            found.append((np.add, (results, changes, results)))
        return found

    @np.errstate(over="ignore", invalid="ignore")
    def _in_numpy(self, input: Tensor, grouped: tuple[int, ...]) -> Tensor:
        rows = math.prod(grouped[:-1])
        array = np.zeros((rows + -rows % TILE, self.fan_in), self.numpy_dtype)
        array[:rows] = input.detach().to(self.dtype).reshape(rows, self.fan_in).numpy()
        output = np.empty((len(array), self.fan_out), array.dtype)
        for function, operands in self._operations(array, output, grouped):
            function(*operands)
        return torch.from_numpy(output[:rows]).reshape(*input.shape[:-1], self.fan_out)

    def _in_torch(self, input: Tensor, grouped: tuple[int, ...]) -> Tensor:
        samples = input.reshape(grouped).to(self.dtype)
        output = self.by_tensors(samples).reshape(*input.shape[:-1], self.fan_out)
        if self.shared is not None:
            common = self.shared.by_sample(samples.flatten(0, 1))
            return common.reshape(output.shape) + output
        return output if self.bias is None else output + self.bias


def _biases(
    layer: AdaptedLayer, everyone: Tensor, dtype: torch.dtype
) -> tuple[Tensor | None, Tensor | None]:
    """Return the bias that all share, `[out]`, or else everyone's own, `[P, out]`."""
    if layer.bias is None:
        return None, None
    if layer.offset is None:
        return layer.bias.detach().to(dtype), None
    own = layer.merged_bias(everyone)
    assert own is not None
    return None, own.to(dtype)
