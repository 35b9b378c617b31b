"""What a check of an adapter found, as numbers and as a table."""

from __future__ import annotations

import dataclasses
import textwrap
from typing import TYPE_CHECKING, Any

from populora_envs.adapter import Autoreset
from populora_envs.spaces import Encoder
from populora_envs.testing.words import action_words, shape_words, space_words

if TYPE_CHECKING:
    from gymnasium import Space

WIDTH = 80
"""Columns of the table."""

_AUTORESETS = {
    Autoreset.CALLER: "by the caller, who can reset one slot alone",
    Autoreset.SAME_STEP: "in the step that ends an episode, by the simulator",
    Autoreset.NEXT_STEP: "in the step after the end, by the simulator",
}


@dataclasses.dataclass(frozen=True)
class AdapterReport:
    """What `check_adapter` found and what the toolkit understood; `str` gives a table of it."""

    adapter: str
    """Name of the adapter's class."""
    num_slots: int
    observation_space: Space[Any]
    action_space: Space[Any]
    autoreset: Autoreset
    seeds_slots: bool
    time_limit: int | None
    num_ends: int
    """Episodes that ended while it was watched; with none, the ends were not checked."""
    num_truncated: int
    """How many of them were truncated and not terminated."""
    environment: str
    """Its id, or the name of its class."""
    team: tuple[float, ...]
    """Of the slots that play together, the weights of their returns."""
    notes: tuple[str, ...]
    """What the adapter says that users should know."""
    repeats: bool
    """Whether the same seeds and actions gave the same numbers again."""
    steps_per_second: float = dataclasses.field(compare=False)
    """Of all slots together, with random actions."""

    @property
    def encoded_shape(self) -> tuple[int, ...] | None:
        """Shape of one observation as a policy sees it."""
        return Encoder(self.observation_space).shape

    @property
    def action_map(self) -> tuple[str, ...]:
        """What a policy gives, and what that becomes in the simulator's units."""
        return tuple(action_words(self.action_space))

    def __str__(self) -> str:
        rows = [
            ("environment", [self.environment]),
            ("adapter", [self.adapter]),
            ("slots", [str(self.num_slots)]),
            ("team", self._team_words()),
            ("observation", space_words(self.observation_space)),
            ("policy sees", self._seen_words()),
            ("policy gives", list(self.action_map)),
            ("action", space_words(self.action_space)),
            ("autoreset", [_AUTORESETS[self.autoreset]]),
            ("seeds", [self._seed_words()]),
            ("time limit", [self._limit_words()]),
            ("episodes", [self._end_words()]),
            ("speed", [f"{_rounded(self.steps_per_second)} steps per second, random actions"]),
            *(("note", [note]) for note in self.notes),
        ]
        return "\n".join(_row(label, lines) for label, lines in rows if lines)

    def _team_words(self) -> list[str]:
        if len(self.team) == 1:
            return []
        weights = ", ".join(f"{weight:.3g}" for weight in self.team)
        return [
            f"{len(self.team)} slots in a row, played by one individual; their returns count {weights}"
        ]

    def _seen_words(self) -> list[str]:
        encoder = Encoder(self.observation_space)
        dropped = [f"{'.'.join(map(str, path))} is left out" for path in encoder.dropped]
        return [f"float32 {shape_words(encoder.shape or ())}", *dropped]

    def _seed_words(self) -> str:
        if self.seeds_slots:
            return "one per slot; an episode depends on its seed alone"
        again = "the same" if self.repeats else "other"
        return f"not per slot; a second play from the same seeds gave {again} numbers"

    def _limit_words(self) -> str:
        return (
            "none is told: pass horizon=" if self.time_limit is None else f"{self.time_limit} steps"
        )

    def _end_words(self) -> str:
        if not self.num_ends:
            return "none ended while it was watched, so ends were not checked"
        terminated = self.num_ends - self.num_truncated
        return f"{self.num_ends} ended: {terminated} terminated, {self.num_truncated} truncated"


def _rounded(value: float) -> str:
    return f"{float(f'{value:.2g}'):,.0f}"


def _row(label: str, lines: list[str]) -> str:
    indent = 14
    wrapped = [part for line in lines for part in textwrap.wrap(line, WIDTH - indent) or [""]]
    return textwrap.indent("\n".join(wrapped), " " * indent).replace(
        " " * indent, label.ljust(indent), 1
    )
