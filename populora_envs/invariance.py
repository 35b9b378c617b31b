"""Layers whose output for a row does not depend, to the last bit, on what else is in the batch.

A product of all rows with one shared matrix has this property only in tiles of a fixed number of rows.
torch's elementwise functions round the last numbers of a tensor otherwise than the rest, which does not
show where the tensor has a multiple of 32 numbers. A model that calls functions (`torch.tanh`) in place
of modules (`nn.Tanh`) is out of reach: its last bits may depend on the batch.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from populora_envs.layer_kinds import LINEAR, Matrix, kind_of, matrices_of, unsupported

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Operation = tuple[Callable[..., Any], tuple[Any, ...]]
    """A function that writes into one of its arguments, and these."""

NUMPY_FLOATS = (torch.float32, torch.float64)
"""Floating types of torch that NumPy has and multiplies by BLAS."""

TILE, ACCELERATOR_TILE = 16, 1024
"""Rows per tile of the products with a shared matrix: on a CPU, and where a call costs more than rows."""

SMALL_PRODUCT = 8192
"""Most numbers of a matrix, times the rows that one individual multiplies by it at once, for NumPy: above
that its BLAS may use threads, whose number would show in the last bits."""

TRANSPOSED_BYTES = 2**24
"""Largest weight of which a transposed copy is kept: products of few rows are up to 1.8x faster."""

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


class Tiles:
    """One linear layer in tiles of as many rows, the last one padded; a small one on a CPU in NumPy.

    Args:
        weight: `[out, in]`, as it is now.
        bias: `[out]` or None.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight, self.bias = weight, bias
        self.fan_out, self.fan_in = weight.shape
        self.size = TILE if weight.is_cpu else ACCELERATOR_TILE
        self._constant = None if bias is None else bias.detach()
        self._matrix = weight.detach().t()
        if weight.nbytes <= TRANSPOSED_BYTES:
            self._matrix = self._matrix.contiguous()
        self._array: np.ndarray | None = None
        if weight.is_cpu and weight.dtype in NUMPY_FLOATS and weight.numel() <= SMALL_PRODUCT:
            self._array = self._matrix.numpy()

    def __call__(self, rows: Tensor) -> Tensor:
        """Return `[N, out]` for `[N, in]`."""
        count = len(rows)
        padding = -count % self.size
        padded = F.pad(rows, (0, 0, 0, padding)) if padding else rows.contiguous()
        if self._needs_graph(rows):
            output = in_tiles(padded, self.weight, self.bias, self.size)
        else:
            output = padded.new_empty(len(padded), self.fan_out)
            for function, operands in self.operations(padded.detach(), output):
                function(*operands)
        return output[:count] if padding else output

    def by_sample(self, samples: Tensor) -> Tensor:
        """Return `[N, rows, out]` for `[N, rows, in]`, of any strides: the rows of one are a tile."""
        if samples.shape[1] < self.size:
            output = self(samples.reshape(-1, self.fan_in))
            return output.reshape(*samples.shape[:2], self.fan_out)
        if self._needs_graph(samples):
            return torch.stack([F.linear(sample, self.weight, self.bias) for sample in samples])
        output = samples.new_empty(*samples.shape[:2], self.fan_out)
        for pair in zip(samples.detach(), output, strict=True):
            self._of_tile(*pair)
        return output

    def _needs_graph(self, rows: Tensor) -> bool:
        return torch.is_grad_enabled() and (rows.requires_grad or self.weight.requires_grad)

    def operations(self, rows: Tensor, output: Tensor) -> list[Operation]:
        """Return what writes `[N, out]` for `[N, in]`, both contiguous, N a multiple of the tile's."""
        tiles = tuple(part.reshape(-1, self.size, part.shape[1]) for part in (rows, output))
        if self._array is None:
            return [(self._of_tile, pair) for pair in zip(*tiles, strict=True)]
        found: list[Operation] = [(np.matmul, (tiles[0].numpy(), self._array, tiles[1].numpy()))]
        if self._constant is not None:
            found.append((np.add, (output.numpy(), self._constant.numpy(), output.numpy())))
        return found

    def _of_tile(self, tile: Tensor, output: Tensor) -> Tensor:
        if self._constant is None:
            return torch.mm(tile, self._matrix, out=output)
        return torch.addmm(self._constant, tile, self._matrix, out=output)


def in_tiles(input: Tensor, weight: Tensor, bias: Tensor | None, size: int = VECTOR) -> Tensor:
    """Return `[..., out]` for `[..., in]`, rows a multiple of `size`, for a graph or a compiler."""
    rows = input.reshape(-1, input.shape[-1])
    tiles = torch.cat([F.linear(tile, weight, bias) for tile in torch.split(rows, size)])
    return tiles.reshape(*input.shape[:-1], len(weight))


