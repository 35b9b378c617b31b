"""Embeddings: the row of a token in the base, plus the change that each individual makes to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from populora_envs.adapted import RoutedLinear
from populora_envs.plans import TensorChain

if TYPE_CHECKING:
    import numpy as np


class RoutedEmbedding(RoutedLinear):
    """The forward of an embedding, whose weight is the matrix `[tokens, dim]`.

    Nothing of the size of the weight is made: a token takes its row of `up`, times `down`.
    """

    _chain: TensorChain | None = None
    _seen: tuple[int, ...] = ()

    @property
    def reached(self) -> bool:
        """Whether a forward has come here."""
        return self._chain is not None

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles plan anew."""
        return {**super().__getstate__(), "_chain": None, "_seen": ()}

    def forget(self) -> None:
        """Plan anew at the next call."""
        super().forget()
        self._chain = None

    def __call__(self, input: Tensor) -> Tensor:
        """Return `[rows, ..., dim]` for tokens `[rows, ...]`; those of one row are shown to everyone.

        Raises:
            ValueError: for `[n]` where there are not n rows, which may be positions without a batch.
        """
        if input.dim() == 0:
            return self(input[None])[0]
        rows = self.route.rows
        if input.dim() == 1 and len(input) != rows:
            message = (
                f"an adapted embedding met {len(input)} tokens without a batch dimension for {rows} "
                "rows: give it [rows, ...], or [1, ...] for everyone"
            )
            raise ValueError(message)
        tokens = input.expand(rows, *input.shape[1:]) if len(input) == 1 else input
        samples = self.route.samples_in(len(tokens))
        return self._changed(tokens, samples)

    def _changed(self, tokens: Tensor, samples: int) -> Tensor:
        wide = self._wide()
        groups = self.route.count
        ids = self.route.ids.repeat_interleave(len(tokens) // groups)
        base = F.embedding(tokens, self.weight)
        factors = self.up[ids.reshape(-1, *[1] * (tokens.dim() - 1)), tokens].to(wide)
        grouped = factors.reshape(groups, samples, -1, self.rank)
        change = self._present_chain(wide)(grouped).reshape(base.shape)
        return (base.to(wide) + change).to(base.dtype)

    def _present_chain(self, wide: torch.dtype) -> TensorChain:
        versions = (self.down._version,)
        if self._chain is None or self._seen != versions:
            with torch.inference_mode(mode=False), torch.no_grad():
                links = [self.down.transpose(1, 2).to(wide)]
                self._chain, self._seen = TensorChain(links, self.route), versions
        return self._chain

    def array_plan(self, dtype: np.dtype[Any]) -> None:
        """Return None: arrays do not go through."""
        del dtype

    def prepare(self) -> None:
        """Gather what a compiled model multiplies by."""
        self._present_chain(self._wide()).gather()
