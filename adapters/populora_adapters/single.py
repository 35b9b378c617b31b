"""What the adapters of single environments share: one Python loop over N of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from populora_envs.adapter import Autoreset, Transition, blame, close_all, reward_number
from populora_envs.slot_actions import make_picker
from populora_envs.spaces import Stack, check_same

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gymnasium import Space

    Step = tuple[Any, Any, bool, bool]


class SingleEnvs:
    """N single environments, each a slot; a simulator says how one of them begins and advances.

    Args:
        envs: of one kind.
        spaces: the observation space and the action space of each.
        seeds_slots: whether every one can be seeded before an episode.
        time_limit: most steps of an episode, None where they tell none.

    Raises:
        ValueError: where their spaces differ.
    """

    autoreset = Autoreset.CALLER

    def __init__(
        self,
        envs: list[Any],
        spaces: Sequence[tuple[Space[Any], Space[Any]]],
        *,
        seeds_slots: bool,
        time_limit: int | None,
    ) -> None:
        self.num_slots = len(envs)
        self.observation_space, self.action_space = spaces[0]
        for slot, (observation_space, action_space) in enumerate(spaces):
            check_same(self.observation_space, observation_space, slot, 0, "observation")
            check_same(self.action_space, action_space, slot, 0, "action")
        self.seeds_slots, self.time_limit = seeds_slots, time_limit
        self._envs = envs
        self._steps = [env.step for env in envs]
        self._pick = make_picker(self.action_space)
        self._everyone = range(self.num_slots)
        self._stack = Stack(self.observation_space, self.num_slots)
        self._reward = np.zeros(self.num_slots)
        self._terminated = np.zeros(self.num_slots, dtype=bool)
        self._truncated = np.zeros(self.num_slots, dtype=bool)

    def _begin(self, slot: int, seed: int | None) -> Any:
        """Begin an episode in one slot and return its first observation."""
        raise NotImplementedError

    def _advance(self, slot: int, action: Any) -> Step:
        """Step one slot and return observation, reward, terminated, truncated."""
        raise NotImplementedError

    def _chosen(self, slots: np.ndarray | None) -> Iterable[int]:
        return self._everyone if slots is None else np.flatnonzero(slots).tolist()

    def reset(self, seeds: Sequence[int] | None = None, slots: np.ndarray | None = None) -> Any:
        """Begin episodes in `slots` and return the observations of all."""
        i = 0
        try:
            for i in self._chosen(slots):
                seed = None if seeds is None else seeds[i]
                self._stack.write(i, self._begin(i, seed))
        except Exception as error:
            blame(error, i)
            raise
        return self._stack.value

    def step(self, actions: Any, slots: np.ndarray | None = None) -> Transition:
        """Step the environments of `slots`."""
        pick, write, advance = self._pick, self._stack.write, self._advance
        reward, terminated, truncated = self._reward, self._terminated, self._truncated
        i = 0
        try:
            for i in self._chosen(slots):
                observation, gain, terminated[i], truncated[i] = advance(i, pick(actions, i))
                reward[i] = gain if type(gain) is float else reward_number(gain)
                write(i, observation)
        except Exception as error:
            blame(error, i)
            raise
        return Transition(self._stack.value, reward, terminated, truncated)

    def close(self) -> None:
        """Close every environment that can be closed."""
        close_all(self._envs)