class InstalledForward:
    """A forward that stands in for a layer's own."""

    def install(self, layer: nn.Module) -> None:
        """Let `layer` compute with this; it keeps its class, its name and its weights."""
        layer.__dict__["forward"] = self

    def forget(self) -> None:
        """Make anew, at the next call, what was made from weights: they have changed unseen."""

    def prepare(self) -> None:
        """Gather what a compiled model multiplies by; one row per group."""


def viewable(layer: nn.Module, matrix: Matrix) -> Tensor:
    """Return the parameter of a matrix, made contiguous where it could not be seen as `[out, in]`."""
    parameter = layer._parameters[matrix.weight]
    assert parameter is not None
    if not parameter.is_contiguous():
        with torch.no_grad():
            parameter.data = parameter.data.contiguous()
    return parameter


class TiledLinear(InstalledForward):
    """The forward of a base layer that nobody adapts, independent of who else is in the batch."""

    def __init__(self, layer: nn.Module, matrix: Matrix = LINEAR) -> None:
        self.matrix = matrix
        self.parameter = viewable(layer, matrix)
        self.bias = None if matrix.bias is None else layer._parameters[matrix.bias]
        self._tiles: Tiles | None = None
        self._version = -1

    @property
    def weight(self) -> Tensor:
        """`[out, in]`."""
        return self.matrix.of(self.parameter)

    def __call__(self, input: Tensor) -> Tensor:
        """Return `[..., out]` for `[..., in]`."""
        parameter = self.parameter
        if torch.compiler.is_compiling():
            return in_tiles(input, self.weight, self.bias)
        tiles, version = self._tiles, 0 if parameter.is_inference() else parameter._version
        if tiles is None or self._version != version:
            with torch.inference_mode(mode=False), torch.no_grad():
                tiles = self._tiles = Tiles(self.weight, self.bias)
            self._version = version
        if input.dim() == 3:
            return tiles.by_sample(input)
        output = tiles(input.reshape(-1, input.shape[-1]))
        return output.reshape(*input.shape[:-1], output.shape[-1])

    def own(self, rows: int) -> tuple[Tensor, Tensor | None]:
        """Return the same weights for every row, `[rows, out, in]` and `[rows, out]`."""
        weight = self.weight.detach().expand(rows, -1, -1)
        return weight, None if self.bias is None else self.bias.detach().expand(rows, -1)

    def forget(self) -> None:
        """Read the weight anew at the next call."""
        self._tiles = None

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles read the weight anew."""
        return {**self.__dict__, "_tiles": None, "_version": -1}


def padded(function: Callable[[Tensor], Tensor], input: Tensor) -> Tensor:
    """Return an elementwise function of `input`, of any shape, by a multiple of 32 numbers."""
    missing = -input.numel() % VECTOR
    if not missing and input.is_contiguous():
        return function(input)
    flat = F.pad(input.reshape(-1), (0, missing))
    return function(flat)[: input.numel()].reshape(input.shape)


class PaddedElementwise(InstalledForward):
    """The forward of an activation on a multiple of 32 numbers."""

    def __init__(self, layer: nn.Module) -> None:
        self.layer = layer

    def __call__(self, input: Tensor) -> Tensor:
        """Return the activation of `input`, of any shape."""
        forward = type(self.layer).forward
        return padded(lambda numbers: forward(self.layer, numbers), input)


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


def forget_plans(model: nn.Module) -> None:
    """Let all installed forwards of `model` make anew what they made from weights."""
    for layer in model.modules():
        forward = layer.__dict__.get("forward")
        if isinstance(forward, InstalledForward):
            forward.forget()


def is_linear(layer: nn.Module) -> bool:
    """Return whether a layer is one product with one matrix."""
    kind = kind_of(layer)
    return kind is not None and kind.name == "linear"


def _is_pretrained_activation(layer: nn.Module) -> bool:
    """Return whether a layer is an activation of `transformers`, all of which are elementwise."""
    from_there = type(layer).__module__ == "transformers.activations"
    return from_there and not any(True for _ in layer.parameters())


def make_invariant(model: nn.Module) -> None:
    """Install such forwards in place on the layers of `model` that have none of their own."""
    for layer in model.modules():
        if "forward" in layer.__dict__:
            continue
        if is_linear(layer) and unsupported(layer) is None:
            TiledLinear(layer, matrices_of(layer)[0]).install(layer)
        elif type(layer) in ELEMENTWISE or _is_pretrained_activation(layer):
            PaddedElementwise(layer).install(layer)
        elif isinstance(layer, (nn.TransformerEncoder, nn.TransformerEncoderLayer)):
            Unfused(layer).install(layer)


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch use one thread, as numbers may depend on how many share a product.

    Policies of a few rows are also faster so: threads that wait for a busy core cost milliseconds.
    """
    count = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(count)
