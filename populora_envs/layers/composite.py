"""What the forwards of layers with several matrices share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from populora_envs.adapted import RoutedLinear
from populora_envs.invariance import InstalledForward, TiledLinear

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

Product = RoutedLinear | TiledLinear
"""``[rows, ..., in] -> [rows, ..., out]``, each row by its own individual's matrix or all by one."""


class Composite(InstalledForward):
    """A forward made of products and elementwise steps, in which no row depends on the others.

    Args:
        layer: whose forward it is.
        products: by the name of the parameter that they multiply by.
    """

    def __init__(self, layer: nn.Module, products: Mapping[str, Product]) -> None:
        self.layer, self.products = layer, dict(products)

    def forget(self) -> None:
        """Plan anew at the next call."""
        for product in self.products.values():
            product.forget()

    def prepare(self) -> None:
        """Gather what a compiled model multiplies by."""
        for product in self.products.values():
            product.prepare()


def batched_product(first: Tensor, second: Tensor) -> Tensor:
    """Return `[B, n, m]` of `[B, n, k]` and `[B, k, m]`, each rounded as if it were alone.

    A batched product of one matrix takes another path than one of several, and those of half-precision
    matrices on a CPU depend on how many there are.
    """
    count, dtype = len(first), first.dtype
    if first.is_cpu and dtype in {torch.bfloat16, torch.float16}:
        first, second = first.float(), second.float()
    if count == 1:
        first, second = first.expand(2, -1, -1), second.expand(2, -1, -1)
    return torch.bmm(first, second)[:count].to(dtype)
