"""Routed layers: one forward in which every sample goes through its own individual's weights.

A sample's output does not depend, to the last bit, on what else is in the batch: `plans` multiplies each
by its own matrices, `invariance` holds what the rest of the model needs.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from populora_envs.fused import ArrayLayer, array_forward, fuse
from populora_envs.invariance import InstalledForward, forget_plans, in_tiles, make_invariant
from populora_envs.layer_plan import LayerPlan
from populora_envs.plans import Route, materialises
from populora_envs.seeds import normal

if TYPE_CHECKING:
    from contextlib import AbstractContextManager


class RoutedLinear(ArrayLayer):
    """The forward of one adapted `nn.Linear`: base weight plus each individual's low-rank change.

    Args:
        layer: the base layer; its weight is `[out, in]`.
        pop_size: the number of individuals P.
        low_rank: the rank r of the change.
        dtype: of `down` and `up`.
        route: where each sample goes.
        adapt_bias: whether individuals change the bias too, where there is one.

    Attributes:
        down: `[P, in, r]`.
        up: `[P, out, r]`; the change of individual p is ``up[p] @ down[p].T``.
        offset: `[P, out]`, the change of the bias; None where nobody changes it.
    """

    def __init__(
        self,
        layer: nn.Linear,
        pop_size: int,
        low_rank: int,
        dtype: torch.dtype,
        route: Route,
        *,
        adapt_bias: bool = False,
    ) -> None:
        self.weight: Tensor = layer.weight
        self.bias: Tensor | None = layer.bias
        self.route = route

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(pop_size, *shape, dtype=dtype, device=layer.weight.device)

        with torch.inference_mode(mode=False):  # inference tensors do not count their changes
            self.down = zeros(layer.in_features, low_rank)
            self.up = zeros(layer.out_features, low_rank)
            has_offset = adapt_bias and layer.bias is not None
            self.offset = zeros(layer.out_features) if has_offset else None
        self._plan: LayerPlan | None = None
        self._matrices: list[Tensor] = []
        self._common: tuple[Tensor | None, Tensor | None] = (None, None)
        self._own_bias: Tensor | None = None

    def draw_(self, generator: torch.Generator, *, zero: bool) -> None:
        """Draw new individuals: `down` from N(0, 1/in), `up` from N(0, 1/(2r)), or 0 where `zero`.

        Half the variance of a mutation step in `up` keeps the first generation near the base; a
        change of the bias has the variance of a change of a weight, 1/(2 in).
        """
        fan_in, rank = self.down.shape[1:]
        scales = {"down": fan_in, "up": 2 * rank, "offset": 2 * fan_in}
        for name, weights in self.parts.items():
            weights.copy_(normal(weights.shape, generator) / scales[name] ** 0.5)
            if zero and name != "down":
                weights.zero_()

    @property
    def parts(self) -> dict[str, Tensor]:
        """The individuals' weights by name: `down`, `up`, and `offset` where there is one."""
        parts = {"down": self.down, "up": self.up}
        return parts if self.offset is None else {**parts, "offset": self.offset}

    @property
    def materialises(self) -> bool:
        """Whether the rows meet full matrices rather than base and factors."""
        pop_size, fan_in, rank = self.down.shape
        return materialises(pop_size, fan_in, self.up.shape[1], rank, self.weight.element_size())

    def merged(self, ids: Tensor) -> Tensor:
        """Return base plus change, `[len(ids), out, in]`: in float32 or wider, rounded once."""
        wide = self._wide()
        change = torch.bmm(self.up[ids].to(wide), self.down[ids].to(wide).transpose(1, 2))
        return (self.weight.detach().to(wide) + change).to(self.weight.dtype)

    def merged_bias(self, ids: Tensor) -> Tensor | None:
        """Return the bias plus its change, `[len(ids), out]`, likewise; None where there is none."""
        if self.bias is None:
            return None
        bias, wide = self.bias.detach(), self._wide()
        if self.offset is None:
            return bias.expand(len(ids), -1)
        return (bias.to(wide) + self.offset[ids].to(wide)).to(bias.dtype)

    def _wide(self) -> torch.dtype:
        wide = torch.promote_types(self.down.dtype, torch.float32)
        return torch.promote_types(self.weight.dtype, wide)

    def own_base_(self, layer: nn.Module) -> None:
        """Give the base layer weights of its own, which nothing else in the model shares."""
        for name, parameter in list(layer.named_parameters(recurse=False)):
            own = nn.Parameter(parameter.detach().clone(), parameter.requires_grad)
            setattr(layer, name, own)
        parameters = dict(layer.named_parameters(recurse=False))
        self.weight, self.bias = parameters["weight"], parameters.get("bias")
        self.forget()

    def forget(self) -> None:
        """Plan anew at the next call."""
        self._plan = None

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles plan anew."""
        empty: dict[str, Any] = {
            "_plan": None,
            "_matrices": [],
            "_common": (None, None),
            "_own_bias": None,
        }
        return {**self.__dict__, **empty}

    def __call__(self, input: Tensor) -> Tensor:
        """Return `[rows, ..., out]` for `[rows, ..., in]`, rows a multiple of the route's groups."""
        if torch.compiler.is_compiling():
            return self._traced(input)
        if input.dim() == 1:
            return self(input[None])[0]
        return self._present_plan()(input)

    def prepare(self) -> None:
        """Gather what a compiled model multiplies by; one row per group."""
        plan = self._present_plan()
        self._matrices = plan.by_tensors.gather()
        self._own_bias = plan.by_tensors.gather_bias()
        weight = None if plan.shared is None else self.weight
        self._common = (weight, self.bias if self._own_bias is None else None)

    def _traced(self, input: Tensor) -> Tensor:
        """Return what `__call__` gives, for a compiler to look at."""
        rows = input.reshape(len(input), -1, input.shape[-1]).to(self._matrices[0].dtype)
        for matrices in self._matrices:
            rows = torch.bmm(rows, matrices)
        if self._own_bias is not None:
            rows = rows + self._own_bias[:, None]
        output = rows.reshape(*input.shape[:-1], rows.shape[-1])
        weight, bias = self._common
        if weight is not None:
            output = output + in_tiles(input, weight, bias)
        elif bias is not None:
            output = output + bias
        return output.to(input.dtype)

    def array_plan(self, dtype: np.dtype[Any]) -> LayerPlan | None:
        """Return the present plan, None where arrays of `dtype` cannot go through."""
        plan = self._present_plan()
        return plan if plan.array_dtype == dtype else None

    def _present_plan(self) -> LayerPlan:
        tensors = (self.down, self.up, self.weight, self.bias, self.offset)
        versions = tuple(0 if tensor is None else tensor._version for tensor in tensors)
        plan = self._plan
        if plan is None or plan.versions != versions:
            with torch.inference_mode(mode=False), torch.no_grad():
                plan = self._plan = LayerPlan(self, versions)
        return plan


