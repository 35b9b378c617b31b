"""Fitness functions on several ranks, each called for some of the individuals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from populora_envs.fitness import call_and_watch, fitness_form
from populora_envs.lockstep import check_digests
from populora_envs.ranks import ranks

if TYPE_CHECKING:
    from populora_envs.fitness import FitnessFunction
    from populora_envs.ranks import Ranks


def call_on_ranks(function: FitnessFunction, population: Any) -> tuple[Tensor, bool]:
    """Return the fitness of everyone, float32 `[P]`, and whether the function could have drawn.

    Every rank gets the same. A function of the whole population is called on rank 0 alone, the other
    forms for every size-th individual.
    """
    everyone = range(population.pop_size)
    together = ranks()
    if together is None:
        return call_and_watch(function, population, everyone)
    population.sync_()
    if fitness_form(function) == "all":
        return together.on_main(lambda: call_and_watch(function, population, everyone))
    return _call_shares(together, function, population)


def _call_shares(
    together: Ranks, function: FitnessFunction, population: Any
) -> tuple[Tensor, bool]:
    mine = range(together.rank, population.pop_size, together.size)

    def call() -> tuple[Tensor, bool, Any]:
        values, may_draw = torch.zeros(0), False
        if mine:
            values, may_draw = call_and_watch(function, population, mine)
        return values, may_draw, population.digest()

    told = together.together(call)
    check_digests([digest for _, _, digest in told])
    fitnesses = torch.zeros(population.pop_size)
    for rank, (values, _, _) in enumerate(told):
        fitnesses[rank :: together.size] = values
    return fitnesses, any(may_draw for _, may_draw, _ in told)
