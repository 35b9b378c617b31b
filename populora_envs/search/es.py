"""``es``: an evolution strategy whose mean is the base and whose individuals are low-rank steps away."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from populora_envs.search.base import Search, register_search
from populora_envs.search.ranking import log_ranks
from populora_envs.search.settings import positive
from populora_envs.seeds import make_generator, normal

if TYPE_CHECKING:
    from populora_envs.individuals import State
    from populora_envs.population import Population
    from populora_envs.routing import RoutedLinear


@register_search("es")
class EvolutionStrategy(Search):
    """A mean that is merged into the base every generation, with mirrored low-rank perturbations.

    It stands on the fitness shaping of NES (Wierstra et al. 2014), mirrored sampling (Brockhoff et
    al. 2010) and low-rank perturbations (EGGROLL, Sarkar et al. 2025). The perturbations keep their size;
    the steps begin long, which is what a run of few generations needs, and shorten by the generation
    to a length that holds up against noise. Individuals 2k and 2k + 1 lie on both sides of the mean; with an odd
    number the last one is the mean. Where the rank reaches the smaller side of a layer, the perturbation
    is a full matrix, with the identity as the other factor.

    Args:
        population: whose base is the mean; biases move with ``adapt_bias=True``.
        scale: standard deviation of a perturbed weight, in units of 1/sqrt(fan-in).
        first_rate: length of the first step, in units of the utility-weighted sum of perturbations.
        last_rate: length that later steps approach.
        half_life: generations in which the difference to it halves.
    """

    def __init__(
        self,
        population: Population,
        *,
        scale: float = 2.0,
        first_rate: float = 1.5,
        last_rate: float = 0.6,
        half_life: float = 40.0,
    ) -> None:
        super().__init__(population)
        self.scale = positive("scale", scale)
        self.first_rate = positive("first_rate", first_rate)
        self.last_rate = positive("last_rate", last_rate)
        self.half_life = positive("half_life", half_life)

    @property
    def rate(self) -> float:
        """The length of the step that ends this generation."""
        left = math.exp2(-self.population.generation / self.half_life)
        return self.last_rate + (self.first_rate - self.last_rate) * left

    def centre(self) -> State:
        """Return the mean: an individual that equals the base."""
        return self.population.base_state()

    def _ask(self) -> None:
        seed, generation = self.population.seed, self.population.generation
        for name, layer in self.population.individuals.items():
            generator = make_generator(seed, generation, "es", name)
            _perturb_(layer, self.scale / math.sqrt(layer.fan_in), generator)

    def _tell(self, fitnesses: Tensor) -> None:
        utilities = self.rate * log_ranks(fitnesses)
        if utilities.any():
            layers = self.population.individuals.items()
            self.population.move_base_({name: _step(layer, utilities) for name, layer in layers})


def _perturb_(layer: RoutedLinear, deviation: float, generator: torch.Generator) -> None:
    """Write mirrored pairs whose change has entries of standard deviation `deviation`."""
    pop_size, fan_in, rank = layer.down.shape
    fan_out, pairs = layer.up.shape[1], pop_size // 2
    smaller = min(fan_in, fan_out)
    layer.down.zero_()
    layer.up.zero_()
    if rank >= smaller:
        identity, full = (layer.down, layer.up) if fan_in <= fan_out else (layer.up, layer.down)
        identity[:, :, :smaller] = torch.eye(smaller, dtype=identity.dtype, device=identity.device)
        noise = normal((pairs, full.shape[1], smaller), generator)
        _mirror_(full[:, :, :smaller], noise * deviation)
    else:
        down = normal((pairs, fan_in, rank), generator).to(layer.down)
        layer.down[: 2 * pairs] = down.repeat_interleave(2, dim=0)
        _mirror_(layer.up, normal((pairs, fan_out, rank), generator) * (deviation / rank**0.5))
    if layer.offset is not None:
        layer.offset.zero_()
        _mirror_(layer.offset, normal((pairs, fan_out), generator) * deviation)


def _mirror_(weights: Tensor, noise: Tensor) -> None:
    """Write +noise to the even individuals, -noise to the odd ones."""
    pairs = len(noise)
    weights[: 2 * pairs : 2] = noise.to(weights)
    weights[1 : 2 * pairs : 2] = -noise.to(weights)


def _step(layer: RoutedLinear, utilities: Tensor) -> dict[str, Tensor]:
    """Return the sum of all changes, weighted by their utilities."""
    weights = utilities.to(layer.up.device)
    # One product over individuals and ranks together.
    up = (layer.up.double() * weights[:, None, None]).transpose(0, 1).flatten(1)
    down = layer.down.double().transpose(0, 1).flatten(1)
    step = {"weight": (up @ down.T).float()}
    if layer.offset is not None:
        step["bias"] = (weights @ layer.offset.double()).float()
    return step
