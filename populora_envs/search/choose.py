"""Searches by name, class or function, and the settings each of them takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from populora_envs.genetics import check_choices
from populora_envs.operators.choose import check_options, option_names, resolve
from populora_envs.search.base import Search, searches
from populora_envs.search.es import EvolutionStrategy
from populora_envs.search.ga import GeneticAlgorithm
from populora_envs.search.islands import IslandAlgorithm

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from populora_envs.population import Population

    Choice = str | Callable[..., Search] | None


def chosen(search: Choice, settings: dict[str, Any]) -> Callable[..., Search]:
    """Return what makes the search; None means the genetic algorithm where its options are given."""
    if search in (None, "ga") and "num_islands" in settings:
        return IslandAlgorithm
    if search is not None:
        return resolve(searches, search)
    is_es = set(settings) <= set(option_names(EvolutionStrategy))
    return EvolutionStrategy if is_es else GeneticAlgorithm


def check_search(search: Choice, settings: dict[str, Any], others: Iterable[str] = ()) -> None:
    """Refuse an unknown search, and a setting that it does not take: TypeError with near names.

    Args:
        search: as in `make_search`.
        settings: what the caller passed.
        others: further names the caller could have meant.
    """
    make = chosen(search, settings)
    if search is None:
        others = {*others, *option_names(EvolutionStrategy)}
    if make is GeneticAlgorithm:
        check_choices(settings, others)
    elif make is IslandAlgorithm:
        own = option_names(IslandAlgorithm)
        check_choices({n: v for n, v in settings.items() if n not in own}, {*others, *own})
    else:
        check_options([make], settings, others)


def make_search(search: Choice, population: Population, **settings: Any) -> Search:
    """Return a search that writes into a population.

    Args:
        search: a registered name such as ``"es"`` or ``"ga"``, a class, or a function ``(population,
            **settings)``; None means ``"ga"`` where options of selection, crossover or mutation are
            given, else ``"es"``.
        population: its base and individuals are where the search begins.
        **settings: of the search.

    Raises:
        ValueError: for an unknown name or a setting out of range.
        TypeError: for a setting that the search does not take.
    """
    check_search(search, settings)
    made = chosen(search, settings)(population, **settings)
    if not isinstance(made, Search):
        message = f"a search is a subclass of Search, not a {type(made).__name__}"
        raise TypeError(message)
    return made
