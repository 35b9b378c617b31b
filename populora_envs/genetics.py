"""The genetic algorithm on a population: selection, parents, crossover, mutation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from populora_envs import seeds
from populora_envs.fitness import best_first, check_fitnesses
from populora_envs.operators import crossovers, mutations, parent_selections, selections
from populora_envs.operators.choose import (
    at_each,
    check_options,
    name_of,
    own_options,
    resolve,
    resolve_each,
)
from populora_envs.settings import GeneticSettings, at_least, settings_from

if TYPE_CHECKING:
    from populora_envs.lineage import Lineage
    from populora_envs.routing import RoutedLinear

Choice = str | Callable[..., Any]
PerTargetChoice = Choice | Mapping[str, Choice]


class Selected(NamedTuple):
    """Who lives on: int64 tensors of indices, elites and survivors best first."""

    survivors: Tensor
    elites: Tensor
    selected_out_indices: Tensor


class Genetics:
    """What `Population` inherits to vary its individuals.

    Operators see the change of a bias, and of a norm's scale and shift, as the `up` factor of a change of
    rank 1 whose `down` factor is 1.

    Every draw comes from (seed, generation, operator, number of the draw), so a repeated call differs
    and a restored population goes on where it was.
    """

    pop_size: int
    seed: int
    individuals: dict[str, RoutedLinear]
    lineage: Lineage
    _draws: int
    _own_path: Callable[[str], str]

    @property
    def generation(self) -> int:
        """How many generations there were."""
        raise NotImplementedError

    @generation.setter
    def generation(self, value: int) -> None:
        raise NotImplementedError

    def _generator(self, purpose: str) -> torch.Generator:
        self._draws += 1
        return seeds.make_generator(self.seed, self.generation, purpose, self._draws)

    def _indices(self, indices: Sequence[int] | Tensor) -> Tensor:
        raise NotImplementedError

    def _single(self, individual: int | Tensor) -> Tensor:
        raise NotImplementedError

    def select(
        self,
        selection_type: Choice,
        fitnesses: Tensor,
        survive_frac: float = 0.5,
        *,
        elite_frac: float = 0.25,
        **options: Any,
    ) -> Selected:
        """Return who lives on, as indices: survivors and elites, best first, and those that do not.

        Args:
            selection_type: ``"deterministic"``, ``"probabilistic"``, another registered name, or a
                function ``(fitnesses, num_survivors, generator, **options) -> indices``.
            fitnesses: `[P]`, higher is better; non-finite ones rank last.
            survive_frac: share of the population that survives, in (0, 1], rounded, at least one.
            elite_frac: share that survives whatever is drawn, in [0, 1], rounded; at least one
                unless 0, at most all survivors.
            **options: of the selection.

        Raises:
            ValueError: for an unknown name, a fraction out of range or fitnesses of another length.
        """
        values = check_fitnesses(fitnesses, self.pop_size)
        num_survivors, num_elites = _counts(self.pop_size, survive_frac, elite_frac)
        operator = resolve(selections, selection_type)
        check_options([operator], options)
        generator = self._generator("selection")
        drawn = self._indices(operator(values, num_survivors, generator, **options)).cpu()
        if len(drawn) != num_survivors or _any_twice(drawn):
            message = (
                f"the selection gave {drawn.tolist()}: return {num_survivors} different indices"
            )
            raise ValueError(message)
        order = best_first(values)
        elites = order[:num_elites]
        # Elites come first; the others who were drawn fill the rest of the places.
        others = drawn[~torch.isin(drawn, elites)][: num_survivors - num_elites]
        lives = torch.isin(order, torch.cat([elites, others]))
        culled = torch.sort(order[~lives]).values
        return Selected(order[lives], elites, culled)

    def select_parents(
        self,
        selection_type: Choice,
        fitnesses: Tensor,
        num_children: int,
        culled: Tensor | Sequence[int] | None = None,
        num_parents_per_child: int = 2,
        **options: Any,
    ) -> Tensor:
        """Choose parents for each child.

        Args:
            selection_type: ``"tournament"``, ``"roulette"``, another registered name, or a function
                ``(fitnesses [S], num_children, num_parents, generator, **options)`` that returns
                indices into the survivors.
            fitnesses: `[P]`.
            num_children: how many children.
            culled: indices that have no children; None means that everyone may have some.
            num_parents_per_child: parents of each child.
            **options: of the parent selection, such as `tournament_size`.

        Returns:
            int64 `[children, parents]`, indices into the population.
        """
        values = check_fitnesses(fitnesses, self.pop_size)
        living = torch.ones(self.pop_size, dtype=torch.bool, device="cpu")
        if culled is not None:
            living[self._indices(culled).cpu()] = False
        survivors = torch.nonzero(living).flatten()
        if not len(survivors):
            message = "all individuals are culled: no parents are left"
            raise ValueError(message)
        operator = resolve(parent_selections, selection_type)
        check_options([operator], options)
        children = at_least("num_children", num_children, 0)
        counts = children, at_least("num_parents_per_child", num_parents_per_child, 1)
        generator = self._generator("parents")
        if not children:
            return torch.empty(counts, dtype=torch.int64, device="cpu")
        chosen = torch.as_tensor(operator(values[survivors], *counts, generator, **options)).cpu()
        if chosen.shape != counts or not 0 <= chosen.min() <= chosen.max() < len(survivors):
            message = (
                f"the parent selection gave {chosen.tolist()}: return {counts[0]} rows of "
                f"{counts[1]} indices below {len(survivors)}, the number of survivors"
            )
            raise ValueError(message)
        return survivors[chosen]

    def crossover_(
        self,
        crossover_type: PerTargetChoice,
        parents: Tensor,
        children: Tensor | Sequence[int],
        **options: Any,
    ) -> None:
        """Overwrite `children` with mixtures of their parents.

        Args:
            crossover_type: ``"average"``, ``"clone"``, another registered name, a function
                ``(down [C, parents, in, r], up [C, parents, out, r], generator, **options)``, or several by
                target: ``{"encoder.*": "sbx", "default": "clone"}``, as options may be too.
            parents: int64 `[children, parents]`, indices into the population.
            children: indices of those who are overwritten, each once; they may be parents too.
            **options: of the crossover.
        """
        operator = resolve_each(crossovers, crossover_type)
        check_options([operator], options)
        parents = torch.as_tensor(parents)
        slots = self._indices(children)
        if _any_twice(slots):
            message = f"children {slots.tolist()} name a place twice: name each once"
            raise ValueError(message)
        if parents.dim() != 2 or len(parents) != len(slots):
            message = (
                f"parents have shape {tuple(parents.shape)} for {len(slots)} children: "
                "pass one row of parents per child"
            )
            raise ValueError(message)
        rows = self._indices(parents.flatten()).reshape(parents.shape)
        generator = self._generator("crossover")
        used = rows[:, :1] if operator is crossovers.get("clone") else rows
        chosen = at_each(self._names_of_targets(), "crossover_type", operator, options)
        self.lineage.birth_(slots, used, name_of(operator, crossovers), self.generation + 1)
        for name, layer in self.individuals.items():
            cross, own = chosen[name]
            if not layer.is_vector:
                mixed = cross(layer.down[rows], layer.up[rows], generator, **own)
                layer.down[slots], layer.up[slots] = mixed
            for vectors in layer.vectors:
                given = vectors[rows]
                one = torch.ones_like(given[..., :1, None])
                vectors[slots] = cross(one, given[..., None], generator, **own)[1][..., 0]

    def mutate_(
        self,
        mutation_type: PerTargetChoice,
        *,
        individual: int | Tensor | None = None,
        individuals: Sequence[int] | Tensor | None = None,
        all_individuals: bool = False,
        **options: Any,
    ) -> None:
        """Vary individuals.

        Args:
            mutation_type: ``"full_gaussian"``, another registered name, a function
                ``(down [N, in, r], up [N, out, r], generator, **options) -> (down, up)``, or several by
                target, as in `crossover_`; options may be so too: ``epsilon={"0": 0.1, "default": 0.7}``.
            individual: one index.
            individuals: several indices; one that is named twice varies once.
            all_individuals: everyone.
            **options: of the mutation, such as `epsilon`.
        """
        operator = resolve_each(mutations, mutation_type)
        check_options([operator], options)
        chosen = self._chosen(individual, individuals, all_individuals)
        rows = self._indices(sorted(set(chosen.tolist())))
        generator = self._generator("mutation")
        varying = at_each(self._names_of_targets(), "mutation_type", operator, options)
        self.lineage.vary_(rows, name_of(operator, mutations), self.generation + 1)
        for name, layer in self.individuals.items():
            mutate, own = varying[name]
            if not layer.is_vector:
                varied = mutate(layer.down[rows], layer.up[rows], generator, **own)
                layer.down[rows], layer.up[rows] = varied
                layer.settle_(rows)
            for vectors in layer.vectors:
                given = vectors[rows]
                one = torch.ones_like(given[..., :1, None])
                moved = mutate(one, given[..., None], generator, **own)[1][..., 0]
                # An up factor of rank 1 moves by a whole step, a weight by one of 1/sqrt(fan-in).
                vectors[rows] += (moved - given) / layer.fan_in**0.5

    def _names_of_targets(self) -> dict[str, list[str]]:
        """Return what patterns may call each target; the path in the user's own model comes last."""
        return {name: [name, self._own_path(name)] for name in self.individuals}

    def _chosen(
        self,
        individual: int | Tensor | None,
        individuals: Sequence[int] | Tensor | None,
        all_individuals: bool,
    ) -> Tensor:
        named = [individual is not None, individuals is not None, bool(all_individuals)]
        if sum(named) != 1:
            message = "pass exactly one of individual=, individuals= and all_individuals=True"
            raise ValueError(message)
        if individual is not None:
            return self._single(individual)
        return self._indices(range(self.pop_size) if individuals is None else individuals)

    def evolve_(self, fitnesses: Tensor, **choices: Any) -> Selected:
        """Make the next generation: the elites stay as they are, everyone else is replaced.

        Each place that is not an elite's gets a mutated child of survivors. `generation` is counted.

        Args:
            fitnesses: `[P]`, higher is better; a graph is ignored, non-finite values rank last.
            **choices: fields of `GeneticSettings` (`selection_type`, `survive_frac`, `elite_frac`,
                `parent_selection_type`, `num_parents_per_child`, `crossover_type`, `mutation_type`)
                and options of the chosen operators, such as `epsilon` or `tournament_size`.

        Returns:
            Who lived on; the elites are where they were.
        """
        settings, options = settings_from(GeneticSettings, choices)
        select, select_parents, crossover, mutate = check_choices(choices)
        fractions = {"survive_frac": settings.survive_frac, "elite_frac": settings.elite_frac}
        selected = self.select(select, fitnesses, **fractions, **own_options(select, options))
        children = _without(self.pop_size, selected.elites)
        if len(children):
            parents = self.select_parents(
                select_parents,
                fitnesses,
                len(children),
                selected.selected_out_indices,
                settings.num_parents_per_child,
                **own_options(select_parents, options),
            )
            self.crossover_(crossover, parents, children, **own_options(crossover, options))
            self.mutate_(mutate, individuals=children, **own_options(mutate, options))
        self.generation += 1
        return selected


