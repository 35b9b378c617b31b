"""Behaviour: what an episode shows beside its return, and descriptors made from that.

A descriptor function runs in the main process, on every rank alike, over what travels back from
workers and ranks with each result; so it needs no pickling and gives the same everywhere.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from populora_envs.normalizer import Moments

    Descriptor = Callable[[Any], Any]


class Episode(NamedTuple):
    """What a descriptor function sees of one episode.

    Observations are as a policy takes them, vectors `[D]` before they are normalised; None for images
    and nested ones.

    Attributes:
        final: the observation that the last step gave; None also where the simulator begins the next
            episode in the same step (`Autoreset.SAME_STEP`) and does not show it.
        mean: mean of the observations that the policy acted on, float64.
        std: their standard deviation, float64.
        episode_return: sum of the rewards.
        length: steps.
        end: ``"terminated"``, ``"truncated"`` or ``"horizon"``.
        info: the numbers and small arrays in the `info` of the last step; empty where the simulator, or
            its adapter, tells none.
    """

    final: np.ndarray | None
    mean: np.ndarray | None
    std: np.ndarray | None
    episode_return: float
    length: int
    end: str
    info: dict[str, Any]


class Shown(Protocol):
    """What an evaluation gives, of P individuals with E episodes each; see `Evaluated`."""

    @property
    def returns(self) -> Tensor:
        """float64 `[P, E]`."""
        ...

    @property
    def lengths(self) -> Tensor:
        """int64 `[P, E]`."""
        ...

    @property
    def ends(self) -> list[list[str]]:
        """`[P][E]`."""
        ...

    @property
    def moments(self) -> list[Moments]:
        """Of each job: episode by episode, individual by individual."""
        ...

    @property
    def finals(self) -> list[np.ndarray | None]:
        """Of each job, in the same order."""
        ...

    @property
    def infos(self) -> list[dict[str, Any] | None]:
        """Of each job, in the same order."""
        ...


def episodes_of(shown: Shown) -> list[list[Episode]]:
    """Return the episodes of every individual, `[P][E]`."""
    pop_size, count = shown.returns.shape
    return [[_episode(shown, i, e, pop_size) for e in range(count)] for i in range(pop_size)]


def _episode(shown: Shown, i: int, e: int, pop_size: int) -> Episode:
    number = e * pop_size + i
    mean = std = None
    if shown.moments:
        moments = shown.moments[number]
        mean = moments.mean.numpy()
        std = np.sqrt(moments.squares.numpy() / max(moments.count, 1))
    return Episode(
        shown.finals[number],
        mean,
        std,
        float(shown.returns[i, e]),
        int(shown.lengths[i, e]),
        shown.ends[i][e],
        shown.infos[number] or {},
    )


def describes_population(function: Descriptor) -> bool:
    """Return whether a descriptor function wants the population and not an episode."""
    return next(iter(inspect.signature(function).parameters), "") == "population"


def describe(
    function: Descriptor, shown: Shown | None, population: Any, num_dimensions: int
) -> Tensor:
    """Return the descriptors of everyone, float64 `[P, num_dimensions]`.

    Args:
        function: ``(population) -> [P, num_dimensions]``, known by that name of its parameter, or
            ``(episode) -> [num_dimensions]``, whose mean over the episodes of an individual counts.
        shown: the evaluation; only the first form goes without.
        population: who was evaluated.
        num_dimensions: numbers per descriptor.

    Raises:
        ValueError: where there are no episodes to describe, or descriptors have another size.
    """
    pop_size = population.pop_size
    if describes_population(function):
        return _checked(function(population), (pop_size, num_dimensions))
    if shown is None:
        message = (
            "descriptor= describes episodes and none were played: tell(fitnesses, evaluated) what "
            "interactor.rollout returned, or pass a descriptor(population) that returns "
            f"[{pop_size}, {num_dimensions}]"
        )
        raise ValueError(message)
    size = (num_dimensions,)
    rows = [[_checked(function(e), size) for e in own] for own in episodes_of(shown)]
    return torch.stack([torch.stack(own).mean(dim=0) for own in rows])


def _checked(values: Any, shape: Sequence[int]) -> Tensor:
    numbers = torch.as_tensor(values).detach().to("cpu", torch.float64)
    if numbers.shape != tuple(shape):
        message = (
            f"descriptor= gave shape {tuple(numbers.shape)} and the archive wants {tuple(shape)}: "
            "return one number per dimension of the archive"
        )
        raise ValueError(message)
    return numbers
