"""What searches over a vector of genes share: a mean, noise around it, and exact states."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from populora_envs.individuals import check_shape
from populora_envs.search.base import Search
from populora_envs.search.genome import Genome
from populora_envs.search.settings import positive
from populora_envs.seeds import make_generator, normal

if TYPE_CHECKING:
    from populora_envs.individuals import State
    from populora_envs.population import Population


class VectorSearch(Search):
    """A mean in the space of genomes, and individuals that lie around it.

    Noise comes from (seed, generation, name of the search) and is drawn anew where it is needed, so
    that beyond the individuals only vectors of the size of one are kept. With mirrored noise
    individuals 2k and 2k + 1 lie on both sides of the mean; with an odd number the last one is the mean.

    Args:
        population: that it writes into; its base stays as it is.
        scale: standard deviation of the first generation, in units of `Genome.scale`.

    Attributes:
        genome: from vectors to individuals.
        mean: float64 `[D]`, it begins at the base.

    Raises:
        ValueError: for a scale that is not above 0, or fewer than 2 individuals.
    """

    name: ClassVar[str]
    """Under which it is registered, and draws."""
    mirrored: ClassVar[bool] = True
    """Whether individuals come in pairs."""
    learned: ClassVar[tuple[str, ...]] = ("mean",)
    """Names of the float64 tensors that `state` holds."""

    def __init__(self, population: Population, scale: float) -> None:
        super().__init__(population)
        self.scale = positive("scale", scale)
        if population.pop_size < 2:
            message = f"{self.name} wants a pop_size of at least 2, not 1: one alone has no rank"
            raise ValueError(message)
        self.genome = Genome(population)
        self.mean = self.genome.start

    @property
    def deviation(self) -> Tensor:
        """The standard deviation of each gene around the mean, float64 `[D]`."""
        return self.scale * self.genome.scale

    def noise(self) -> Tensor:
        """Return how far each individual of this generation lies from the mean, float64 `[P, D]`.

        The unit is `deviation`; each number is drawn from N(0, 1).
        """
        population, size = self.population, self.genome.size
        generator = make_generator(population.seed, population.generation, self.name)
        if not self.mirrored:
            return normal((population.pop_size, size), generator).double()
        return mirror(normal((population.pop_size // 2, size), generator), population.pop_size)

    def centre(self) -> State:
        """Return the mean as an individual."""
        return self.genome.state_of(self.mean)

    def state(self) -> dict[str, Any]:
        """Return what it has learned."""
        return {**super().state(), **{name: getattr(self, name).clone() for name in self.learned}}

    def load_state_(self, state: dict[str, Any]) -> None:
        """Go on from what `state` returned; ValueError where it is of genomes of another size."""
        for name in self.learned:
            check_shape(f"{self.name}.{name}", state[name], getattr(self, name))
        super().load_state_(state)
        for name in self.learned:
            setattr(self, name, state[name].clone())

    def _ask(self) -> None:
        self.genome.write_(self.mean + self.deviation * self.noise())

    def _tell(self, fitnesses: Tensor) -> None:
        if not all_equal(fitnesses):
            self._learn(fitnesses)

    @abstractmethod
    def _learn(self, fitnesses: Tensor) -> None:
        """Learn from float32 `[P]`, -inf where a fitness was not finite, not all of them equal."""


def mirror(half: Tensor, pop_size: int) -> Tensor:
    """Return +noise for even and -noise for odd individuals, float64 `[P, D]`.

    Args:
        half: `[P // 2, D]`.
        pop_size: P; with an odd number the last row is 0.
    """
    noise = half.new_zeros(pop_size, half.shape[1], dtype=torch.float64)
    noise[: 2 * len(half) : 2] = half
    noise[1 : 2 * len(half) : 2] = -half
    return noise


def all_equal(fitnesses: Tensor) -> bool:
    """Return whether there is nothing to learn."""
    return bool((fitnesses == fitnesses[0]).all())
