"""Environments of any kind behind one batched interface: opened, checked, and played."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from torch import Tensor

from populora_envs.actor import Actor
from populora_envs.adapter import close_all
from populora_envs.evaluation import Evaluation
from populora_envs.players import Players
from populora_envs.seeds import Purpose, job_seeds
from populora_envs.settings import at_least
from populora_envs.sources import open_sources
from populora_envs.spaces import Encoder, check_same

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gymnasium import Space

    from populora_envs.adapter import Adapter
    from populora_envs.rescale import Range
    from populora_envs.slots import Slots

DEFAULT_HORIZON = 1000
"""Most steps of an episode where neither the user nor the environment names a limit."""


class Environments:
    """What `EnvInteractor` stands on; its docstring names the arguments.

    Attributes:
        encoder: from raw observations to what a policy takes.
    """

    def __init__(
        self,
        envs: Any,
        *,
        num_envs: int | None,
        seed: int,
        num_workers: int | str,
        to_range: Range | None,
        from_range: Range | None,
        flatten: bool,
    ) -> None:
        self.seed = int(seed)
        self.from_range, self.to_range = from_range, to_range
        self._said: set[str] = set()
        self._sources = open_sources(envs, num_envs, one_each=num_workers != 0)
        try:
            self._check_spaces()
            self.encoder = Encoder(self.observation_space, flatten=flatten)
            self._actor_of: tuple[Any, Actor] = (None, self._bind(None))
            sources = list(self._sources.values())
            self.players = Players(sources, self.encoder, num_workers, self.seed)
            self._say_what_cannot_be()
        except BaseException:
            close_all(self._sources.values())
            raise

    def _first(self) -> Any:
        return next(iter(self._sources.values())).adapter

    @property
    def observation_space(self) -> Space[Any]:
        """The space of one raw observation."""
        return self._first().observation_space  # type: ignore[no-any-return]

    @property
    def action_space(self) -> Space[Any]:
        """The space of one action of the simulator."""
        return self._first().action_space  # type: ignore[no-any-return]

    @property
    def num_envs(self) -> int:
        """Slots in all entries together; an id, class or factory gets more when they are of use."""
        return sum(source.num_slots for source in self._sources.values())

    def _check_spaces(self) -> None:
        first = next(iter(self._sources))
        for name, source in self._sources.items():
            adapter = source.adapter
            names = (repr(name), repr(first))
            check_same(self.observation_space, adapter.observation_space, *names, "observation")
            check_same(self.action_space, adapter.action_space, *names, "action")

    def _say_once(self, message: str) -> None:
        if message not in self._said:
            self._said.add(message)
            warnings.warn(message, stacklevel=5)

    def _say_what_cannot_be(self) -> None:
        if self.encoder.dropped:
            paths = ", ".join(".".join(map(str, path)) for path in self.encoder.dropped)
            self._say_once(f"text observations are left out: {paths}")
        for source in self._sources.values():
            for note in getattr(source.adapter, "notes", ()):
                self._say_once(note)
            if not source.adapter.seeds_slots:
                self._say_once(
                    "these environments cannot be seeded per episode: individuals face different "
                    "start states, and results depend on the number of slots"
                )

    def _bind(self, action: Any) -> Actor:
        return Actor(action, self.action_space, self.from_range, self.to_range)

    def _actor(self, action: Any) -> Actor:
        if action is not self._actor_of[0]:
            self._actor_of = (action, self._bind(action))
        return self._actor_of[1]

    def evaluation(
        self,
        action: Any,
        horizon: int | None,
        device: torch.device,
        *,
        sample: bool | None = None,
        copies: int | None = None,
    ) -> Evaluation:
        """Return what plays jobs of policies.

        Args:
            action: an action head, its name, a function of the output, or None.
            horizon: most steps of an episode; None means the environment's limit, else 1000.
            device: where the policies live.
            sample: whether heads draw; None leaves it to the head.
            copies: most copies of an id, class or factory that jobs ask for; None means one per job.
        """
        horizons = [self._horizon(source.adapter, horizon) for source in self._sources.values()]
        return Evaluation(self.players, self._actor(action), horizons, device, sample, copies)

    def _horizon(self, adapter: Adapter, horizon: int | None) -> int:
        if horizon is not None:
            return at_least("horizon", horizon, 1)
        limit = adapter.time_limit
        if limit is None:
            self._say_once(
                f"the environment names no time limit: episodes end after {DEFAULT_HORIZON} steps; "
                "pass horizon= to choose"
            )
            return DEFAULT_HORIZON
        return limit

    def reset(self, seeds: Sequence[int] | None = None, slots: Any = None) -> Any:
        """Begin episodes and return the observations of all slots, `[N, *obs]` tensors of your own.

        Args:
            seeds: one per slot; None derives them from this interactor's seed.
            slots: `[N]` bool, which slots begin anew; None means all.

        Raises:
            ValueError: for seeds or a mask of another size, and for slots that cannot begin alone
                because their simulator begins their next episode itself.
        """
        entry = self._only_entry()
        count = entry.num_slots
        if seeds is None:
            seeds = job_seeds(self.seed, Purpose.SELECTION, 0, range(count))
        chosen = np.ones(count, dtype=bool) if slots is None else np.asarray(slots, bool)
        if len(seeds) != count or chosen.shape != (count,):
            message = (
                f"there are {len(seeds)} seeds and a mask of shape {chosen.shape} for {count} slots: "
                "give one of each per slot"
            )
            raise ValueError(message)
        _check_ready(entry, chosen)
        entry.rest(chosen)
        entry.begin(chosen, seeds)
        return entry.batch(slice(None))

    def step(self, actions: Any) -> tuple[Any, Tensor, Tensor, Tensor]:
        """Step the slots that are in an episode; the others rest until `reset(slots=...)`.

        Args:
            actions: `[N, *act]` in `from_range`.

        Returns:
            Observation `[N, *obs]`, reward float64 `[N]` (0 at rest), terminated and truncated bool
            `[N]` (False at rest).
        """
        entry = self._only_entry()
        if not entry.acting.any():
            message = "no slot is in an episode: call reset first"
            raise RuntimeError(message)
        mapped, _ = self._actor(None).map(actions, entry.num_slots)
        acting = entry.acting.copy()
        transition = entry.step(mapped)
        reward = np.where(acting, transition.reward, 0.0)
        terminated, truncated = transition.terminated & acting, transition.truncated & acting
        entry.rest(terminated | truncated)
        tensors = (torch.from_numpy(values) for values in (reward, terminated, truncated))
        return entry.batch(slice(None)), *tensors

    def _only_entry(self) -> Slots:
        entries = self.players.here(1, torch.device("cpu"))
        if len(entries) > 1:
            message = "reset and step want one environment, not a dict: use evaluate"
            raise ValueError(message)
        return entries[0]

    def close(self) -> None:
        """Close what was opened here; a second call is harmless."""
        self.players.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _check_ready(entry: Slots, chosen: np.ndarray) -> None:
    unready = np.flatnonzero(chosen & ~entry.ready(leaving=chosen)).tolist()
    if unready:
        message = (
            f"slots {unready} cannot begin alone, for their simulator begins their next episode "
            "itself: step the others until it has, or reset all slots"
        )
        raise ValueError(message)
