"""A routed model under `torch.compile`, with the same promise: a row does not depend on the batch."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from populora_envs.batching import map_tensors
from populora_envs.invariance import VECTOR, InstalledForward
from populora_envs.routing import RoutedModel

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
        self._given: Tensor | None = None
        self._ids = torch.zeros(0, dtype=torch.int64)

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
        self.route.set(self._full(ids, padding))
        for layer in self.model.modules():
            forward = layer.__dict__.get("forward")
            if isinstance(forward, InstalledForward):
                forward.prepare()
        output = self._compiled(map_tensors(lambda rows: _padded(rows, padding), batch))
        return map_tensors(lambda rows: rows[:count], output)

    def _full(self, ids: Tensor, padding: int) -> Tensor:
        """Return the ids of a padded batch, the same tensor as long as they are the same."""
        if ids is not self._given or self.route.stamp is None:  # else they are promised to stay
            full = torch.cat([ids, ids[:1].expand(padding)])
            if not torch.equal(full, self._ids.to(full.device)):
                self._ids = full
            self._given = ids
        return self._ids


def _padded(rows: Tensor, padding: int) -> Tensor:
    return F.pad(rows, (*([0, 0] * (rows.dim() - 1)), 0, padding))
