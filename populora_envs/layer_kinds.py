"""The kinds of layers that individuals can change, and the matrices of weights in each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

if TYPE_CHECKING:
    from collections.abc import Callable


class Matrix(NamedTuple):
    """One matrix of weights in a layer.

    Attributes:
        weight: the name of its parameter.
        bias: the name of what is added to its products, None where there is nothing.
        layout: how the parameter holds the matrix `[out, in]`: ``"rows"`` (`[out, *in]`),
            ``"columns"`` (`[in, out]`), or ``"vector"``, one weight per channel (`[out]`, in = 1).
    """

    weight: str = "weight"
    bias: str | None = "bias"
    layout: str = "rows"

    def of(self, parameter: Tensor) -> Tensor:
        """Return a parameter as `[out, in]`, a view of it."""
        if self.layout == "columns":
            return parameter.t()
        if self.layout == "vector":
            return parameter.view(-1, 1)
        return parameter if parameter.dim() == 2 else parameter.view(len(parameter), -1)

    def size(self, parameter: Tensor) -> tuple[int, int]:
        """Return (out, in)."""
        if self.layout == "vector":
            return parameter.numel(), 1
        fan_out, fan_in = len(parameter), parameter[0].numel()
        return (fan_in, fan_out) if self.layout == "columns" else (fan_out, fan_in)

    def shaped(self, matrix: Tensor, parameter: Tensor) -> Tensor:
        """Return `[out, in]` in the shape of the parameter."""
        return (matrix.t() if self.layout == "columns" else matrix).reshape(parameter.shape)


LINEAR = Matrix()


def _nothing(layer: Any) -> str | None:
    del layer
    return None


@dataclass(frozen=True)
class LayerKind:
    """A kind of layers.

    Attributes:
        name: by which the forward of such a layer is found.
        classes: of its modules; one with a forward of its own is refused.
        matrices: gives the matrices of one layer.
        refuses: gives why one layer of these classes cannot be adapted.
        by_default: whether it is adapted where nobody names targets.
        inner: layers inside, which are targets where it is one.
    """

    name: str
    classes: tuple[type[nn.Module], ...]
    matrices: Callable[[Any], list[Matrix]] = lambda layer: [LINEAR]
    refuses: Callable[[Any], str | None] = _nothing
    by_default: bool = True
    inner: tuple[str, ...] = ()

    @property
    def is_norm(self) -> bool:
        """Whether its weights are one vector, the scale of a norm."""
        return self.name == "norm"


def _of_recurrent(layer: nn.RNNBase) -> list[Matrix]:
    found = []
    for number in range(layer.num_layers):
        for direction in ("", "_reverse")[: 1 + layer.bidirectional]:
            end = f"l{number}{direction}"
            names = [("ih", "bias_ih"), ("hh", "bias_hh"), ("hr", None)][
                : 2 + (layer.proj_size > 0)
            ]
            found += [
                Matrix(f"weight_{part}_{end}", f"{bias}_{end}" if bias and layer.bias else None)
                for part, bias in names
            ]
    return found


def _of_cell(layer: nn.RNNCellBase) -> list[Matrix]:
    return [Matrix(f"weight_{p}", f"bias_{p}" if layer.bias else None) for p in ("ih", "hh")]


def _of_attention(layer: nn.MultiheadAttention) -> list[Matrix]:
    """Return the packed input projection, or those of queries, keys and values."""
    if layer.in_proj_weight is not None:
        return [Matrix("in_proj_weight", "in_proj_bias")]
    return [Matrix(f"{part}_proj_weight", None) for part in "qkv"]


def _embedding_refuses(layer: nn.Embedding) -> str | None:
    if layer.max_norm is None:
        return None
    return "rewrites its weight in every forward (max_norm)"


def _norm_refuses(layer: Any) -> str | None:
    weight = getattr(layer, "weight", None)
    return "has no scale and no shift (affine is off)" if weight is None else None


_RECURRENT = (nn.LSTM, nn.GRU, nn.RNN)
_CELLS = (nn.LSTMCell, nn.GRUCell, nn.RNNCell)
_NORMS = (
    *(nn.LayerNorm, nn.GroupNorm, nn.RMSNorm),
    *(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d),
    *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d),
)

KINDS = (
    LayerKind("linear", (nn.Linear,)),
    LayerKind("conv", (nn.Conv1d, nn.Conv2d, nn.Conv3d)),
    LayerKind(
        "embedding", (nn.Embedding,), lambda _: [Matrix(bias=None)], _embedding_refuses, False
    ),
    LayerKind("recurrent", _RECURRENT, _of_recurrent),
    LayerKind("cell", _CELLS, _of_cell),
    LayerKind("attention", (nn.MultiheadAttention,), _of_attention, inner=("out_proj",)),
    LayerKind("norm", _NORMS, lambda _: [Matrix(layout="vector")], _norm_refuses, False),
)
_TRANSPOSED = LayerKind("linear", (), lambda _: [Matrix(layout="columns")])
"""`transformers.pytorch_utils.Conv1D`, a linear layer whose weight is `[in, out]`."""


_PRETRAINED_NORM = LayerKind(
    "norm",
    (),
    lambda _: [Matrix(bias=None, layout="vector")],
    lambda layer: _rms_refuses(layer),
    False,
)
"""The RMS norms of `transformers`, of which every model has a class of its own."""


def is_pretrained_norm(layer: nn.Module) -> bool:
    """Return whether a layer is called an RMS norm and comes from `transformers`."""
    kind = type(layer)
    return kind.__name__.endswith("RMSNorm") and kind.__module__.startswith("transformers.")


def rms_eps(layer: nn.Module) -> float | None:
    """Return what such a norm adds to the mean of the squares."""
    eps = getattr(layer, "variance_epsilon", getattr(layer, "eps", None))
    return eps if isinstance(eps, float) else None


def _rms_refuses(layer: nn.Module) -> str | None:
    """Compare one forward with the definition (Zhang and Sennrich 2019)."""
    weight, eps = layer._parameters.get("weight"), rms_eps(layer)
    fits = weight is not None and weight.dim() == 1 and eps is not None
    if fits and weight is not None and not weight.is_meta:
        with torch.no_grad():
            probe = torch.linspace(-1, 1, 2 * len(weight)).reshape(2, -1).to(weight)
            expected = weight * F.rms_norm(probe, (len(weight),), None, eps)
            fits = torch.allclose(type(layer).forward(layer, probe), expected, 0.02, 0.02)
    name = type(layer).__name__
    return None if fits else f"is a {name}, which does not compute weight * x / rms(x)"


def _is_transposed(layer: nn.Module) -> bool:
    return type(layer).__name__ == "Conv1D" and type(layer).__module__.startswith("transformers.")


def kind_of(layer: nn.Module) -> LayerKind | None:
    """Return the kind of a layer, also of one that is refused; None where it is of none."""
    if _is_transposed(layer):
        return _TRANSPOSED
    if is_pretrained_norm(layer):
        return _PRETRAINED_NORM
    return next((kind for kind in KINDS if isinstance(layer, kind.classes)), None)


def kind_name(layer: nn.Module) -> str:
    """Return the name of a layer's kind, ``"grouped conv"`` for a convolution in groups."""
    kind = kind_of(layer)
    assert kind is not None
    grouped = kind.name == "conv" and layer.groups != 1
    return "grouped conv" if grouped else kind.name


