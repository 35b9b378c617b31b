"""A routed model under `torch.compile`, with the same promise: a row does not depend on the batch."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from populora_envs.batching import map_tensors
from populora_envs.invariance import VECTOR
from populora_envs.routing import RoutedLinear, RoutedModel

if TYPE_CHECKING:
    from populora_envs.plans import Route


class CompiledModel(RoutedModel):
    """A routed model whose calls run compiled, or as ever once that has failed.

    Every batch is padded to a multiple of 32 rows: compiled loops have no odd end then, whose numbers
    would be rounded otherwise, and few shapes are compiled.
    """

    def __init__(self, model: nn.Module, route: Route) -> None:
        super().__init__(model, route)
        self._on_array = None
        # A pool of compiling threads would forbid to fork workers later, and a policy is small.
        self._compiled: Any = torch.compile(model, dynamic=False, options={"compile_threads": 1})
        self._ids: tuple[Tensor | None, Tensor | None] = (None, None)

    def __call__(self, batch: Any, ids: Tensor) -> Any:
        """Return what the individuals give, one row per slot; see `RoutedModel`."""
        if self._compiled is not None:
            try:
                return self._run(batch, ids)
            except Exception as error:
                self._compiled = None
                reason = " ".join(str(error).split("\n")[:2])
                warnings.warn(
                    f"compile=True: the policy runs uncompiled, for torch.compile failed with "
                    f"{type(error).__name__}: {reason}",
                    stacklevel=2,
                )
        return super().__call__(batch, ids)

    def _run(self, batch: Any, ids: Tensor) -> Any:
        count, padding = len(ids), -len(ids) % VECTOR
        if self._ids[0] is not ids:
            self._ids = ids, torch.cat([ids, ids[:1].expand(padding)])
        assert self._ids[1] is not None
        self.route.set(self._ids[1])
        for layer in self.model.modules():
            forward = layer.__dict__.get("forward")
            if isinstance(forward, RoutedLinear):
                forward.prepare()
        output = self._compiled(map_tensors(lambda rows: _padded(rows, padding), batch))
        return map_tensors(lambda rows: rows[:count], output)


def _padded(rows: Tensor, padding: int) -> Tensor:
    return F.pad(rows, (*([0, 0] * (rows.dim() - 1)), 0, padding))
