"""Environments of several simulators in one list: one adapter over theirs."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from populora_envs.adapter import Adapter, Autoreset, Transition, blame, blamed, close_all
from populora_envs.spaces import at, check_same, is_text, leaves, rebuild, to_numpy
from populora_envs.stacks import Stack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from gymnasium import Space


class _Part(NamedTuple):
    """The environments of one simulator and their slots among all."""

    adapter: Adapter
    slots: np.ndarray


class Mixed:
    """Single environments of several simulators whose spaces agree, each a slot, in their order.

    Args:
        envs: single environments.
        targets: of each, a name of what adapts it.
        kinds: by these names, the functions that adapt a list of them.

    Raises:
        ValueError: where their spaces differ, or one is a batch.
    """

    autoreset = Autoreset.CALLER

    def __init__(
        self,
        envs: Sequence[Any],
        targets: Sequence[str],
        kinds: Mapping[str, Callable[[list[Any]], Adapter]],
    ) -> None:
        self._parts = []
        for target, adapt in kinds.items():
            slots = np.flatnonzero([name == target for name in targets])
            part = _Part(adapt([envs[slot] for slot in slots.tolist()]), slots)
            self._check(part, envs, targets)
            self._parts.append(part)
        adapters = [part.adapter for part in self._parts]
        self.num_slots = len(envs)
        self.observation_space: Space[Any] = adapters[0].observation_space
        self.action_space: Space[Any] = adapters[0].action_space
        self.seeds_slots = all(adapter.seeds_slots for adapter in adapters)
        limits = [adapter.time_limit for adapter in adapters]
        self.time_limit = None if None in limits else max(limit for limit in limits if limit)
        self._stack = Stack(self.observation_space, self.num_slots)
        observed = leaves(self.observation_space)
        self._paths = [leaf.path for leaf in observed if not is_text(leaf.space)]
        self._factors = leaves(self.action_space)

    def _check(self, part: _Part, envs: Sequence[Any], targets: Sequence[str]) -> None:
        adapter, slots = part
        if adapter.autoreset is not Autoreset.CALLER or adapter.num_slots != len(slots):
            message = (
                f"environment {slots[0]} goes to {targets[slots[0]]} and is a batch that begins "
                f"episodes itself, the list has others that go to {' and '.join(set(targets))}: "
                "pass it alone"
            )
            raise ValueError(message)
        if self._parts:
            first = self._parts[0]
            own, other = (f"{i} (a {type(envs[i]).__name__})" for i in (slots[0], first.slots[0]))
            there, here = first.adapter, adapter
            check_same(there.observation_space, here.observation_space, own, other, "observation")
            check_same(there.action_space, here.action_space, own, other, "action")

    def reset(self, seeds: Sequence[int] | None = None, slots: np.ndarray | None = None) -> Any:
        """Begin episodes in `slots` and return the observations of all."""
        for part, own in self._asked(slots):
            mine = None if seeds is None else [seeds[slot] for slot in part.slots]
            with _blamed_on(part):
                self._keep(part, part.adapter.reset(mine, own))
        return self._stack.value

    def step(self, actions: Any, slots: np.ndarray | None = None) -> Transition:
        """Step the environments of `slots`."""
        reward = np.zeros(self.num_slots)
        terminated, truncated = np.zeros((2, self.num_slots), dtype=bool)
        for part, own in self._asked(slots):
            rows = {leaf.path: at(actions, leaf.path)[part.slots] for leaf in self._factors}
            with _blamed_on(part):
                given = part.adapter.step(rebuild(self.action_space, rows), own)
                self._keep(part, given.observation)
            reward[part.slots] = given.reward
            terminated[part.slots], truncated[part.slots] = given.terminated, given.truncated
        return Transition(self._stack.value, reward, terminated, truncated)

    def _asked(self, slots: np.ndarray | None) -> Iterator[tuple[_Part, np.ndarray | None]]:
        """Yield the parts that have some of `slots`, each with the mask of its own."""
        for part in self._parts:
            own = None if slots is None else slots[part.slots]
            if own is None or own.any():
                yield part, own

    def _keep(self, part: _Part, observation: Any) -> None:
        for path in self._paths:
            at(self._stack.value, path)[part.slots] = to_numpy(at(observation, path))

    def close(self) -> None:
        """Close all of them."""
        close_all(part.adapter for part in self._parts)


@contextmanager
def _blamed_on(part: _Part) -> Iterator[None]:
    """Let an error name the slots among all."""
    try:
        yield
    except Exception as error:
        blame(error, *(int(part.slots[slot]) for slot in blamed(error)))
        raise