def check_choices(choices: dict[str, Any], others: Iterable[str] = ()) -> list[Callable[..., Any]]:
    """Return the chosen selection, parent selection, crossover and mutation.

    Args:
        choices: for `evolve_`.
        others: further names the caller could have meant.

    Raises:
        ValueError: for an unknown name.
        TypeError: for an option that none of them takes, with near names.
    """
    settings, options = settings_from(GeneticSettings, choices)
    operators = [
        resolve(selections, settings.selection_type),
        resolve(parent_selections, settings.parent_selection_type),
        resolve_each(crossovers, settings.crossover_type),
        resolve_each(mutations, settings.mutation_type),
    ]
    check_options(operators, options, {*others, *vars(settings)})
    return operators


def _any_twice(indices: Tensor) -> bool:
    return len(set(indices.tolist())) < len(indices)


def _without(count: int, indices: Tensor) -> Tensor:
    everyone = torch.arange(count, device="cpu")
    return everyone[~torch.isin(everyone, indices)]


def _counts(pop_size: int, survive_frac: float, elite_frac: float) -> tuple[int, int]:
    """Return how many survive and how many of them are elites."""
    if not 0 < survive_frac <= 1:
        message = f"survive_frac must lie in (0, 1], not {survive_frac}"
        raise ValueError(message)
    if not 0 <= elite_frac <= 1:
        message = f"elite_frac must lie in [0, 1], not {elite_frac}"
        raise ValueError(message)
    survivors = max(1, round(pop_size * survive_frac))
    elites = max(1, round(pop_size * elite_frac)) if elite_frac else 0
    return survivors, min(elites, survivors)
