"""Fitness functions of the user: which of three forms a function has, and how it is called."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from populora_envs.seeds import derive_seed, seeded_globals

FitnessFunction = Callable[..., Any]

_BATCHED = ("individuals", "indices", "ids")
_SINGLE = ("idx", "index", "individual")


def _required_parameters(function: FitnessFunction) -> list[str]:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(function).parameters.values()
    return [p.name for p in parameters if p.kind in kinds and p.default is p.empty]


def fitness_form(function: FitnessFunction) -> str:
    """Return ``"all"``, ``"batched"`` or ``"single"`` from the function's required parameters.

    `(population)` is called once for all, `(population, individuals | indices | ids)` once with a
    list of ids, `(population, idx | index | individual)` once per individual. Anything else is a
    ValueError.
    """
    names = _required_parameters(function)
    if len(names) == 1:
        return "all"
    if len(names) == 2 and names[1] in _BATCHED:
        return "batched"
    if len(names) == 2 and names[1] in _SINGLE:
        return "single"
    message = (
        f"a fitness function takes (population), (population, individuals) or (population, idx), "
        f"this one takes ({', '.join(names)}): rename or default its parameters"
    )
    raise ValueError(message)


def call_fitness(function: FitnessFunction, population: Any, ids: Sequence[int]) -> Tensor:
    """Return the fitness of each individual in `ids`, float32 `[len(ids)]` on the CPU.

    The function runs under global generators made from `population.eval_seed`; they are restored.

    Raises:
        ValueError: where the function has no known form or gives another number of values.
        TypeError: where it gives no numbers.
    """
    return call_and_watch(function, population, ids)[0]


def call_and_watch(
    function: FitnessFunction, population: Any, ids: Sequence[int]
) -> tuple[Tensor, bool]:
    """Do what `call_fitness` does; return also whether the function could have drawn.

    It could where it moved a global generator or looked at `population.eval_seed`.
    """
    form = fitness_form(function)
    seed = derive_seed("fitness", population.eval_seed)
    looks = population.eval_seed_looks
    with seeded_globals(seed) as drew:
        values = _called(function, form, population, ids)
    return values, drew[0] or population.eval_seed_looks != looks


def _called(function: FitnessFunction, form: str, population: Any, ids: Sequence[int]) -> Tensor:
    if form == "single":
        numbers = [_number(function(population, i), i) for i in ids]
        return torch.tensor(numbers, dtype=torch.float32, device="cpu")
    everyone = list(range(population.pop_size))
    if form == "all":
        return _vector(function(population), len(everyone))[list(ids)]
    return _vector(function(population, list(ids)), len(ids))


def _number(value: Any, individual: int) -> float:
    try:
        return float(value.detach() if isinstance(value, Tensor) else value)
    except (TypeError, ValueError) as error:
        message = (
            f"the fitness function gave {value!r} for individual {individual}: "
            "return one number, higher is better"
        )
        raise TypeError(message) from error


def _vector(values: Any, count: int) -> Tensor:
    try:
        fitnesses = _float32(values)
    except (TypeError, ValueError, RuntimeError) as error:
        message = (
            f"the fitness function gave {type(values).__name__} {values!r}: "
            f"return a tensor or list of {count} numbers"
        )
        raise TypeError(message) from error
    if fitnesses.shape != (count,):
        message = (
            f"the fitness function gave values of shape {tuple(fitnesses.shape)} for {count} "
            f"individuals: return shape ({count},)"
        )
        raise ValueError(message)
    return fitnesses


def _float32(values: Any) -> Tensor:
    """Return numbers as a detached float32 tensor on the CPU."""
    if isinstance(values, (list, tuple)):
        values = [v.detach() if isinstance(v, Tensor) else v for v in values]
    return torch.as_tensor(values).detach().to("cpu", torch.float32)


def check_fitnesses(fitnesses: Any, pop_size: int) -> Tensor:
    """Return `fitnesses` as float32 `[P]` on the CPU, detached; non-finite values become -inf."""
    try:
        values = _float32(fitnesses)
    except (TypeError, ValueError, RuntimeError) as error:
        message = (
            f"fitnesses are {type(fitnesses).__name__} {fitnesses!r}: "
            f"pass a tensor or list of {pop_size} numbers"
        )
        raise TypeError(message) from error
    if values.shape != (pop_size,):
        message = (
            f"fitnesses have shape {tuple(values.shape)} and the population has {pop_size} "
            f"individuals: pass shape ({pop_size},)"
        )
        raise ValueError(message)
    return nonfinite_last(values)


def nonfinite_last(values: Tensor) -> Tensor:
    """Return `values` with -inf, the worst, in place of what is not finite."""
    return torch.where(values.isfinite(), values, -torch.inf)


def best_first(fitnesses: Tensor) -> Tensor:
    """Return indices from the best to the worst fitness, ties to the lower index, int64 `[P]`."""
    return torch.argsort(fitnesses, descending=True, stable=True)
