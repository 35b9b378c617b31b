"""``map_elites``: an archive of the best individual of every kind of behaviour."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from populora_envs.archive import Archive, GridArchive
from populora_envs.behaviour import describe, describes_population
from populora_envs.elite import Elite, elite_from, elite_state
from populora_envs.search.base import Search, register_search
from populora_envs.search.genome import Genome
from populora_envs.search.settings import positive
from populora_envs.seeds import make_generator, normal
from populora_envs.settings import at_least

if TYPE_CHECKING:
    from populora_envs.behaviour import Descriptor
    from populora_envs.population import Population


@register_search("map_elites")
class MapElites(Search):
    """Fills an archive with individuals that differ in behaviour and are each the best of their kind.

    MAP-Elites (Mouret and Clune 2015, arXiv 1504.04909) with iso+line variation (Vassiliades and Mouret
    2018, arXiv 1804.03906): a child is a parent, plus isotropic noise, plus a step along the line to
    another elite. Every generation plays other start states, so one good episode may be luck: who would
    enter the archive waits until `evaluations` generations have judged it, and whom it would replace
    plays along. Means over all evaluations decide (re-sampling, as compared by Flageat and Cully 2020,
    arXiv 2006.14253). Running observation statistics would go on learning under elites that do not
    play: pass ``standardize=False``.

    Args:
        population: that it writes into; its base stays as it is, and elites are individuals on it.
        descriptor: ``(episode) -> [dimensions]``, see `Episode`, or ``(population) -> [P, dimensions]``.
        archive: a `GridArchive`, a `CVTArchive` or one of your own, which is filled; None means a grid
            of 16 by 16 cells over [0, 1] x [0, 1].
        iso: standard deviation of the isotropic noise, in units of `Genome.scale`.
        line: standard deviation of the step along the line, 1 reaches the other elite.
        scale: standard deviation of individuals from nothing, while the archive is empty.
        evaluations: generations that judge an individual before it enters; 1 takes the first word.

    Raises:
        ValueError: for numbers out of range.
        TypeError: without a descriptor function.
    """

    def __init__(
        self,
        population: Population,
        *,
        descriptor: Descriptor | None = None,
        archive: Archive | None = None,
        iso: float = 0.2,
        line: float = 0.2,
        scale: float = 1.0,
        evaluations: int = 2,
    ) -> None:
        super().__init__(population)
        if not callable(descriptor):
            message = (
                "map_elites wants descriptor=, a function of an episode that returns the numbers "
                f"that place its behaviour in the archive, not {descriptor!r}"
            )
            raise TypeError(message)
        self.descriptor = descriptor
        self.archive = GridArchive([0.0, 0.0], [1.0, 1.0]) if archive is None else archive
        self.iso, self.line = positive("iso", iso), positive("line", line)
        self.scale = positive("scale", scale)
        self.evaluations = at_least("evaluations", evaluations, 1)
        self.genome = Genome(population)
        population.watched = not describes_population(descriptor)
        self.waiting: list[Elite] = []
        """Who has to be judged again before it may enter, oldest first."""

    def _seated(self) -> list[Elite]:
        """Return who plays again in this generation: those who wait, then whom they would replace."""
        waiting = self.waiting[: self.population.pop_size]
        rivals = (self.archive.rival_of(elite) for elite in waiting)
        elites = {id(rival): rival for rival in rivals if rival is not None}
        return [*waiting, *elites.values()][: self.population.pop_size]

    def _ask(self) -> None:
        seated = self._seated()
        rows = [self.genome.row_of(elite.state) for elite in seated]
        parents, children = self._children(self.population.pop_size - len(seated))
        self.genome.write_(torch.cat([*(row[None] for row in rows), children]))
        self._parents = parents

    def _children(self, count: int) -> tuple[list[tuple[Elite, ...]], Tensor]:
        """Return the parents of new individuals, and their genes, float64 `[count, D]`."""
        population, size = self.population, self.genome.size
        generator = make_generator(population.seed, population.generation, "map_elites")
        noise = normal((count, size), generator).double() * self.genome.scale
        elites = list(self.archive)
        if not elites:
            return [()] * count, self.genome.start + self.scale * noise
        drawn = torch.randint(len(elites), (count, 2), generator=generator, device="cpu").tolist()
        steps = normal((count, 1), generator).double()
        parents: list[tuple[Elite, ...]] = [(elites[i], elites[j]) for i, j in drawn]
        rows = {id(e): self.genome.row_of(e.state) for pair in parents for e in pair}
        pairs = [torch.stack([rows[id(e)] for e in pair]) for pair in parents]
        lines = torch.stack(pairs) if pairs else torch.zeros(0, 2, size, dtype=torch.float64)
        away = lines[:, 1] - lines[:, 0]
        return parents, lines[:, 0] + self.iso * noise + self.line * steps * away

    def _note_births(self) -> None:
        lineage, seated = self.population.lineage, self._seated()
        for place, elite in enumerate(seated):
            if elite.birth is not None:
                lineage.move_(place, elite.birth)
        ids = [
            tuple(dict.fromkeys(e.birth[0] for e in pair if e.birth is not None))
            for pair in self._parents
        ]
        places = range(len(seated), self.population.pop_size)
        operator = "iso_line" if len(self.archive) else "random"
        lineage.enter_(places, ids, operator, self.population.generation)

    def _tell(self, fitnesses: Tensor) -> None:
        archive, population = self.archive, self.population
        found = describe(self.descriptor, self._evaluated, population, archive.num_dimensions)
        scores, places = fitnesses.tolist(), found.tolist()
        seated = self._seated()
        for elite, score, place in zip(seated, scores, places, strict=False):
            elite.note_(score, place)
        for elite in seated:
            archive.place_again_(elite)
        for i in range(len(seated), population.pop_size):
            child = Elite({}, population.lineage.birth(i))
            child.note_(scores[i], places[i])
            if archive.would_take(child):
                child.state = population.individual_state(i)
                self.waiting.append(child)
        self._let_in()

    def _let_in(self) -> None:
        """Let those enter who were judged often enough, and forget whom the archive would not take."""
        still = []
        for elite in self.waiting:
            if len(elite.fitnesses) >= self.evaluations:
                self.archive.insert_(elite)
            elif self.archive.would_take(elite):
                still.append(elite)
        self.waiting = still

    def state(self) -> dict[str, Any]:
        """Return what it has learned: the archive, and who waits."""
        waiting = [elite_state(elite) for elite in self.waiting]
        return {**super().state(), "archive": self.archive.state(), "waiting": waiting}

    def load_state_(self, state: dict[str, Any]) -> None:
        """Go on from what `state` returned."""
        super().load_state_(state)
        self.archive.load_state_(state["archive"])
        self.waiting = [elite_from(saved) for saved in state["waiting"]]
