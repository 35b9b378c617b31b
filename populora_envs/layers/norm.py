"""Norms whose scale and shift are each individual's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from populora_envs.adapted import RoutedLinear
from populora_envs.layer_kinds import is_pretrained_norm, rms_eps
from populora_envs.seeds import normal

if TYPE_CHECKING:
    import numpy as np

    from populora_envs.layer_kinds import Matrix
    from populora_envs.plans import Route


class RoutedNorm(RoutedLinear):
    """The forward of a norm: the scale is a matrix `[channels, 1]`, the shift its bias.

    An individual's `down` is 1, so that `up` and `offset`, `[P, channels]` and one more dimension, are
    what it adds to scale and shift.
    """

    def __init__(
        self,
        layer: nn.Module,
        pop_size: int,
        low_rank: int,
        dtype: torch.dtype,
        route: Route,
        *,
        adapt_bias: bool,
        matrix: Matrix,
    ) -> None:
        del adapt_bias  # a norm is adapted whole
        super().__init__(layer, pop_size, low_rank, dtype, route, adapt_bias=True, matrix=matrix)
        self.layer = layer

    @property
    def fan_in(self) -> int:
        """The number of channels, as for a bias in front of them."""
        return self.up.shape[1]

    @property
    def is_vector(self) -> bool:
        """Whether `up` varies as a bias does, and `down` stays 1."""
        return True

    def draw_(self, generator: torch.Generator, *, zero: bool) -> None:
        """Draw changes of scale and shift from N(0, 1/(2 channels)), or 0 where `zero`."""
        for weights in self.vectors:
            weights.copy_(normal(weights.shape, generator) / (2 * self.fan_in) ** 0.5)
            if zero:
                weights.zero_()
        self.down.fill_(1.0)

    def __call__(self, input: Tensor) -> Tensor:
        """Return `[rows, ...]` for `[rows, ...]`: normalised, times scale, plus shift."""
        wide = torch.promote_types(input.dtype, torch.float32)
        weight, bias = (self._placed(part, input, wide) for part in self._vectors(len(input)))
        output = _normalised(self.layer, input.to(wide), input.dtype)
        assert weight is not None
        output = output * weight
        return (output if bias is None else output + bias).to(input.dtype)

    def array_plan(self, dtype: np.dtype[Any]) -> None:
        """Return None: arrays do not go through."""
        del dtype

    def prepare(self) -> None:
        """Gather what a compiled model multiplies by."""
        self.own(self.route.count)

    def _vectors(self, rows: int) -> tuple[Tensor, Tensor | None]:
        weight, bias = self.own(rows)
        return weight[..., 0], bias

    def _placed(self, vectors: Tensor | None, input: Tensor, wide: torch.dtype) -> Tensor | None:
        """Return `[rows, channels]` in a shape that spreads over the input."""
        if vectors is None:
            return None
        ones = [1] * (input.dim() - 2)
        if isinstance(self.layer, (nn.LayerNorm, nn.RMSNorm)) or is_pretrained_norm(self.layer):
            shape = list(self.parameter.shape)
            ones = [1] * (input.dim() - len(shape) - 1)
            return vectors.to(wide).reshape(len(vectors), *ones, *shape)
        return vectors.to(wide).reshape(len(vectors), -1, *ones)


def _normalised(layer: Any, input: Tensor, dtype: torch.dtype) -> Tensor:
    """Return what a norm gives before its scale and shift."""
    if is_pretrained_norm(layer):
        # rounded before it is scaled, as there
        return F.rms_norm(input, layer.weight.shape, None, rms_eps(layer)).to(dtype).to(input.dtype)
    if isinstance(layer, nn.LayerNorm):
        return F.layer_norm(input, layer.normalized_shape, None, None, layer.eps)
    if isinstance(layer, nn.RMSNorm):
        return F.rms_norm(input, list(layer.normalized_shape), None, layer.eps)
    if isinstance(layer, nn.GroupNorm):
        return F.group_norm(input, layer.num_groups, None, None, layer.eps)
    return _by_channel(layer, input)


def _by_channel(layer: Any, input: Tensor) -> Tensor:
    """Return what an instance norm or a batch norm gives before its scale and shift."""
    mean, var = layer.running_mean, layer.running_var
    momentum = 0.0 if layer.momentum is None else layer.momentum
    if isinstance(layer, nn.modules.instancenorm._InstanceNorm):
        own = layer.training or mean is None
        if mean is not None:
            mean, var = mean.to(input.dtype), var.to(input.dtype)
        return F.instance_norm(input, mean, var, None, None, own, momentum, layer.eps)
    if layer.training:
        given = input.to(mean.dtype)  # the statistics are written in their own type
        return F.batch_norm(given, mean, var, None, None, True, momentum, layer.eps).to(input.dtype)
    mean, var = mean.to(input.dtype), var.to(input.dtype)
    return F.batch_norm(input, mean, var, None, None, False, momentum, layer.eps)
