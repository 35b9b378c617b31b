"""Seating: which slots are rows of the batch, and whose individual sits in each."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch


class Seating:
    """The rows of the batch: every slot that acts and, where they may, some that rest.

    A batch that lost a row at every end would be laid out anew each time. So a slot that rests keeps its
    row until half of the rows rest; what it is shown is a copy of another row, and what comes of it is
    dropped.

    Args:
        num_slots: N.
        device: of `ids`.
        may_rest: whether rows may rest.

    Attributes:
        rows: index of the batch's slots: a slice where these are all, else int64 `[B]`.
        slots: int64 `[B]`, the slot of each row.
        ids: int64 `[B]` on the device, the individual of each row; another tensor when it changes.
    """

    def __init__(self, num_slots: int, device: torch.device, *, may_rest: bool) -> None:
        self._everyone = np.arange(num_slots)
        self._device, self._may_rest = device, may_rest
        self.rows: Any = slice(None)
        self.slots = self._everyone[:0]
        self._individuals = np.zeros(0, dtype=np.int64)
        self.ids = torch.zeros(0, dtype=torch.int64, device=device)
        self._resting: np.ndarray | None = None
        self._acts = 0

    def choose(self, acting: np.ndarray, num_acting: int, individuals: np.ndarray) -> None:
        """Lay out the batch for the slots that act now.

        Args:
            acting: `[N]` bool.
            num_acting: how many these are.
            individuals: int64 `[N]`, who sits in each slot, or sat there last.
        """
        if not self._still_serves(acting, num_acting):
            everyone = num_acting == len(self._everyone)
            self.slots = self._everyone if everyone else np.flatnonzero(acting)
            self.rows = slice(None) if everyone else self.slots
        self._resting = None
        if num_acting < len(self.slots):
            acts = acting[self.slots]
            self._resting, self._acts = np.flatnonzero(~acts), int(acts.argmax())
        chosen = individuals[self.slots]
        if not np.array_equal(chosen, self._individuals):
            self._individuals = chosen
            self.ids = torch.from_numpy(chosen.copy()).to(self._device)

    def _still_serves(self, acting: np.ndarray, num_acting: int) -> bool:
        if not self._may_rest or 2 * num_acting < len(self.slots):
            return False
        return int(np.count_nonzero(acting[self.slots])) == num_acting

    def cover(self, batch: np.ndarray) -> np.ndarray:
        """Show rows that rest, in place, what one that acts is shown."""
        if self._resting is not None:
            batch[self._resting] = batch[self._acts]
        return batch

    def spread(self, actions: Any) -> Any:
        """Return actions for all N slots from those of the rows; other slots get the first."""
        if isinstance(self.rows, slice):
            return actions
        if isinstance(actions, dict):
            return {key: self.spread(part) for key, part in actions.items()}
        if isinstance(actions, tuple):
            return tuple(self.spread(part) for part in actions)
        spread = np.empty((len(self._everyone), *actions.shape[1:]), dtype=actions.dtype)
        spread[:] = actions[0]
        spread[self.rows] = actions
        return spread
