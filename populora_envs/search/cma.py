"""``cma``: CMA-ES with a full covariance matrix, by the package pycma (Hansen et al. 2019)."""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from populora_envs.fitness import best_first
from populora_envs.individuals import check_shape
from populora_envs.search.base import Search, register_search
from populora_envs.search.genome import Genome
from populora_envs.search.settings import positive
from populora_envs.search.vector import all_equal
from populora_envs.seeds import make_generator, normal

if TYPE_CHECKING:
    import numpy as np

    from populora_envs.individuals import State
    from populora_envs.population import Population

MOST_GENES = 1000
"""Its matrix has the square of this many entries, and eigenvectors."""


@register_search("cma")
class CovarianceMatrixAdaptation(Search):
    """The covariance matrix adaptation evolution strategy (Hansen 2016), for small genomes.

    pycma's state is more than tensors and plain values, so the fitness of all generations is kept
    (P numbers each) and played to a new one where a run goes on. Its numbers come from (seed,
    generation), never from NumPy's global generator. It is told ranks, ties to the lower index.

    Args:
        population: that it writes into; its base stays as it is.
        scale: step size of the first generation, in units of `Genome.scale`.

    Raises:
        ImportError: where pycma is missing.
        ValueError: for more than 1000 genes, fewer than 2 individuals, or a scale that is not above 0.
    """

    def __init__(self, population: Population, *, scale: float = 1.0) -> None:
        super().__init__(population)
        self.scale = positive("scale", scale)
        self.genome = Genome(population)
        _check_sizes(population.pop_size, self.genome.size)
        self._generations: list[int] = []
        self._fitnesses = torch.empty(0, population.pop_size, dtype=torch.float32, device="cpu")
        self._begin()

    def _begin(self) -> None:
        self._strategy = _Strategy(self.genome.size, self.population.pop_size, self.scale)
        self._num_replayed = 0

    def centre(self) -> State:
        """Return the mean as an individual."""
        return self.genome.state_of(self._genes(self._replayed().mean))

    def state(self) -> dict[str, Any]:
        """Return what it was told: generations int64 `[G]` and their fitnesses `[G, P]`."""
        generations = torch.tensor(self._generations, dtype=torch.int64, device="cpu")
        told = {"generations": generations, "all_fitnesses": self._fitnesses}
        return {**super().state(), **told}

    def load_state_(self, state: dict[str, Any]) -> None:
        """Go on from what `state` returned; the population's seed is that of the run by then."""
        given = state["all_fitnesses"]
        here = given.new_empty(len(given), self.population.pop_size)
        check_shape("cma.all_fitnesses", given, here)
        super().load_state_(state)
        self._generations, self._fitnesses = state["generations"].tolist(), given.clone()
        self._begin()

    def _ask(self) -> None:
        strategy = self._replayed()
        self.genome.write_(self._genes(strategy.ask(self._generator(self.population.generation))))

    def _tell(self, fitnesses: Tensor) -> None:
        self._generations.append(self.population.generation)
        self._fitnesses = torch.cat([self._fitnesses, fitnesses[None]])
        self._replayed()

    def _replayed(self) -> _Strategy:
        """Return the strategy after it was told everything."""
        while self._num_replayed < len(self._generations):
            generation = self._generations[self._num_replayed]
            fitnesses = self._fitnesses[self._num_replayed]
            self._strategy.learn(fitnesses, self._generator(generation))
            self._num_replayed += 1
        return self._strategy

    def _generator(self, generation: int) -> torch.Generator:
        return make_generator(self.population.seed, generation, "cma")

    def _genes(self, places: Tensor) -> Tensor:
        return self.genome.start + self.genome.scale * places


class _Strategy:
    """One `CMAEvolutionStrategy`, around 0 and in units of 1, whose every draw is from a generator."""

    def __init__(self, size: int, pop_size: int, scale: float) -> None:
        self._generator: torch.Generator | None = None
        self._asked: list[np.ndarray] | None = None
        options = {
            "popsize": pop_size,
            "randn": self._randn,
            "seed": math.nan,  # pycma leaves NumPy's global generator alone
            "verbose": -9,
            "verb_log": 0,
        }
        self._pycma = _import_cma().CMAEvolutionStrategy(size * [0.0], scale, options)

    @property
    def mean(self) -> Tensor:
        """Float64 `[D]`."""
        return torch.tensor(self._pycma.mean, dtype=torch.float64, device="cpu")

    def ask(self, generator: torch.Generator) -> Tensor:
        """Return this generation, float64 `[P, D]`; a repeated call gives the same."""
        if self._asked is None:
            self._generator = generator
            self._asked = self._pycma.ask()
        return torch.stack(
            [torch.tensor(x, dtype=torch.float64, device="cpu") for x in self._asked]
        )

    def learn(self, fitnesses: Tensor, generator: torch.Generator) -> None:
        """Go on to the next generation; with equal fitnesses the mean stays."""
        self.ask(generator)
        if not all_equal(fitnesses):
            ranks = best_first(fitnesses).argsort()
            self._pycma.tell(self._asked, ranks.tolist())
        self._asked = None

    def _randn(self, *shape: int) -> np.ndarray:
        assert self._generator is not None, "pycma draws while it is asked"
        return normal(shape, self._generator).double().numpy()


def _check_sizes(pop_size: int, size: int) -> None:
    if pop_size < 2:
        message = "cma wants a pop_size of at least 2, not 1: one alone has no rank"
        raise ValueError(message)
    if size > MOST_GENES:
        message = (
            f"cma adapts at most {MOST_GENES} weights of an individual, not {size}: choose a lower "
            'low_rank, fewer lora_targets, or search="sep_cma"'
        )
        raise ValueError(message)


def _import_cma() -> Any:
    """Return pycma, without its remark that matplotlib is missing."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import cma
    except ImportError as error:
        message = 'the search "cma" wants pycma: pip install "populora-envs[cma]"'
        raise ImportError(message) from error
    return cma
