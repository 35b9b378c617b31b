"""Slots: the sub-environments of one adapter, and the one home of autoreset."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from populora_envs.adapter import Autoreset, blame, blamed, info_numbers, team_of
from populora_envs.spaces import copied_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from populora_envs.adapter import Adapter, Transition
    from populora_envs.spaces import Encoder
    from populora_envs.teams import Info


class Slots:
    """N slots, some of which act.

    A slot is *ready* where an episode may begin in it. With autoreset by the caller every idle slot is
    ready. A simulator that resets itself is played in waves, each begun by a full reset when no slot
    acts; within a wave a slot is ready when the simulator has just put it on a first observation.

    Args:
        adapter: of the simulator.
        encoder: of its observations.
        device: where batches go.
        worker: of which of how many workers these slots are, ``(number, count)``; it has every
            count-th slot, which errors name as they are counted over all workers.

    Attributes:
        acting: `[N]` bool, the slots in the middle of an episode; changed by `begin`, `rest`, `stop`.
        num_acting: how many these are.
        team: how many slots in a row begin together, see `Adapter`.
        seconds: spent in the simulator.
    """

    def __init__(
        self,
        adapter: Adapter,
        encoder: Encoder,
        device: torch.device,
        worker: tuple[int, int] | None = None,
    ) -> None:
        self.worker = worker
        self.adapter = adapter
        self.device = device
        self.encoder = encoder
        self.num_slots = adapter.num_slots
        self.team = len(team_of(adapter))
        self.acting = np.zeros(self.num_slots, dtype=bool)
        self.num_acting = 0
        self.seconds = 0.0
        self._buffer = encoder.allocate(self.num_slots)
        self._fresh = np.zeros(self.num_slots, dtype=bool)
        self._pending = np.zeros(self.num_slots, dtype=bool)

    def ready(self, leaving: np.ndarray | None = None) -> np.ndarray:
        """Return the slots in which an episode may begin now, `[N]` bool.

        Args:
            leaving: `[N]` bool, slots to count as idle; None means none.
        """
        idle = ~self.acting if leaving is None else ~self.acting | leaving
        if self.team > 1:
            idle = idle.reshape(-1, self.team).all(axis=1).repeat(self.team)
        if self.adapter.autoreset is Autoreset.CALLER or idle.all():
            return idle
        return idle & self._fresh

    def may_begin(self) -> bool:
        """Return whether any slot is ready."""
        if self.team > 1:
            return bool(self.ready().any())
        if self.adapter.autoreset is Autoreset.CALLER or not self.num_acting:
            return self.num_acting < self.num_slots
        return bool((self._fresh & ~self.acting).any())

    def begin(self, slots: np.ndarray, seeds: Sequence[int]) -> None:
        """Begin episodes in ready slots.

        Args:
            slots: `[N]` bool.
            seeds: one per slot, N in all; those of other slots do not matter.
        """
        everyone = bool(slots.all())
        if self.adapter.autoreset is Autoreset.CALLER:
            self._reset(seeds, None if everyone else slots)
        elif not self.num_acting:
            self._reset(seeds, None)
            self._pending[:] = False
        self._fresh[:] = False
        self._let_act(self.acting | slots)

    def _let_act(self, slots: np.ndarray) -> None:
        self.acting = slots
        self.num_acting = int(np.count_nonzero(slots))

    def _reset(self, seeds: Sequence[int], slots: np.ndarray | None) -> None:
        start = perf_counter()
        try:
            observation = self.adapter.reset(seeds, slots)
            self.seconds += perf_counter() - start
            self.encoder.write(observation, self._buffer)
        except Exception as error:
            self._name_slots(error, slots)
            raise

    def batch(self, rows: Any) -> Any:
        """Return a copy of the observations of `rows` as the policy takes them, `[B, *obs]`."""
        return self.encoder.batch(self._buffer, rows, self.device)

    def array(self, rows: Any) -> np.ndarray:
        """Return a copy of what `batch` holds as one array on the CPU, for vectors and images."""
        return copied_rows(self._buffer[0], rows)

    def seen(self, rows: Any) -> np.ndarray:
        """Return the encoded observations of `rows` as an array that the next step overwrites."""
        seen: np.ndarray = self._buffer[0][rows]
        return seen

    def final(self, slot: int) -> np.ndarray | None:
        """Return a copy of the vector that the last step gave in a slot, None where it is hidden."""
        hidden = self.adapter.autoreset is Autoreset.SAME_STEP or not self.encoder.is_vector
        return None if hidden else np.array(self.seen(slot))

    def info(self, slot: int) -> Info:
        """Return the numbers that the simulator told of a slot's last step, none where it tells none."""
        told = getattr(self.adapter, "info", None)
        return {} if told is None else info_numbers(told(slot))

    def step(self, actions: Any) -> Transition:
        """Step the acting slots, `actions` nested arrays `[N, *act]`; the rest means nothing."""
        start = perf_counter()
        asked = None if self.num_acting == self.num_slots else self.acting
        try:
            transition = self.adapter.step(actions, asked)
            self.seconds += perf_counter() - start
            self.encoder.write(transition.observation, self._buffer)
        except Exception as error:
            self._name_slots(error, asked)
            raise
        if self.adapter.autoreset is not Autoreset.CALLER:
            ended = transition.terminated | transition.truncated
            if self.adapter.autoreset is Autoreset.SAME_STEP:
                self._fresh = ended
            else:
                self._fresh, self._pending = self._pending, ended & ~self._pending
        return transition

    def _name_slots(self, error: Exception, asked: np.ndarray | None) -> None:
        """Note on an error of the simulator in which slot it happened, or in one of which."""
        if not blamed(error):
            everyone = range(self.num_slots) if asked is None else np.flatnonzero(asked).tolist()
            blame(error, *everyone)
        slots, of = blamed(error), f"of {self.num_slots}"
        if self.worker is not None:
            number, count = self.worker
            slots, of = tuple(number + i * count for i in slots), f"in worker {number}"
        where = f"slot {slots[0]}" if len(slots) == 1 else f"one of the slots {_few(slots)}"
        error.add_note(f"in {where} {of}")

    def rest(self, slots: np.ndarray) -> None:
        """Let slots leave: their episode has ended, or was cut."""
        self._let_act(self.acting & ~slots)

    def stop(self) -> None:
        """Let all slots leave, as after an error."""
        self._let_act(np.zeros(self.num_slots, dtype=bool))


def _few(slots: tuple[int, ...]) -> str:
    shown = ", ".join(map(str, slots[:8]))
    return f"{shown}, ..." if len(slots) > 8 else shown