class RoutedModel:
    """A model of routed layers, called with one row per slot.

    Args:
        model: whose layers were adapted by `route_model`.
        route: of these layers.
    """

    def __init__(self, model: nn.Module, route: Route) -> None:
        self.model, self.route = model, route
        self._on_array = array_forward(model)

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles look at their own layers anew."""
        return {"model": self.model, "route": self.route}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Look at the layers anew."""
        self.__init__(state["model"], state["route"])  # type: ignore[misc]

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
        if not isinstance(batch, np.ndarray):
            return self.model(batch)
        output = None if self._on_array is None else self._on_array(batch, self.route.stamp)
        return self.model(torch.from_numpy(batch)) if output is None else output


def route_model(
    model: nn.Module,
    targets: list[str],
    pop_size: int,
    low_rank: int,
    dtype: torch.dtype | None,
    route: Route,
    *,
    adapt_bias: bool = False,
) -> dict[str, RoutedLinear]:
    """Adapt the layers at `targets` in place and return their routed forwards by path."""
    routed: dict[str, RoutedLinear] = {}
    for name in targets:
        layer = model.get_submodule(name)
        assert isinstance(layer, nn.Linear)
        wide = dtype or torch.promote_types(layer.weight.dtype, torch.float32)
        routed[name] = RoutedLinear(layer, pop_size, low_rank, wide, route, adapt_bias=adapt_bias)
        routed[name].install(layer)
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
