"""How far apart the individuals of a population are."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from populora_envs.population import Population
    from populora_envs.routing import RoutedLinear


def diversity(population: Population) -> float:
    """Return the root mean square distance of the individuals' weights from their mean.

    It is the Frobenius norm over all adapted layers, in the units of the weights; biases count as well.
    """
    variance = sum(_variance(layer) for layer in population.individuals.values())
    return math.sqrt(max(0.0, variance))


def _variance(layer: RoutedLinear) -> float:
    """Return the mean squared distance of the products ``up @ down.T`` from their mean.

    It is the mean of their squared norms, which the small Gram matrices of the factors give, less the
    squared norm of the mean, which is one product of all factors side by side.
    """
    down, up = layer.down.detach().double(), layer.up.detach().double()
    count = len(down)
    norms = ((down.mT @ down) * (up.mT @ up)).sum()
    mean = up.transpose(0, 1).flatten(1) @ down.transpose(1, 2).flatten(0, 1) / count
    variance = float(norms) / count - float(mean.square().sum())
    return variance + (0.0 if layer.offset is None else _spread(layer.offset))


def _spread(offsets: Tensor) -> float:
    numbers = offsets.detach().double()
    return float((numbers - numbers.mean(0)).square().sum() / len(numbers))
