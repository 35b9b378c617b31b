"""torch's multi-head attention, its projections by every row's own individual."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from populora_envs.layers.composite import Composite, batched_product


class RoutedAttention(Composite):
    """The forward of `nn.MultiheadAttention`, in training and in evaluation alike.

    The output projection is called as the module that it is.
    """

    layer: nn.MultiheadAttention

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Return what the layer returns; see torch."""
        del is_causal  # a hint that attn_mask, which torch wants with it, is causal
        inputs = (query, key, value)
        one = query.dim() == 2
        if one:
            inputs = tuple(part[None] for part in inputs)  # type: ignore[assignment]
            key_padding_mask = None if key_padding_mask is None else key_padding_mask[None]
        elif not self.layer.batch_first:
            inputs = tuple(part.transpose(0, 1) for part in inputs)  # type: ignore[assignment]
        heads = [self._heads(part) for part in self._projected(*inputs)]
        mask = self._mask(heads, attn_mask, key_padding_mask)
        mixed, weights = self._attend(heads, mask)
        output: Tensor = self.layer.out_proj(mixed)
        if one:
            output, weights = output[0], weights[0]
        elif not self.layer.batch_first:
            output = output.transpose(0, 1)
        if not need_weights:
            return output, None
        return output, weights.mean(dim=-3) if average_attn_weights else weights

    def _projected(self, query: Tensor, key: Tensor, value: Tensor) -> list[Tensor]:
        """Return queries, keys and values `[rows, T, E]`, with those that the layer has learned."""
        layer = self.layer
        if "in_proj_weight" in self.products:
            found = self._unpacked(query, key, value)
        else:
            found = [
                self.products[f"{name}_proj_weight"](part)
                for name, part in zip("qkv", (query, key, value), strict=True)
            ]
            if layer.in_proj_bias is not None:
                biases = layer.in_proj_bias.chunk(3)
                found = [part + bias for part, bias in zip(found, biases, strict=True)]
        for place, learned in ((1, layer.bias_k), (2, layer.bias_v)):
            if learned is not None:
                own = learned.expand(len(query), -1, -1)
                found[place] = torch.cat([found[place], own], dim=1)
            if layer.add_zero_attn:
                found[place] = F.pad(found[place], (0, 0, 0, 1))
        return found

    def _unpacked(self, query: Tensor, key: Tensor, value: Tensor) -> list[Tensor]:
        """Return the projections by one packed matrix, with one product per different input."""
        product = self.products["in_proj_weight"]
        made: dict[int, tuple[Tensor, ...]] = {}
        found = []
        for place, part in enumerate((query, key, value)):
            known = next((i for i in made if self._same((query, key, value)[i], part)), None)
            if known is None:
                known, made[place] = place, product(part).chunk(3, dim=-1)
            found.append(made[known][place])
        return found

    @staticmethod
    def _same(one: Tensor, other: Tensor) -> bool:
        """Return whether two tensors are the same numbers in the same memory."""
        return one is other or (
            one.data_ptr() == other.data_ptr()
            and one.shape == other.shape
            and one.stride() == other.stride()
        )

    def _heads(self, part: Tensor) -> Tensor:
        """Return `[rows, heads, T, E / heads]`."""
        return part.reshape(*part.shape[:2], self.layer.num_heads, -1).transpose(1, 2)

    def _mask(
        self, heads: list[Tensor], attn_mask: Tensor | None, padding: Tensor | None
    ) -> Tensor | None:
        """Return what is added to the scores, `[rows or 1, heads or 1, T or 1, S]`."""
        query, key, _ = heads
        rows, count, added = len(query), query.shape[1], None
        if attn_mask is not None:
            added = _as_numbers(attn_mask, query.dtype)
            shape = (rows, count, *added.shape[1:]) if added.dim() == 3 else (1, 1, *added.shape)
            added = added.reshape(shape)
        if padding is not None:
            hidden = _as_numbers(padding, query.dtype)[:, None, None]
            added = hidden if added is None else added + hidden
        missing = 0 if added is None else key.shape[2] - added.shape[-1]
        return F.pad(added, (0, missing)) if added is not None and missing else added

    def _attend(self, heads: list[Tensor], mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return mixed values `[rows, T, E]` and weights `[rows, heads, T, S]`."""
        query, key, value = heads
        scaled = (query / math.sqrt(query.shape[-1])).flatten(0, 1)
        scores = batched_product(scaled, key.flatten(0, 1).transpose(1, 2))
        scores = scores.reshape(*query.shape[:2], *scores.shape[1:])
        weights = torch.softmax(scores if mask is None else scores + mask, dim=-1)
        weights = F.dropout(weights, self.layer.dropout, self.layer.training)
        mixed = batched_product(weights.flatten(0, 1), value.flatten(0, 1))
        apart = mixed.reshape(*query.shape[:2], *mixed.shape[1:])
        return apart.transpose(1, 2).flatten(2), weights


def _as_numbers(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a mask as numbers to be added; True hides."""
    if mask.is_floating_point():
        return mask.to(dtype)
    hidden: Any = torch.zeros_like(mask, dtype=dtype).masked_fill(mask, -math.inf)
    found: Tensor = hidden
    return found
