"""Every random number comes from here: (seed, generation, purpose, counter), never from global state."""

from __future__ import annotations

import hashlib
import operator
import random
from contextlib import contextmanager
from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from torch import Tensor

_QUARTER = 2**29
_STEP = -7046029254386353131  # 2^64 / golden ratio, as a signed 64-bit number
_MIX_1 = -4658895280553007687
_MIX_2 = -7723592293110705685


class Purpose(IntEnum):
    """The seed ranges of episodes: disjoint quarters of [0, 2**31)."""

    SELECTION = 0
    CHAMPION = 1
    REPORT = 2


def derive_seed(*parts: int | str) -> int:
    """Hash `parts` to an int in [0, 2**63)."""
    typed = (f"str:{p}" if isinstance(p, str) else f"int:{operator.index(p)}" for p in parts)
    text = "\x1f".join(typed)
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def fresh_seed() -> int:
    """Return a seed in [0, 2**31) from the system's entropy."""
    return random.SystemRandom().randrange(2**31)


def job_seed(seed: int, purpose: Purpose, generation: int, episode: int) -> int:
    """Return the seed of an episode, an int in [0, 2**31), in the range of its purpose.

    It does not depend on the individual: all individuals face the same start states.
    """
    return purpose * _QUARTER + derive_seed(seed, "job", generation, episode) % _QUARTER


def job_seeds(seed: int, purpose: Purpose, generation: int, episodes: Iterable[int]) -> list[int]:
    """Return the seeds of numbered episodes, see `job_seed`."""
    return [job_seed(seed, purpose, generation, episode) for episode in episodes]


def make_generator(*parts: int | str) -> torch.Generator:
    """Return a CPU generator that depends on `parts` alone."""
    return torch.Generator().manual_seed(derive_seed(*parts))


def normal(shape: Sequence[int], generator: torch.Generator) -> Tensor:
    """Draw standard normal numbers, float32 on the CPU, whatever torch's default type and device."""
    return torch.randn(tuple(shape), generator=generator, dtype=torch.float32, device="cpu")


def _mix(bits: Tensor) -> Tensor:
    """Scramble int64 `bits` (the finaliser of SplitMix64, Steele et al. 2014)."""
    bits = (bits ^ ((bits >> 30) & (2**34 - 1))) * _MIX_1
    bits = (bits ^ ((bits >> 27) & (2**37 - 1))) * _MIX_2
    return bits ^ ((bits >> 31) & (2**33 - 1))


def hash_uniform(keys: Tensor, size: int) -> Tensor:
    """Return numbers in (0, 1), float64 `[B, size]`, that depend on each row's key alone.

    Args:
        keys: int64 `[B, parts]`, for example the job seed and the step.
        size: numbers per row.
    """
    state = torch.zeros(len(keys), dtype=torch.int64, device=keys.device)
    for part in keys.unbind(dim=1):
        state = _mix(state * _STEP + part + 1)
    column = torch.arange(1, size + 1, device=keys.device)
    bits = _mix(_mix(state[:, None] + column * _STEP))
    return (((bits >> 12) & (2**52 - 1)).double() + 0.5) * 2.0**-52


def _global_state() -> tuple[object, ...]:
    """Return something that changes with every draw from a global generator."""
    _, key, *position = np.random.get_state()  # noqa: NPY002
    numpy = np.asarray(key).tobytes(), *position
    return random.getstate(), numpy, torch.get_rng_state().numpy().tobytes()


def seed_globals(seed: int) -> None:
    """Seed the generators that user code may draw from."""
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 - the user's code may read this generator
    torch.default_generator.manual_seed(seed)


@contextmanager
def seeded_globals(seed: int) -> Iterator[list[bool]]:
    """Run user code under global generators made from `seed`, then restore them.

    Yields:
        A list that holds, afterwards, whether the code drew from one of them.
    """
    python, numpy, torch_cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    seed_globals(seed)
    before = _global_state()
    drew: list[bool] = []
    try:
        yield drew
    finally:
        drew.append(before != _global_state())
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
        torch.set_rng_state(torch_cpu)
