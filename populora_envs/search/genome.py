"""An individual's weights as one vector, for searches that know nothing of layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from populora_envs.seeds import make_generator, normal

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from populora_envs.individuals import State
    from populora_envs.population import Population

    Parts = dict[str, Tensor]


class Genome:
    """The free weights of every individual of a population as rows of genes.

    Layers follow in the order of `Population.individuals`; of each come `down`, `up` and, where biases
    are adapted, `offset`. Where the rank reaches the smaller side of a layer, one factor is the identity
    for everyone and the other one alone is free, so the change is a full matrix.

    Args:
        population: whose individuals are read and written; nothing of their size is kept here.

    Attributes:
        size: number of genes D.
        scale: float64 `[D]` on the CPU, the natural step of each gene: 1/sqrt(fan-in) for full
            matrices, `down` and `offset`, 1/sqrt(rank) for `up`. A step of 1 in every gene changes
            each weight of the layer by 1/sqrt(fan-in).
    """

    def __init__(self, population: Population) -> None:
        self.population = population
        layers = population.individuals.values()
        self.scale = torch.cat([_steps(layer.parts, layer.fan_in) for layer in layers])
        self.size = len(self.scale)

    @property
    def start(self) -> Tensor:
        """Genes of an individual that equals the base, float64 `[D]`.

        All are 0 but `down` of layers with two free factors, drawn from N(0, 1/fan-in): with both at 0
        no step in one of them would change anything.
        """
        genes = []
        for name, layer in self.population.individuals.items():
            generator = make_generator(self.population.seed, "genome", name)
            genes.append(_start(layer.parts, generator))
        return torch.cat(genes)

    @torch.no_grad()
    def write_(self, rows: Tensor) -> None:
        """Write `[P, D]` into the individuals, whatever they were before."""
        _write_(self._layers(), rows)

    def read(self) -> Tensor:
        """Return the genes of everyone, float64 `[P, D]` on the CPU, as `write_` wrote them."""
        free = (weights for parts in self._layers() for weights in _free(parts).values())
        return torch.cat([weights.flatten(1).to("cpu", torch.float64) for weights in free], dim=1)

    def state_of(self, row: Tensor) -> State:
        """Return the individual with the genes `[D]`, as `Population.individual_state` gives it."""
        state = {
            name: {part: torch.zeros_like(w[:1], device="cpu") for part, w in layer.parts.items()}
            for name, layer in self.population.individuals.items()
        }
        _write_(state.values(), row[None])
        return {name: {part: w[0] for part, w in parts.items()} for name, parts in state.items()}

    def row_of(self, state: State) -> Tensor:
        """Return the genes of an individual, float64 `[D]`, as `state_of` or `write_` made it."""
        layers = ({part: w[None] for part, w in state[n].items()} for n in state)
        free = (weights for parts in layers for weights in _free(parts).values())
        return torch.cat([weights.flatten().to("cpu", torch.float64) for weights in free])

    def _layers(self) -> Iterator[Parts]:
        return (layer.parts for layer in self.population.individuals.values())


def _smaller(parts: Parts) -> int | None:
    """Return the smaller side of a layer, None where the rank stays below it."""
    fan_in, rank = parts["down"].shape[1:]
    smaller = min(fan_in, parts["up"].shape[1])
    return smaller if rank >= smaller else None


def _roles(parts: Parts) -> tuple[str, str]:
    """Return which factor of a full layer is the identity, and which one is free."""
    return ("down", "up") if parts["down"].shape[1] <= parts["up"].shape[1] else ("up", "down")


def _free(parts: Parts) -> Parts:
    """Return views `[P, ...]` of the weights that are genes, in their order."""
    smaller = _smaller(parts)
    if smaller is None:
        return parts
    free = _roles(parts)[1]
    genes = {free: parts[free][:, :, :smaller]}
    return {**genes, "offset": parts["offset"]} if "offset" in parts else genes


def _fix_(parts: Parts) -> None:
    """Write the identity of a full layer, and zeros where the rank exceeds its smaller side."""
    smaller = _smaller(parts)
    if smaller is not None:
        fixed, free = _roles(parts)
        parts[fixed].zero_()
        parts[fixed].diagonal(dim1=1, dim2=2).fill_(1.0)
        parts[free][:, :, smaller:] = 0.0


def _write_(layers: Iterable[Parts], rows: Tensor) -> None:
    begin = 0
    for parts in layers:
        _fix_(parts)
        for weights in _free(parts).values():
            end = begin + weights[0].numel()
            weights.copy_(rows[:, begin:end].reshape(weights.shape))
            begin = end


def _steps(parts: Parts, fan_in: int) -> Tensor:
    """Return the natural step of each gene of one layer."""
    rank = parts["down"].shape[2]
    is_full = _smaller(parts) is not None
    steps = []
    for part, weights in _free(parts).items():
        variance = 1 / rank if part == "up" and not is_full else 1 / fan_in
        steps.append(_filled(weights, variance**0.5))
    return torch.cat(steps)


def _start(parts: Parts, generator: torch.Generator) -> Tensor:
    """Return the genes of one layer that equals the base."""
    genes = {part: _filled(weights, 0.0) for part, weights in _free(parts).items()}
    if _smaller(parts) is None:
        down = normal((len(genes["down"]),), generator).double()
        genes["down"] = down / parts["down"].shape[1] ** 0.5
    return torch.cat(list(genes.values()))


def _filled(weights: Tensor, value: float) -> Tensor:
    """Return one number for each gene of an individual, float64 on the CPU."""
    return torch.full((weights[0].numel(),), value, dtype=torch.float64, device="cpu")
