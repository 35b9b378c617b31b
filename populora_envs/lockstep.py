"""A population on several ranks: equal from the first thing they do together, and watched to stay so."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from populora_envs.batching import map_tensors
from populora_envs.ranks import ranks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from populora_envs.moved import MovedBase
    from populora_envs.ranks import Ranks
    from populora_envs.routing import RoutedLinear


class Digest(NamedTuple):
    """What must be equal on all ranks."""

    generation: int
    draws: int
    weights: int
    """Checksum of the individuals, and of what a search has added to the base."""


class Lockstep:
    """What `Population` inherits to be the same one on every rank."""

    pop_size: int
    low_rank: int | dict[str, int]
    seed: int
    base_eval_seed: int
    generation: int
    adapt_bias: bool
    individuals: dict[str, RoutedLinear]
    model: nn.Module
    _draws: int
    _moved: MovedBase | None
    _sync_base_model: bool
    _synced_with: Ranks | None

    def state(self) -> dict[str, Any]:
        """Return everything that makes this population."""
        raise NotImplementedError

    def load_state_(self, state: dict[str, Any]) -> None:
        """Continue from what `state` returned."""
        raise NotImplementedError

    def sync_(self) -> None:
        """Take base weights, seed and individuals from rank 0, once; alone it does nothing.

        Every rank calls it. Evaluations and searches do so themselves.

        Raises:
            ValueError: naming the first setting that differs between ranks.
        """
        together = ranks()
        if together is None or self._synced_with is together:
            return
        self._synced_with = together
        check_equal(together, self._settings())
        base = self.model.state_dict()
        own = map_tensors(_on_cpu, self.state()) if together.is_main else {}
        state: dict[str, Any] = together.broadcast(own)
        if not self._sync_base_model:
            state["base"] = base
        self.load_state_(state)

    def _settings(self) -> dict[str, Any]:
        layers = {n: tuple(layer.weight.shape) for n, layer in self.individuals.items()}
        return {
            "pop_size": self.pop_size,
            "low_rank": self.low_rank,
            "adapt_bias": self.adapt_bias,
            "the shapes of the adapted layers": layers,
            "the dtypes of the individuals": {
                str(layer.down.dtype) for layer in self.individuals.values()
            },
            "eval_seed": self.base_eval_seed,
            "generation": self.generation,
            "sync_base_model": self._sync_base_model,
        }

    def digest(self) -> Digest:
        """Return a short sum of the individuals, by which ranks see that they have drifted apart."""
        check = 0
        for layer in self.individuals.values():
            for weights in layer.parts.values():
                check = _add(weights, check)
        for change in ({} if self._moved is None else self._moved.change).values():
            for weights in change.values():
                check = _add(weights, check)
        return Digest(self.generation, self._draws, check)


def check_equal(together: Ranks, settings: dict[str, Any]) -> None:
    """Raise a ValueError on every rank that names the first setting in which one differs from rank 0."""
    everyone = together.exchange({name: repr(value) for name, value in settings.items()})
    for rank, theirs in enumerate(everyone):
        for name, value in everyone[0].items():
            if theirs.get(name) != value:
                message = (
                    f"{name} is {value} on rank 0 and {theirs.get(name)} on rank {rank}: "
                    "pass the same on every rank"
                )
                raise ValueError(message)


def _on_cpu(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu()


def _add(weights: Tensor, check: int) -> int:
    """Return a checksum that goes on with the bytes of a tensor."""
    values = weights.detach().cpu().contiguous().flatten()
    data: Any = values.view(torch.uint8).numpy()
    return zlib.crc32(data, check)


def check_digests(digests: Sequence[Digest]) -> None:
    """Raise where a rank has not what rank 0 has."""
    for rank, digest in enumerate(digests):
        if digest != digests[0]:
            message = (
                f"ranks have drifted apart: rank 0 has {digests[0]}, rank {rank} has {digest}. "
                "Something that only one of them did has changed the population: do it on all ranks"
            )
            raise RuntimeError(message)
