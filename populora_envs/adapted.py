"""An adapted matrix of weights: what all share, and what each individual adds to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from populora_envs.fused import ArrayLayer
from populora_envs.invariance import in_tiles, viewable
from populora_envs.layer_kinds import LINEAR, Matrix
from populora_envs.layer_plan import LayerPlan
from populora_envs.plans import Route, materialises
from populora_envs.seeds import normal

if TYPE_CHECKING:
    import numpy as np


class RoutedLinear(ArrayLayer):
    """The product with one adapted matrix: base weight plus each individual's low-rank change.

    It is the forward of a linear layer, and what the forwards of other kinds of layers multiply by.

    Args:
        layer: the base layer.
        pop_size: the number of individuals P.
        low_rank: the rank r of the change.
        dtype: of `down` and `up`.
        route: where each sample goes.
        adapt_bias: whether individuals change the bias too, where there is one.
        matrix: which weights of the layer, `[out, in]`.

    Attributes:
        path: of the layer in its model.
        kind: of the layer, a name of `layer_kinds`; ``"grouped conv"`` where it has groups.
        down: `[P, in, r]`.
        up: `[P, out, r]`; the change of individual p is ``up[p] @ down[p].T``.
        offset: `[P, out]`, the change of the bias; None where nobody changes it.
    """

    def __init__(
        self,
        layer: nn.Module,
        pop_size: int,
        low_rank: int,
        dtype: torch.dtype,
        route: Route,
        *,
        adapt_bias: bool = False,
        matrix: Matrix = LINEAR,
    ) -> None:
        self.path, self.kind, self.matrix, self.route = "", "linear", matrix, route
        self._read_base(layer)
        fan_out, fan_in = self.weight.shape

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(pop_size, *shape, dtype=dtype, device=self.parameter.device)

        with torch.inference_mode(mode=False):  # inference tensors do not count their changes
            self.down = zeros(fan_in, low_rank)
            self.up = zeros(fan_out, low_rank)
            has_offset = adapt_bias and self.bias is not None
            self.offset = zeros(fan_out) if has_offset else None
        self._plan: LayerPlan | None = None
        self._matrices: list[Tensor] = []
        self._common: tuple[Tensor | None, Tensor | None] = (None, None)
        self._own_bias: Tensor | None = None
        self._own_key: tuple[Any, ...] | None = None
        self._own: tuple[Tensor, Tensor | None] = (self.up, None)

    def _read_base(self, layer: nn.Module) -> None:
        self.parameter = viewable(layer, self.matrix)
        name = self.matrix.bias
        self._bias: Tensor | None = None if name is None else layer._parameters[name]

    @property
    def bias(self) -> Tensor | None:
        """Of the base layer, `[out]`, a view of its parameter, or None."""
        return self._bias if self._bias is None or self._bias.dim() == 1 else self._bias.view(-1)

    @property
    def weight(self) -> Tensor:
        """Of the base layer, `[out, in]`, a view of its parameter."""
        return self.matrix.of(self.parameter)

    @property
    def rank(self) -> int:
        """Of each individual's change."""
        return self.down.shape[2]

    @property
    def fan_in(self) -> int:
        """How many numbers each output is a sum of; 1/sqrt of it is the natural step of a weight."""
        return self.down.shape[1]

    @property
    def is_vector(self) -> bool:
        """Whether `up` varies as a bias does, and `down` stays 1."""
        return False

    @property
    def vectors(self) -> list[Tensor]:
        """Views `[P, out]` of the weights that vary one by one: the offset, the scale of a norm."""
        found = [self.up[..., 0]] if self.is_vector else []
        return found if self.offset is None else [*found, self.offset]

    @property
    def reached(self) -> bool:
        """Whether a forward has come here."""
        return self._plan is not None or self._own_key is not None

    def draw_(self, generator: torch.Generator, *, zero: bool) -> None:
        """Draw new individuals: `down` from N(0, 1/in), `up` from N(0, 1/(2r)), or 0 where `zero`.

        Half the variance of a mutation step in `up` keeps the first generation near the base; a
        change of the bias has the variance of a change of a weight, 1/(2 in).
        """
        fan_in = self.fan_in
        scales = {"down": fan_in, "up": 2 * self.rank, "offset": 2 * fan_in}
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

    def merge_into(self, layer: nn.Module, ids: Tensor) -> None:
        """Give a plain layer base plus change of one individual, `[1]`, as parameters of its own."""
        weight = self.matrix.shaped(self.merged(ids)[0], self.parameter).contiguous()
        setattr(layer, self.matrix.weight, nn.Parameter(weight, self.parameter.requires_grad))
        bias = self.merged_bias(ids)
        if self.offset is not None and self._bias is not None and bias is not None:
            shape, requires_grad = self._bias.shape, self._bias.requires_grad
            own = nn.Parameter(bias[0].reshape(shape), requires_grad)
            setattr(layer, str(self.matrix.bias), own)

    def own_base_(self, layer: nn.Module) -> None:
        """Give the base layer weights of its own, which nothing else in the model shares."""
        for name in (self.matrix.weight, self.matrix.bias):
            parameter = layer._parameters[name] if name is not None else None
            if name is not None and parameter is not None:
                own = nn.Parameter(parameter.detach().clone(), parameter.requires_grad)
                setattr(layer, name, own)
        self._read_base(layer)
        self.forget()

    def settle_(self, rows: Tensor) -> None:
        """Put individuals that have varied, `[n]`, into a form in which they vary well.

        Where the rank makes any change, that is the identity as the smaller factor: with both free a
        small one could be near zero, and hold the other still.
        """
        fan_out, fan_in = self.weight.shape
        if self.rank < min(fan_out, fan_in):
            return
        change = torch.bmm(self.up[rows], self.down[rows].transpose(1, 2))
        identity = torch.eye(self.rank, dtype=change.dtype, device=change.device)
        if fan_in <= fan_out:
            self.down[rows], self.up[rows] = identity, change
        else:
            self.down[rows], self.up[rows] = change.transpose(1, 2), identity

    def forget(self) -> None:
        """Plan anew at the next call."""
        self._plan = self._own_key = None

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles plan anew."""
        empty: dict[str, Any] = {
            "_plan": None,
            "_matrices": [],
            "_common": (None, None),
            "_own_bias": None,
            "_own_key": None,
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

    def own(self, rows: int) -> tuple[Tensor, Tensor | None]:
        """Return base plus change of the individual of each row, `[rows, out, in]` and `[rows, out]`."""
        if torch.compiler.is_compiling():
            return self._own  # made by prepare
        route = self.route
        key = (self._versions(), route.step, rows)
        if self._own_key != key:
            route.samples_in(rows)
            ids = route.ids.repeat_interleave(rows // route.count)
            with torch.inference_mode(mode=False), torch.no_grad():
                self._own = self.merged(ids), self.merged_bias(ids)
            self._own_key = key
        return self._own

    def _versions(self) -> tuple[int, ...]:
        bias, offset = self._bias, self.offset
        return (
            self.down._version,
            self.up._version,
            self.parameter._version,
            0 if bias is None else bias._version,
            0 if offset is None else offset._version,
        )

    def _present_plan(self) -> LayerPlan:
        versions, plan = self._versions(), self._plan
        if plan is None or plan.versions != versions:
            with torch.inference_mode(mode=False), torch.no_grad():
                plan = self._plan = LayerPlan(self, versions)
        return plan
