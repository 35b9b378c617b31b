"""One individual as a module that gradients train, and the way back into the population."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from populora_envs.routing import RoutedLinear, plain_copy, untie

if TYPE_CHECKING:
    from populora_envs.individuals import State
    from populora_envs.layer_kinds import Matrix


class LowRankChange(nn.Module):
    """The change of a weight as a parametrization (`torch.nn.utils.parametrize`).

    Args:
        matrix: how the weight holds `[out, in]`.
        down: `[in, r]`.
        up: `[out, r]`.
        is_vector: keep `down` as it is: the scale of a norm is trained by `up` alone.
    """

    down: Tensor

    def __init__(self, matrix: Matrix, down: Tensor, up: Tensor, *, is_vector: bool) -> None:
        super().__init__()
        self.matrix, self.up = matrix, nn.Parameter(up)
        if is_vector:
            self.register_buffer("down", down)
        else:
            self.down = nn.Parameter(down)

    def forward(self, weight: Tensor) -> Tensor:
        """Return weight plus change, summed in the wider of their types and rounded once."""
        change = self.up @ self.down.T
        wide = torch.promote_types(weight.dtype, change.dtype)
        total = self.matrix.of(weight).to(wide) + change.to(wide)
        return self.matrix.shaped(total, weight).to(weight.dtype)


class Offset(nn.Module):
    """The change of a bias, likewise.

    Args:
        offset: `[out]`.
    """

    def __init__(self, offset: Tensor) -> None:
        super().__init__()
        self.offset = nn.Parameter(offset)

    def forward(self, bias: Tensor) -> Tensor:
        """Return bias plus change."""
        wide = torch.promote_types(bias.dtype, self.offset.dtype)
        return (bias.to(wide) + self.offset.to(wide).reshape(bias.shape)).to(bias.dtype)


class Trainable:
    """What `Population` inherits to hand out individuals for training."""

    model: nn.Module
    individuals: dict[str, RoutedLinear]

    def _single(self, individual: int | Tensor) -> Tensor:
        raise NotImplementedError

    def write_individual_(self, individual: int, state: State) -> None:
        """Overwrite one individual; what `Population` does."""
        raise NotImplementedError

    def to_lora(self, individual: int | Tensor) -> nn.Module:
        """Return a fresh model whose low-rank factors are ordinary parameters, the base frozen.

        It gives what `merge_` gives, trains with any optimiser on
        ``[p for p in module.parameters() if p.requires_grad]``, and is in evaluation mode.
        `load_individual_` puts it back.

        Args:
            individual: its index.
        """
        i = int(self._single(individual)[0])
        model = plain_copy(self.model).requires_grad_(False)
        for layer in self.individuals.values():
            target = model.get_submodule(layer.path)
            parts = {part: weights[i].clone() for part, weights in layer.parts.items()}
            change = LowRankChange(
                layer.matrix, parts["down"], parts["up"], is_vector=layer.is_vector
            )
            parametrize.register_parametrization(target, layer.matrix.weight, change)
            if layer.offset is not None:
                name = str(layer.matrix.bias)
                parametrize.register_parametrization(target, name, Offset(parts["offset"]))
        untie(model)
        return model

    def load_individual_(self, individual: int | Tensor, module: nn.Module) -> None:
        """Overwrite one individual with what a module of `to_lora` has learned.

        Raises:
            ValueError: where the module has no low-rank change of a layer that is adapted here, or
                one of another shape.
        """
        state = {name: _learned(name, layer, module) for name, layer in self.individuals.items()}
        self.write_individual_(int(self._single(individual)[0]), state)


def _learned(name: str, layer: RoutedLinear, module: nn.Module) -> dict[str, Tensor]:
    """Return the factors of one layer from a module of `to_lora`."""
    try:
        held: Any = module.get_submodule(layer.path).parametrizations
        change = held[layer.matrix.weight][0]
        if not isinstance(change, LowRankChange):
            raise TypeError
        parts = {"down": change.down, "up": change.up}
        if layer.offset is not None:
            parts["offset"] = held[str(layer.matrix.bias)][0].offset
    except (AttributeError, KeyError, TypeError) as error:
        message = (
            f"the module holds no low-rank change of {name!r}: pass one that to_lora of this population "
            "has returned"
        )
        raise ValueError(message) from error
    return {part: tensor.detach().cpu().clone() for part, tensor in parts.items()}
