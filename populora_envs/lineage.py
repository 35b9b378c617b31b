"""Lineage: who each individual is, where it comes from, and since when it is there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

Birth = tuple[int, tuple[int, ...], str, int]
"""Id, ids of the parents, operator and first generation of one individual."""

CENTRE = -1
"""The id of the policy that a search stands at, whose samples the individuals are."""


class Row(TypedDict):
    """One individual in the table of a generation."""

    id: int
    fitness: float
    """Of the generation that was told last, nan where it has not played."""
    parents: tuple[int, ...]
    """Ids; `CENTRE` is the policy that the search stands at."""
    operator: str
    """What made it, such as ``"clone+full_gaussian"``, ``"es"`` or ``"init"``."""
    born: int
    """The first generation that it plays in."""


class Lineage:
    """Ids, parents, operators and births of the individuals of one population.

    An individual that lives on keeps its id; one that is made, varied or overwritten gets the next one,
    which no other had before. Ids are counted alike on all ranks and after a resume. Under a search
    with a centre, such as ``"es"``, all individuals of a generation are new, and their one parent is
    `CENTRE`: the mean that they were sampled around, which moves and is no individual itself.

    Args:
        pop_size: number of individuals P, with the ids 0 to P - 1.

    Attributes:
        ids: int64 `[P]`.
        parents: P tuples of ids, empty for one that was made from nothing or read from a file.
        operators: P names; several that made one individual together are joined by "+".
        born: int64 `[P]`, the first generation that each plays in.
        fitnesses: float32 `[P]`, what a search was told last; nan for who has not played since.
    """

    def __init__(self, pop_size: int) -> None:
        self.ids = torch.arange(pop_size, device="cpu")
        self.parents: list[tuple[int, ...]] = [()] * pop_size
        self.operators = ["init"] * pop_size
        self.born = torch.zeros(pop_size, dtype=torch.int64, device="cpu")
        self.fitnesses = torch.full((pop_size,), torch.nan, device="cpu")
        self._next = pop_size

    def __len__(self) -> int:
        return len(self.ids)

    def birth_(
        self,
        children: Sequence[int] | Tensor,
        parents: Sequence[Sequence[int]] | Tensor,
        operator: str,
        generation: int,
    ) -> None:
        """Let new individuals take places; parents are read before anyone is replaced.

        Args:
            children: indices of the places.
            parents: indices of the parents of each child, in the same order; a row may be empty.
            operator: what made them.
            generation: the first one that they play in.
        """
        ids = self.ids.tolist()
        lines = [tuple(dict.fromkeys(ids[p] for p in row)) for row in _plain(parents)]
        self.enter_(children, lines, operator, generation)

    def enter_(
        self,
        children: Sequence[int] | Tensor,
        parent_ids: Sequence[tuple[int, ...]],
        operator: str,
        generation: int,
    ) -> None:
        """Do what `birth_` does for parents that are named by their ids.

        Args:
            children: indices of the places.
            parent_ids: ids of the parents of each child, in the same order; one may have none.
            operator: what made them.
            generation: the first one that they play in.
        """
        places = list(_plain(children))
        for child, parents in zip(places, parent_ids, strict=True):
            self.parents[child], self.operators[child] = parents, operator
        self.ids[places] = torch.arange(self._next, self._next + len(places), device="cpu")
        self.born[places], self.fitnesses[places] = generation, torch.nan
        self._next += len(places)

    def vary_(self, individuals: Sequence[int] | Tensor, operator: str, generation: int) -> None:
        """Note a variation: of who is born in `generation` as part of its birth, else as a new one.

        Args:
            individuals: indices of those that varied.
            operator: what varied them.
            generation: the first one that they play in.
        """
        born, older = self.born.tolist(), []
        for i in _plain(individuals):
            if born[i] == generation and self.operators[i] != "init":
                self.operators[i] += f"+{operator}"
            else:
                older.append(i)
        self.birth_(older, [[i] for i in older], operator, generation)

    def sample_(self, operator: str, generation: int, *, has_centre: bool) -> None:
        """Note that everyone is new: a sample of the centre of a search, or of nothing.

        Args:
            operator: name of the search.
            generation: the first one that they play in.
            has_centre: whether they were sampled around a centre, which is their parent then.
        """
        parents = (CENTRE,) if has_centre else ()
        self.enter_(range(len(self)), [parents] * len(self), operator, generation)

    def birth(self, individual: int) -> Birth:
        """Return who the individual with this index is, to be put elsewhere by `move_`."""
        i = int(individual)
        return int(self.ids[i]), self.parents[i], self.operators[i], int(self.born[i])

    def move_(self, place: int, birth: Birth) -> None:
        """Let somebody who was there before, with that `birth`, stand in a place again."""
        self.ids[place], self.parents[place], self.operators[place], self.born[place] = birth
        self.fitnesses[place] = torch.nan

    @property
    def count(self) -> int:
        """How many individuals there have been."""
        return self._next

    def rows(self, fitnesses: Sequence[float] | Tensor | None = None) -> list[Row]:
        """Return the table of the present generation, one row per individual.

        Args:
            fitnesses: `[P]`; None takes what the search was told.
        """
        scores = self.fitnesses if fitnesses is None else torch.as_tensor(fitnesses)
        columns = zip(
            self.ids.tolist(),
            scores.tolist(),
            self.parents,
            self.operators,
            self.born.tolist(),
            strict=True,
        )
        return [
            Row(id=i, fitness=fitness, parents=parents, operator=operator, born=born)
            for i, fitness, parents, operator, born in columns
        ]

    def state(self) -> dict[str, Any]:
        """Return everything as tensors and plain values."""
        return {
            "ids": self.ids.clone(),
            "parents": [list(parents) for parents in self.parents],
            "operators": list(self.operators),
            "born": self.born.clone(),
            "fitnesses": self.fitnesses.clone(),
            "next": self._next,
        }

    def load_state_(self, state: dict[str, Any] | None) -> None:
        """Go on from what `state` returned; None, of a file without it, begins anew."""
        if state is None:
            self.__init__(len(self))  # type: ignore[misc]
            return
        self.ids, self.born = state["ids"].clone(), state["born"].clone()
        self.parents = [tuple(parents) for parents in state["parents"]]
        self.operators = list(state["operators"])
        self.fitnesses, self._next = state["fitnesses"].clone(), state["next"]


def _plain(indices: Any) -> Any:
    return indices.tolist() if isinstance(indices, Tensor) else indices
