"""Routed layers: one forward in which every sample goes through its own individual's weights.

A sample's output does not depend, to the last bit, on what else is in the batch. A batched matrix
product with one matrix per sample has this property when there are at least two samples; `invariance`
holds what the rest of the model needs.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from populora_envs.invariance import InstalledForward, make_invariant, tiled_linear
from populora_envs.seeds import normal

SMALL_LAYER = 4096
"""Layers with at most this many weights are materialised: W + up down^T, one product per row."""

MATERIALISED_BYTES = 2**28
"""Most memory one layer may use for the materialised weights of all individuals."""


class Route:
    """Which individual each sample goes to; shared by the layers of one routed model.

    Attributes:
        count: the number of groups; the samples of a group lie one after the other.
        samples: how many samples each group has.
        rows: int64, the individual of each group; renewed whenever it changes.
    """

    def __init__(self) -> None:
        self.count = self.samples = 1
        self.rows = torch.zeros(2, dtype=torch.int64, device="cpu")
        self._ids: Tensor | None = None
        self._version = 0

    def set(self, ids: Tensor, samples: int = 1) -> None:
        """Send group k of every batch to individual `ids[k]`, int64 `[groups]`."""
        self.samples = samples
        version = 0 if ids.is_inference() else ids._version
        if ids is self._ids and version == self._version:
            return
        self._ids, self._version, self.count = ids, version, len(ids)
        # A batched product of one matrix takes another path than one of several.
        self.rows = ids.clone() if self.count > 1 else ids.repeat(2)


class RoutedLinear(InstalledForward):
    """The forward of one adapted `nn.Linear`: base weight plus each individual's low-rank change.

    Two plans give the same numbers: small layers multiply by materialised weights W + up down^T, wide
    ones by W and by the two factors. Either gathers what its rows need once per route.

    Args:
        layer: the base layer; its weight is `[out, in]`.
        pop_size: the number of individuals P.
        low_rank: the rank r of the change.
        dtype: of `down` and `up`.
        route: where each sample goes.

    Attributes:
        down: `[P, in, r]`.
        up: `[P, out, r]`; the change of individual p is ``up[p] @ down[p].T``.
    """

    def __init__(
        self, layer: nn.Linear, pop_size: int, low_rank: int, dtype: torch.dtype, route: Route
    ) -> None:
        self.weight, self.bias = layer.weight, layer.bias
        self.route = route
        device = layer.weight.device
        with torch.inference_mode(mode=False):  # inference tensors do not count their changes
            self.down = torch.zeros(
                pop_size, layer.in_features, low_rank, dtype=dtype, device=device
            )
            self.up = torch.zeros(
                pop_size, layer.out_features, low_rank, dtype=dtype, device=device
            )
        self._versions: tuple[int, ...] = ()
        self._all: Tensor | None = None
        self._rows: Tensor | None = None
        self._gathered: tuple[Tensor, ...] = ()
        self._factored = False

    def draw_(self, generator: torch.Generator, *, zero: bool) -> None:
        """Draw new individuals: `down` from N(0, 1/in), `up` from N(0, 1/(2r)), or 0 where `zero`.

        Half the variance of a mutation step in `up` keeps the first generation near the base.
        """
        for weights, scale in ((self.down, self.down.shape[1]), (self.up, 2 * self.up.shape[2])):
            weights.copy_(normal(weights.shape, generator) / scale**0.5)
        if zero:
            self.up.zero_()

    @property
    def materialises(self) -> bool:
        """Whether the rows meet full matrices rather than base and factors."""
        pop_size, fan_in, rank = self.down.shape
        fan_out = self.up.shape[1]
        size = fan_in * fan_out
        cheap = size <= max(SMALL_LAYER, rank * (fan_in + fan_out))
        return cheap and pop_size * size * self.weight.element_size() <= MATERIALISED_BYTES

    def merged(self, ids: Tensor) -> Tensor:
        """Return base plus change, `[len(ids), out, in]`: in float32 or wider, rounded once."""
        wide = torch.promote_types(self.down.dtype, torch.float32)
        wide = torch.promote_types(self.weight.dtype, wide)
        change = torch.bmm(self.up[ids].to(wide), self.down[ids].to(wide).transpose(1, 2))
        return (self.weight.detach().to(wide) + change).to(self.weight.dtype)

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles gather anew."""
        return {**self.__dict__, "_versions": (), "_all": None, "_rows": None, "_gathered": ()}

    def _plan(self) -> tuple[Tensor, ...]:
        """Return the tensors gathered for the present route, made anew when something changed."""
        versions = (self.down._version, self.up._version, self.weight._version)
        if versions != self._versions:
            self._versions, self._all, self._rows = versions, None, None
        if self.route.rows is not self._rows:
            with torch.inference_mode(mode=False), torch.no_grad():
                self._gathered = self._gather(self.route.rows)
            self._rows = self.route.rows
        return self._gathered

    def _gather(self, rows: Tensor) -> tuple[Tensor, ...]:
        self._factored = not self.materialises
        # Products of half-precision matrices on a CPU depend on how many there are.
        on_cpu = self.weight.device.type == "cpu"
        least = torch.float32 if on_cpu else self.weight.dtype
        dtype = torch.promote_types(self.weight.dtype, least)
        if self._factored:
            return self.down[rows].to(dtype), self.up[rows].transpose(1, 2).to(dtype)
        if self._all is None:
            everyone = torch.arange(len(self.down), device=self.down.device)
            self._all = self.merged(everyone).transpose(1, 2).to(dtype).contiguous()
        matrices = self._all[rows]
        if self.bias is None:
            return (matrices,)
        return matrices, self.bias.detach().to(dtype).expand(len(rows), 1, -1)

    def __call__(self, input: Tensor) -> Tensor:
        """Return `[rows, ..., out]` for `[rows, ..., in]`, rows a multiple of the route's groups."""
        if input.dim() == 1:
            return self(input[None])[0]
        plan, fan_in, count = self._plan(), input.shape[-1], self.route.count
        if fan_in != self.down.shape[1]:
            message = (
                f"a layer that takes {self.down.shape[1]} numbers met {fan_in}: the model does not "
                "fit its input"
            )
            raise ValueError(message)
        samples = self._samples(len(input))
        if samples > 1:
            groups = input.reshape(count, samples, -1, fan_in)
            output = torch.stack([self._of_group(g, group, plan) for g, group in enumerate(groups)])
        elif count > 1:
            output = self._products(input.reshape(count, -1, fan_in), plan)
        else:
            output = self._products(input.reshape(1, -1, fan_in).expand(2, -1, -1), plan)[:1]
        if self._factored:
            shared = tiled_linear(input.reshape(-1, fan_in), self.weight, self.bias)
            output = shared.reshape(output.shape) + output
        return output.reshape(*input.shape[:-1], output.shape[-1])

    def _samples(self, rows: int) -> int:
        """Return how many samples of each group there are in an input of so many rows."""
        count, samples = self.route.count, self.route.samples
        if rows % count:
            message = (
                f"an adapted layer met {rows} rows for {count} groups: the first dimension "
                "must hold the rows of each individual one after the other"
            )
            raise ValueError(message)
        # Where the model has changed the number of rows, samples cannot be told apart.
        return samples if rows and rows % (count * samples) == 0 else 1

    def _of_group(self, g: int, group: Tensor, plan: tuple[Tensor, ...]) -> Tensor:
        """Return what group g, `[samples, rows, in]`, gives: one product for each sample."""
        return self._products(group, tuple(part[g].expand(len(group), -1, -1) for part in plan))

    def _products(self, samples: Tensor, plan: tuple[Tensor, ...]) -> Tensor:
        """Multiply each sample `[rows, in]` by its own matrices; at least two samples."""
        if samples.dtype != plan[0].dtype:
            return self._products(samples.to(plan[0].dtype), plan).to(samples.dtype)
        if self._factored:
            down, up = plan
            return torch.bmm(torch.bmm(samples, down), up)
        if len(plan) == 1:
            return torch.bmm(samples, plan[0])
        return torch.baddbmm(plan[1], samples, plan[0])


def route_model(
    model: nn.Module,
    targets: list[str],
    pop_size: int,
    low_rank: int,
    dtype: torch.dtype | None,
    route: Route,
) -> dict[str, RoutedLinear]:
    """Adapt the layers at `targets` in place and return their routed forwards by path."""
    routed: dict[str, RoutedLinear] = {}
    for name in targets:
        layer = model.get_submodule(name)
        assert isinstance(layer, nn.Linear)
        wide = dtype or torch.promote_types(layer.weight.dtype, torch.float32)
        routed[name] = RoutedLinear(layer, pop_size, low_rank, wide, route)
        routed[name].install(layer)
    make_invariant(model)
    return routed


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
