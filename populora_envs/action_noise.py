"""The noise of action heads: uniforms by key, gammas from uniforms, and functions that round alike.

torch's sigmoid, softplus and atanh round differently for the last elements of an array than for
the others, so that a row would depend on its place in the batch; the ones here do not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn import functional as F

from populora_envs.seeds import hash_uniform

if TYPE_CHECKING:
    from torch import Tensor

NUM_PROPOSALS = 8  # one is refused with probability 0.05 at most, so all eight with 4e-11
UNIFORMS_PER_GAMMA = 2 * NUM_PROPOSALS + 1
_SMALLEST_UNIFORM = 2.0**-54


def double(numbers: Tensor) -> Tensor:
    """Return `numbers` in float64, on the CPU where their device has none."""
    return (numbers.cpu() if numbers.device.type == "mps" else numbers).double()


def sigmoid(x: Tensor) -> Tensor:
    """Return 1 / (1 + exp(-x))."""
    return 1 / (1 + torch.exp(-x))


def softplus(x: Tensor) -> Tensor:
    """Return log(1 + exp(x))."""
    negative: Tensor = F.logsigmoid(-x)
    return -negative


def normal_quantile(uniform: Tensor) -> Tensor:
    """Return the standard normal numbers that lie above a share `uniform` of all."""
    numbers: Tensor = torch.special.ndtri(uniform)
    return numbers


def draw_uniform(like: Tensor, size: int, keys: Tensor | None) -> Tensor:
    """Return numbers strictly inside (0, 1), float64 `[..., size]`.

    Args:
        like: `[..., any]`, gives the leading dimensions and the device.
        size: numbers per row.
        keys: int64 `[B, parts]`, one per row of `like`; None draws from torch's global generator.

    Raises:
        ValueError: there is not one key per row.
    """
    shape = (*like.shape[:-1], size)
    if keys is None:
        uniform = torch.rand(shape, dtype=torch.float64, device=like.device)
    else:
        if shape[:-1] != keys.shape[:1]:
            message = (
                f"the output has {list(shape[:-1])} rows, keys {list(keys.shape[:1])}: "
                "pass one key per row"
            )
            raise ValueError(message)
        uniform = hash_uniform(keys.to(like.device), size)
    return uniform.clamp(_SMALLEST_UNIFORM, 1 - 2 * _SMALLEST_UNIFORM)


def log_gamma(shapes: Tensor, uniform: Tensor) -> Tensor:
    """Return logarithms of gamma variables of scale 1, `[...]`.

    The first accepted of a fixed number of proposals (Marsaglia and Tsang 2000, "A simple method
    for generating gamma variables"), with their boost for shapes below 1.

    Args:
        shapes: above 0, `[...]`.
        uniform: `[..., UNIFORMS_PER_GAMMA]`.
    """
    boosted = torch.where(shapes < 1, shapes + 1, shapes)
    d = boosted[..., None] - 1 / 3
    normal = normal_quantile(uniform[..., :NUM_PROPOSALS])
    log_uniform = uniform[..., NUM_PROPOSALS : 2 * NUM_PROPOSALS].log()
    cube = (1 + normal / (9 * d).sqrt()) ** 3
    # A proposal below 0 is refused; its logarithm is taken of something harmless.
    log_cube = cube.clamp(min=1e-300).log()
    accepted = (cube > 0) & (log_uniform < normal**2 / 2 + d * (1 - cube + log_cube))
    first = accepted.to(torch.int8).argmax(-1, keepdim=True)
    log_boost = torch.where(shapes < 1, uniform[..., -1].log() / shapes, 0.0)
    return d[..., 0].log() + log_cube.gather(-1, first)[..., 0] + log_boost
