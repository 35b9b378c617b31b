"""Convolutions as products: every window of the input is a row."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch.nn.functional as F
from torch import Tensor, nn

from populora_envs.adapted import RoutedLinear
from populora_envs.layers.composite import Composite, batched_product

if TYPE_CHECKING:
    from populora_envs.layers.composite import Product

    Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d


class RoutedConv(Composite):
    """The forward of a convolution in one to three dimensions.

    A weight `[out, in / groups, *kernel]` is the matrix `[out, in / groups * numbers of the kernel]`.
    """

    layer: Convolution

    def prepare(self) -> None:
        """Gather what a compiled model multiplies by."""
        product = self.products["weight"]
        if self.layer.groups > 1 and isinstance(product, RoutedLinear):
            product.own(product.route.count)
        else:
            product.prepare()

    def __call__(self, input: Tensor) -> Tensor:
        """Return `[rows, out, *size]` for `[rows, in, *size]`; without rows, for one sample."""
        dims = len(self.layer.kernel_size)
        if input.dim() == dims + 1:
            output: Tensor = self(input[None])
            return output[0]
        windows = self._windows(input)
        size = windows.shape[2 : 2 + dims]
        order = (0, 1, *range(2 + dims, 2 + 2 * dims), *range(2, 2 + dims))
        columns = windows.permute(order).reshape(len(input), -1, size.numel())
        rows = columns.transpose(1, 2)  # long runs of numbers are copied faster than windows
        product = self.products["weight"]
        output = product(rows) if self.layer.groups == 1 else self._in_groups(rows, product)
        output = output.transpose(1, 2)
        return output.reshape(len(input), self.layer.out_channels, *size)

    def _windows(self, input: Tensor) -> Tensor:
        """Return `[rows, in, *size, *kernel]`, a view of the padded input."""
        layer = self.layer
        padding = list(layer._reversed_padding_repeated_twice)
        mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
        windows = F.pad(input, padding, mode) if any(padding) else input
        steps = zip(layer.kernel_size, layer.stride, layer.dilation, strict=True)
        for dim, (kernel, stride, dilation) in enumerate(steps, start=2):
            span = (kernel - 1) * dilation + 1
            windows = windows.unfold(dim, span, stride)[..., ::dilation]
        return windows

    def _in_groups(self, rows: Tensor, product: Product) -> Tensor:
        """Return `[rows, L, out]` for `[rows, L, channels * numbers of the kernel]`."""
        count, length, groups = len(rows), rows.shape[1], self.layer.groups
        weights, bias = product.own(count)
        apart = rows.reshape(count, length, groups, -1).transpose(1, 2)
        blocks = weights.reshape(count * groups, -1, weights.shape[2]).transpose(1, 2)
        output = batched_product(apart.reshape(count * groups, length, -1), blocks)
        output = output.reshape(count, groups, length, -1).transpose(1, 2)
        output = output.reshape(count, length, -1)
        return output if bias is None else output + bias[:, None]