def matrices_of(layer: nn.Module) -> list[Matrix]:
    """Return the matrices of a layer that can be adapted; a bias that it lacks is None in them."""
    kind = kind_of(layer)
    assert kind is not None
    found = []
    for matrix in kind.matrices(layer):
        has_bias = matrix.bias is not None and getattr(layer, matrix.bias, None) is not None
        found.append(matrix if has_bias else matrix._replace(bias=None))
    return found


def unsupported(layer: nn.Module) -> str | None:
    """Return why `layer` cannot be adapted, None where it can."""
    name, kind = type(layer).__name__, kind_of(layer)
    if kind is None:
        return f"is a {name}, a kind of layer that individuals cannot change"
    own = next((base for base in kind.classes if isinstance(layer, base)), type(layer))
    if type(layer).forward is not own.forward or not _convolves(layer):
        return f"is a {name}, which does not compute as a {own.__name__} does"
    reason = kind.refuses(layer)
    return reason or _weights_refuse(layer)


def _convolves(layer: nn.Module) -> bool:
    """Return whether a convolution has not been given another inner forward."""
    inner = next((c._conv_forward for c in KINDS[1].classes if isinstance(layer, c)), None)  # type: ignore[attr-defined]
    return inner is None or type(layer)._conv_forward is inner  # type: ignore[attr-defined]


def _weights_refuse(layer: nn.Module) -> str | None:
    for matrix in matrices_of(layer):
        weight = layer._parameters.get(matrix.weight)
        if weight is None:
            return (
                "has a weight that is computed (a parametrization or weight norm), not a parameter"
            )
        if is_lazy(weight):
            return f"is a {type(layer).__name__} without sizes: run the model once before"
        if not weight.is_floating_point():
            return f"has weights of {weight.dtype}: individuals change floating-point numbers"
    return None
