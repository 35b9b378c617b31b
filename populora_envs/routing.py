"""Routed models: one forward in which every sample goes through its own individual's weights.

A sample's output does not depend, to the last bit, on what else is in the batch: `plans` multiplies each
by its own matrices, `invariance` holds what the rest of the model needs.
"""

from __future__ import annotations

import copy
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from populora_envs.adapted import RoutedLinear
from populora_envs.fused import array_forward, fuse
from populora_envs.invariance import InstalledForward, forget_plans, make_invariant
from populora_envs.layer_kinds import kind_name
from populora_envs.layers import forward_class, install, make_composites_invariant
from populora_envs.targets import matrix_names

__all__ = ["PlainModel", "RoutedLinear", "RoutedModel", "plain_copy", "route_model", "untie"]

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager

    from populora_envs.plans import Route


class RoutedModel:
    """A model of routed layers, called with one row per slot.

    Args:
        model: whose layers were adapted by `route_model`.
        route: of these layers.

    Attributes:
        adapted: matrices that the first call should reach, by name; a warning names the others.
    """

    def __init__(self, model: nn.Module, route: Route) -> None:
        self.model, self.route = model, route
        self.adapted: Mapping[str, RoutedLinear] = {}
        self._on_array = array_forward(model)

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles look at their own layers anew."""
        return {"model": self.model, "route": self.route}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Look at the layers anew."""
        self.__init__(state["model"], state["route"])  # type: ignore[misc]

    def look_for_unreached(self) -> None:
        """After the first call, name the adapted matrices that no forward has come to."""
        unreached = [name for name, layer in self.adapted.items() if not layer.reached]
        self.adapted = {}
        if unreached:
            warnings.warn(
                f"the forward of {type(self.model).__name__} did not reach {unreached}: what individuals "
                "change there has no effect; leave it out of lora_targets",
                stacklevel=4,
            )

    def forget(self) -> None:
        """Plan anew at the next call, as after changes from another process."""
        forget_plans(self.model)

    def frozen(self) -> AbstractContextManager[None]:
        """Return a context in which weights, layers and hooks stay as they are."""
        return self.route.frozen()

    @property
    def takes_arrays(self) -> bool:
        """Whether arrays go through faster than tensors."""
        return self._on_array is not None

    def __call__(self, batch: Any, ids: Tensor) -> Any:
        """Return what the individuals give, one row per slot.

        Args:
            batch: `[B, ...]` on the model's device; a float32 array `[B, D]` where `takes_arrays`.
            ids: int64 `[B]` on this device, which individual sees each row; while the same tensor
                is passed, unchanged, nothing is gathered anew.

        Returns:
            What the model returns; an array may come back for an array.
        """
        self.route.set(ids)
        output: Any = None
        is_array = isinstance(batch, np.ndarray)
        if is_array and self._on_array is not None:
            output = self._on_array(batch, self.route.stamp)
        if output is None:
            output = self.model(torch.from_numpy(batch) if is_array else batch)
        if self.adapted:
            self.look_for_unreached()
        return output


def route_model(
    model: nn.Module,
    targets: list[str],
    pop_size: int,
    ranks: Mapping[str, int],
    dtype: torch.dtype | None,
    route: Route,
    *,
    adapt_bias: bool = False,
) -> dict[str, RoutedLinear]:
    """Adapt the layers at `targets` in place and return their adapted matrices by name.

    Args:
        model: is changed.
        targets: paths of layers.
        pop_size: the number of individuals.
        ranks: of each matrix by its name, as `find_ranks` gives them.
        dtype: of the individuals' weights; None means float32, or the model's where that is wider.
        route: where each sample goes.
        adapt_bias: whether individuals change biases.
    """
    routed: dict[str, RoutedLinear] = {}
    for path in targets:
        layer = model.get_submodule(path)
        adapted: dict[str, RoutedLinear] = {}
        for name, matrix in matrix_names(path, layer).items():
            weight = getattr(layer, matrix.weight)
            wide = dtype or torch.promote_types(weight.dtype, torch.float32)
            made = forward_class(layer)(
                layer, pop_size, ranks[name], wide, route, adapt_bias=adapt_bias, matrix=matrix
            )
            made.path, made.kind = path, kind_name(layer)
            routed[name] = adapted[matrix.weight] = made
        install(layer, adapted)
    make_composites_invariant(model)
    make_invariant(model)
    fuse(model)
    return routed


class PlainModel:
    """A plain model, called with one row per slot whoever sits there.

    Args:
        model: it is not changed; the copy that is called uses its parameters.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = invariant_copy(model)

    def forget(self) -> None:
        """Read weights anew at the next call, as after changes from another process."""
        forget_plans(self.model)

    def __call__(self, batch: Any, ids: Tensor) -> Any:
        """Return what the model gives for a batch."""
        del ids
        return self.model(batch)


def invariant_copy(model: nn.Module) -> nn.Module:
    """Return a copy of a plain model, on the same parameters, whose rows do not depend on others."""
    copied = plain_copy(model, share=True)
    make_composites_invariant(copied)
    make_invariant(copied)
    return copied


def plain_copy(model: nn.Module, *, share: bool = False) -> nn.Module:
    """Return a copy of a routed model with its layers as they were before.

    Args:
        model: whose layers were routed by `route_model`.
        share: let the copy use the same parameters; buffers are always copied.
    """
    forwards = (layer.__dict__.get("forward") for layer in model.modules())
    memo: dict[int, object] = {id(f): None for f in forwards if isinstance(f, InstalledForward)}
    if share:
        memo.update({id(parameter): parameter for parameter in model.parameters()})
    plain = copy.deepcopy(model, memo)
    for layer in plain.modules():
        if layer.__dict__.get("forward", layer) is None:
            del layer.__dict__["forward"]
    return plain


def untie(model: nn.Module) -> None:
    """Let the configuration of a pretrained model say that its embeddings are no longer shared.

    Otherwise `transformers` would share them again when it loads the model from a file.
    """
    for part in model.modules():
        pretrained: Any = part
        config = getattr(part, "config", None)
        if not getattr(config, "tie_word_embeddings", False):
            continue
        if not hasattr(part, "get_output_embeddings"):
            continue
        ends = pretrained.get_input_embeddings(), pretrained.get_output_embeddings()
        if None not in ends and ends[0].weight is not ends[1].weight:
            pretrained.config.tie_word_embeddings = False
            pretrained.all_tied_weights_keys = {}
