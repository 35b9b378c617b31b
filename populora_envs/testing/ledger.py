"""Episodes counted by hand: slot by slot and step by step, by the rules of the contract alone."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, NamedTuple

from populora_envs.adapter import Autoreset

if TYPE_CHECKING:
    import numpy as np


class Counted(NamedTuple):
    """One episode of one slot."""

    total: float
    """Sum of the rewards."""
    length: int
    terminated: bool
    truncated: bool
    """Neither is set where the horizon has cut the episode."""


@dataclasses.dataclass
class Episode:
    """One episode of one slot, while it is counted."""

    total: float = 0.0
    length: int = 0
    terminated: bool = False
    truncated: bool = False

    @property
    def has_ended(self) -> bool:
        """Whether the simulator has ended it."""
        return self.terminated or self.truncated

    @property
    def counted(self) -> Counted:
        """What has been counted so far."""
        return Counted(self.total, self.length, self.terminated, self.truncated)


class Ledger:
    """What happens in the slots of an adapter, episode by episode.

    Args:
        num_slots: of the adapter.
        autoreset: of the adapter.
        horizon: most steps that count in an episode; None means all.

    Attributes:
        begun: all episodes in the order in which they began, those that began together by slot.
    """

    def __init__(self, num_slots: int, autoreset: Autoreset, horizon: int | None = None) -> None:
        self.begun: list[Episode] = []
        self._autoreset, self._horizon = autoreset, horizon
        self._now: list[Episode | None] = [None] * num_slots

    def reset(self, slots: np.ndarray | None) -> None:
        """Note that slots begin anew; None means all."""
        for slot in range(len(self._now)):
            if slots is None or slots[slot]:
                self._begin(slot)

    def _begin(self, slot: int) -> None:
        episode = Episode()
        self._now[slot] = episode
        self.begun.append(episode)

    def step(
        self,
        reward: np.ndarray,
        terminated: np.ndarray,
        truncated: np.ndarray,
        slots: np.ndarray | None,
    ) -> None:
        """Note a step, `[N]` of each; `slots` are those that act, None means all.

        A simulator that begins episodes itself goes on in slots that do not act.
        """
        rows = zip(reward.tolist(), terminated.tolist(), truncated.tolist(), strict=True)
        may_rest = slots is not None and self._autoreset is Autoreset.CALLER
        for slot, row in enumerate(rows):
            if may_rest and slots is not None and not slots[slot]:
                continue
            episode = self._now[slot]
            if episode is not None:
                self._count(slot, episode, *row)
            elif self._autoreset is Autoreset.NEXT_STEP:
                self._begin(slot)

    def _count(
        self, slot: int, episode: Episode, reward: float, terminated: bool, truncated: bool
    ) -> None:
        if episode.length != self._horizon:
            episode.total += reward
            episode.length += 1
            episode.terminated, episode.truncated = terminated, truncated
        if terminated or truncated:
            self._now[slot] = None
            if self._autoreset is Autoreset.SAME_STEP:
                self._begin(slot)
