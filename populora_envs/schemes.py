"""Other ways than `evolve_` from one generation to the next: tiers, broods and clones."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from populora_envs.fitness import best_first, check_fitnesses, nonfinite_last
from populora_envs.genetics import Choice, Selected, check_choices
from populora_envs.islands import Islands
from populora_envs.operators.choose import own_options
from populora_envs.settings import GeneticSettings, at_least, real_number, settings_from

if TYPE_CHECKING:
    from collections.abc import Mapping

    from populora_envs.fitness import FitnessFunction
    from populora_envs.hall_of_fame import HallOfFame

TIERS = ("keep", "mutate", "crossover", "replace", "reinit", "archive")


class Schemes(Islands):
    """What `Population` inherits to make the next generation in other ways than `evolve_`."""

    _generation: int

    def evaluate_distributed(self, fitness: FitnessFunction) -> Tensor:
        """Return the fitness of everyone from a function of the user."""
        raise NotImplementedError

    def evolve_tiers_(
        self,
        fitnesses: Tensor,
        tiers: Mapping[str, float],
        hall: HallOfFame | None = None,
        **choices: Any,
    ) -> dict[str, Tensor]:
        """Treat the best, the middling and the worst each in a way of its own; count `generation`.

        The ranking is cut into tiers, best first, in the order in which they are named:

        - ``"keep"`` stays bit for bit.
        - ``"mutate"`` is varied where it is.
        - ``"crossover"`` makes place for mutated children of those who rank above the tier.
        - ``"replace"`` makes place for mutated copies of single ones of these.
        - ``"reinit"`` makes place for new ones, drawn as the first generation was.
        - ``"archive"`` makes place for members of `hall`, unchanged.

        Args:
            fitnesses: `[P]`, higher is better.
            tiers: the share of each; they sum to 1, and the cuts are rounded.
            hall: for ``"archive"``.
            **choices: of `evolve_`, for parents, crossover and mutation.

        Returns:
            By the name of each tier who was in it, best first, int64.

        Raises:
            ValueError: for an unknown tier, shares that do not sum to 1, children with nobody above
                them, or an archive without a hall.
        """
        operators = check_choices(choices)
        order = best_first(check_fitnesses(fitnesses, self.pop_size))
        cuts = _cuts(tiers, self.pop_size, hall)
        found = {name: order[begin:end] for name, (begin, end) in cuts.items()}
        # The lowest first: parents of a tier rank above it, and are still who they were.
        for name in reversed(found):
            members, above = found[name], order[: cuts[name][0]]
            if name in ("crossover", "replace"):
                num_parents = None if name == "crossover" else 1
                self._bear_(fitnesses, members, above, num_parents, operators, choices)
            if name in ("mutate", "crossover", "replace") and len(members):
                options = own_options(operators[3], settings_from(GeneticSettings, choices)[1])
                self.mutate_(operators[3], individuals=members, **options)
            if name == "reinit":
                self.draw_anew_(members)
        self.generation += 1
        if hall is not None and "archive" in found:
            hall.reseed_(self, found["archive"])  # type: ignore[arg-type]
        return found

    def _bear_(
        self,
        fitnesses: Tensor,
        children: Tensor,
        parents: Tensor,
        num_parents: int | None,
        operators: list[Any],
        choices: dict[str, Any],
    ) -> None:
        """Overwrite children with crossings of parents; with one parent, with copies."""
        settings, options = settings_from(GeneticSettings, choices)
        everyone = torch.arange(self.pop_size, device="cpu")
        rows = self.select_parents(
            operators[1],
            fitnesses,
            len(children),
            everyone[~torch.isin(everyone, parents)],
            num_parents or settings.num_parents_per_child,
            **own_options(operators[1], options),
        )
        if num_parents == 1:
            self.crossover_("clone", rows, children)
        else:
            self.crossover_(operators[2], rows, children, **own_options(operators[2], options))

    def draw_anew_(self, individuals: Tensor) -> None:
        """Overwrite individuals with new ones, drawn as those of the first generation were."""
        rows = self._indices(individuals)
        generator = self._generator("reinit")
        for layer in self.individuals.values():
            before = {part: weights.clone() for part, weights in layer.parts.items()}
            layer.draw_(generator, zero=False)
            for part, weights in layer.parts.items():
                before[part][rows] = weights[rows]
                weights.copy_(before[part])
        self.lineage.birth_(rows, [[]] * len(rows), "reinit", self.generation + 1)

    def evolve_brood_(
        self, fitnesses: Tensor, cull: FitnessFunction, brood_size: int = 4, **choices: Any
    ) -> Selected:
        """Do what `evolve_` does, with several children in each place, of whom the best one stays.

        Soft brood selection (Altenberg 1994; Tackett 1994): a cheap look culls each brood, such as one
        short episode, a surrogate, or a distance to the others. Elites are shown to it too.

        Args:
            fitnesses: `[P]`, higher is better.
            cull: what judges the children, a fitness function as in `evaluate_distributed`. It is
                called once per child of a brood, for the whole population at once.
            brood_size: children in each place, at least 1.
            **choices: of `evolve_`.

        Returns:
            Who survived, of the individuals before.
        """
        before, best = self._copies(), self._copies()
        lineage, generation = self.lineage.state(), self._generation
        record = torch.full((self.pop_size,), -torch.inf, device="cpu")
        for number in range(at_least("brood_size", brood_size, 1)):
            self._write_copies_(before)
            self.lineage.load_state_(lineage)
            self._generation = generation
            selected = self.evolve_(fitnesses, **choices)
            scores = nonfinite_last(self.evaluate_distributed(cull))
            better = (scores > record) | (number == 0)
            record = torch.where(better, scores, record)
            for layer, kept in zip(self.individuals.values(), best, strict=True):
                for part, weights in layer.parts.items():
                    rows = better.nonzero().flatten().to(weights.device)
                    kept[part][rows] = weights[rows]
        self._write_copies_(best)
        return selected

    def _copies(self) -> list[dict[str, Tensor]]:
        """Return the weights of everyone, layer by layer."""
        layers = self.individuals.values()
        return [{part: w.clone() for part, w in layer.parts.items()} for layer in layers]

    def _write_copies_(self, copies: list[dict[str, Tensor]]) -> None:
        for layer, kept in zip(self.individuals.values(), copies, strict=True):
            for part, weights in layer.parts.items():
                weights.copy_(kept[part])

    def evolve_clonal_(
        self,
        fitnesses: Tensor,
        *,
        select_frac: float = 0.25,
        fresh_frac: float = 0.125,
        epsilon: float = 0.7,
        decay: float = 2.0,
        burst: float = 1.0,
        mutation_type: Choice = "full_gaussian",
    ) -> Selected:
        """Clone the best, the better the more often and the more gently; count `generation`.

        Clonal selection (CLONALG, de Castro and Von Zuben 2002): the selected stay as they are. The
        others give way to clones of them, of the i-th best in proportion to 1/i, and the worst to new
        individuals. A clone is mutated with `epsilon` times exp(-decay * affinity), where affinity
        goes from 0 at the lowest fitness of the selected to 1 at the highest.

        Args:
            fitnesses: `[P]`, higher is better; non-finite ones rank last.
            select_frac: share of the population that is cloned, in (0, 1], rounded, at least one.
            fresh_frac: share that is drawn anew, in [0, 1), rounded, at most who is left.
            epsilon: of the mutation, for a clone of affinity 0.
            decay: how fast affinity calms mutation, 0 or more.
            burst: factor on all epsilons, above 0: a burst of mutation where a search is stuck.
            mutation_type: of a mutation that takes `epsilon`.

        Returns:
            The selected, as survivors and as elites.
        """
        values = check_fitnesses(fitnesses, self.pop_size)
        shares = {"select_frac": select_frac, "fresh_frac": fresh_frac}
        count, num_fresh = (_rounded(n, f, self.pop_size) for n, f in shares.items())
        order, count = best_first(values), max(1, count)
        num_fresh = min(num_fresh, self.pop_size - count)
        chosen, places = order[:count], order[count : self.pop_size - num_fresh]
        rates = (
            epsilon * burst * torch.exp(-at_or_above("decay", decay) * _affinity(values[chosen]))
        )
        counts = _clones(len(places), count)
        parents = chosen.repeat_interleave(counts)
        if len(places):
            self.crossover_("clone", parents[:, None], places)
        for rate, own in zip(rates.tolist(), torch.split(places, counts.tolist()), strict=True):
            if len(own):
                self.mutate_(mutation_type, individuals=own, epsilon=rate)
        if num_fresh:
            self.draw_anew_(order[-num_fresh:])
        self.generation += 1
        return Selected(chosen, chosen, torch.sort(order[count:]).values)


def at_or_above(name: str, value: float, least: float = 0.0) -> float:
    """Return a finite number that is not below `least`; ValueError where it is none."""
    number = real_number(name, value)
    if not least <= number < math.inf:
        message = f"{name} must be {least:g} or more and finite, not {value}"
        raise ValueError(message)
    return number


def _rounded(name: str, share: float, pop_size: int) -> int:
    if not 0 <= real_number(name, share) <= 1:
        message = f"{name} must lie in [0, 1], not {share}"
        raise ValueError(message)
    return round(pop_size * share)


def _affinity(fitnesses: Tensor) -> Tensor:
    """Return where each lies between the lowest and the highest finite one, float64 in [0, 1]."""
    values, finite = fitnesses.double(), fitnesses.isfinite()
    if not finite.any():
        return torch.zeros_like(values)
    low, high = values[finite].min(), values[finite].max()
    span = high - low
    affinity = (values - low) / span if span > 0 else torch.ones_like(values)
    return torch.where(finite, affinity, 0.0)


def _clones(places: int, count: int) -> Tensor:
    """Return how many of the places each of `count` gets, best first: in proportion to 1/i, int64."""
    chances = 1 / torch.arange(1, count + 1, dtype=torch.float64, device="cpu")
    exact = places * chances / chances.sum()
    counts = exact.long()
    # The largest remainders get what rounding down has left over, ties the better one.
    left = best_first(exact - counts)[: places - int(counts.sum())]
    counts[left] += 1
    return counts


def _cuts(
    tiers: Mapping[str, float], pop_size: int, hall: HallOfFame | None
) -> dict[str, tuple[int, int]]:
    """Return begin and end of each tier in the ranking."""
    unknown = [name for name in tiers if name not in TIERS]
    total = sum(at_or_above(f"the share of {name!r}", share) for name, share in tiers.items())
    if unknown or not math.isclose(total, 1.0, rel_tol=1e-6):
        message = f"tiers are shares of {', '.join(TIERS)} that sum to 1, not {dict(tiers)}"
        raise ValueError(message)
    cuts: dict[str, tuple[int, int]] = {}
    begin, share = 0, 0.0
    for name, part in tiers.items():
        share += part
        cuts[name] = begin, round(pop_size * share)
        begin = cuts[name][1]
        has_members = cuts[name][1] > cuts[name][0]
        if has_members and name in ("crossover", "replace") and not cuts[name][0]:
            message = f"nobody ranks above the tier {name!r}: name one such as 'keep' before it"
            raise ValueError(message)
        if has_members and name == "archive" and not hall:
            message = "the tier 'archive' wants hall=, a HallOfFame that is not empty"
            raise ValueError(message)
    return {name: (begin, end) for name, (begin, end) in cuts.items() if end > begin}
