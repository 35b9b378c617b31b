"""Layers whose output for a row does not depend, to the last bit, on what else is in the batch.

A product of all rows with one shared matrix has this property only in tiles of a fixed number of rows.
torch's elementwise functions round the last numbers of a tensor otherwise than the rest, which does not
show where the tensor has a multiple of 32 numbers. A model that calls functions (`torch.tanh`) in place
of modules (`nn.Tanh`) is out of reach: its last bits may depend on the batch.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from populora_envs.targets import unsupported

TILE = 64
"""Rows per tile of the products with a shared matrix."""

VECTOR = 32
"""Numbers that a CPU takes at once in an elementwise function, at most."""

ELEMENTWISE = (
    nn.CELU,
    nn.ELU,
    nn.GELU,
    nn.LogSigmoid,
    nn.Mish,
    nn.SELU,
    nn.SiLU,
    nn.Sigmoid,
    nn.Softplus,
    nn.Softsign,
    nn.Tanh,
    nn.Tanhshrink,
)
"""Activations that do more than compare, add and multiply."""


def tiled_linear(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Apply one linear layer to `rows` `[N, in]` in tiles of 64, the last one padded."""
    count = len(rows)
    padding = -count % TILE
    padded = F.pad(rows, (0, 0, 0, padding)) if padding else rows
    if len(padded) <= TILE:
        return F.linear(padded, weight, bias)[:count]
    tiles = padded.reshape(-1, TILE, padded.shape[1]).unbind()
    return torch.cat([F.linear(tile, weight, bias) for tile in tiles])[:count]


class InstalledForward:
    """A forward that stands in for a layer's own."""

    def install(self, layer: nn.Module) -> None:
        """Let `layer` compute with this; it keeps its class, its name and its weights."""
        layer.__dict__["forward"] = self


class TiledLinear(InstalledForward):
    """The forward of a base layer that nobody adapts, independent of who else is in the batch."""

    def __init__(self, layer: nn.Linear) -> None:
        self.weight, self.bias = layer.weight, layer.bias

    def __call__(self, input: Tensor) -> Tensor:
        """Return `[..., out]` for `[..., in]`."""
        rows = input.reshape(-1, input.shape[-1])
        output = tiled_linear(rows, self.weight, self.bias)
        return output.reshape(*input.shape[:-1], output.shape[-1])


class PaddedElementwise(InstalledForward):
    """The forward of an activation on a multiple of 32 numbers."""

    def __init__(self, layer: nn.Module) -> None:
        self.layer = layer

    def __call__(self, input: Tensor) -> Tensor:
        """Return the activation of `input`, of any shape."""
        forward = type(self.layer).forward
        missing = -input.numel() % VECTOR
        if not missing and input.is_contiguous():
            return forward(self.layer, input)  # type: ignore[no-any-return]
        flat = F.pad(input.reshape(-1), (0, missing))
        return forward(self.layer, flat)[: input.numel()].reshape(input.shape)  # type: ignore[no-any-return]


class Unfused(InstalledForward):
    """The forward of a torch encoder without its fused path, which reads weights past the layers."""

    def __init__(self, encoder: nn.Module) -> None:
        self.encoder = encoder

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the encoder's layers give, called one by one."""
        enabled = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            return type(self.encoder).forward(self.encoder, *args, **kwargs)
        finally:
            torch.backends.mha.set_fastpath_enabled(enabled)


def make_invariant(model: nn.Module) -> None:
    """Install such forwards in place on the layers of `model` that have none of their own."""
    for layer in model.modules():
        if "forward" in layer.__dict__:
            continue
        if isinstance(layer, nn.Linear) and unsupported(layer) is None:
            TiledLinear(layer).install(layer)
        elif type(layer) in ELEMENTWISE:
            PaddedElementwise(layer).install(layer)
        elif isinstance(layer, (nn.TransformerEncoder, nn.TransformerEncoderLayer)):
            Unfused(layer).install(layer)
