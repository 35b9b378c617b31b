"""A hall of fame: individuals of past generations, kept to come back or to be played against."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from populora_envs import seeds
from populora_envs.settings import at_least, real_number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from populora_envs.individuals import State
    from populora_envs.lineage import Birth
    from populora_envs.moved import Change
    from populora_envs.population import Population

KINDS = ("uniform", "recent", "best")


class Member(NamedTuple):
    """One individual in the hall."""

    state: State
    """Its weights, relative to the base as it stood."""
    base_change: Change | None
    """How far a search had moved the base."""
    birth: Birth
    """Who it was: id, ids of the parents, operator and first generation."""
    generation: int
    """In which it was added."""
    fitness: float


class HallOfFame:
    """Individuals of past generations, of all of which the best never leaves.

    Rosin and Belew (1997), who let the present generation play against past champions. Members are kept
    bit for bit. They act under the observation statistics of the population that they are put into.

    Args:
        capacity: most members; when it is exceeded, the one of lowest fitness leaves, of equal ones
            the oldest, but never the one just added.

    Attributes:
        members: oldest first.
    """

    def __init__(self, capacity: int = 64) -> None:
        self.capacity = at_least("capacity", capacity, 2)
        self.members: list[Member] = []

    def __len__(self) -> int:
        return len(self.members)

    @property
    def best(self) -> Member | None:
        """The member of highest fitness, ties to the oldest; None in an empty hall."""
        return max(self.members, key=lambda member: member.fitness, default=None)

    def add(self, population: Population, individual: int | Tensor, fitness: float) -> None:
        """Copy one individual into the hall.

        Args:
            population: that it lives in.
            individual: its index.
            fitness: what it scored, finite.
        """
        score = real_number("fitness", fitness)
        if not -torch.inf < score < torch.inf:
            message = f"a member of the hall of fame has a finite fitness, not {fitness}"
            raise ValueError(message)
        member = Member(
            population.individual_state(individual),
            population.base_change(),
            population.lineage.birth(int(individual)),
            population.generation,
            score,
        )
        if len(self) == self.capacity:
            worst = min(range(len(self)), key=lambda i: self.members[i].fitness)
            del self.members[worst]
        self.members.append(member)

    def sample(self, population: Population, count: int, kind: str = "uniform") -> list[Member]:
        """Return members, `count` of them.

        Args:
            population: whose seed and generation decide a draw: the same twice in one generation.
            count: how many; may exceed the number of members.
            kind: ``"uniform"`` draws with equal chances, without repeats until everyone was drawn;
                ``"recent"`` takes the newest, newest first; ``"best"`` the best, best first. These two
                begin again where `count` exceeds the members.

        Raises:
            ValueError: for another kind, or an empty hall.
        """
        if kind not in KINDS:
            message = f"kind must be one of {', '.join(map(repr, KINDS))}, not {kind!r}"
            raise ValueError(message)
        if not self.members:
            message = "the hall of fame is empty: add individuals first"
            raise ValueError(message)
        count, size = at_least("count", count, 0), len(self)
        rounds = -(-count // size)
        if kind == "uniform":
            generator = seeds.make_generator(population.seed, population.generation, "hall of fame")
            drawn = [torch.randperm(size, generator=generator, device="cpu") for _ in range(rounds)]
            order = [i for row in drawn for i in row.tolist()]
        elif kind == "recent":
            order = list(range(size))[::-1] * rounds
        else:
            order = sorted(range(size), key=lambda i: -self.members[i].fitness) * rounds
        return [self.members[i] for i in order[:count]]

    def reseed_(
        self,
        population: Population,
        individuals: Sequence[int] | Tensor,
        kind: str = "uniform",
    ) -> list[Member]:
        """Overwrite individuals with members, and return these.

        In the lineage each is new: its parent is the member, its operator ``"hall_of_fame"``.

        Args:
            population: of the same targets and rank. Where a search has moved its base elsewhere, a
                member's change is counted anew, and truncated to the rank with a warning.
            individuals: indices, each once.
            kind: as in `sample`.
        """
        places = [int(i) for i in individuals]
        members = self.sample(population, len(places), kind)
        for place, member in zip(places, members, strict=True):
            _write(population, place, member)
            ids = [(member.birth[0],)]
            population.lineage.enter_([place], ids, "hall_of_fame", population.generation)
        return members

    def opponents(self, population: Population, count: int, kind: str = "uniform") -> Population:
        """Return a population of `count` members on the base of `population`, to play against.

        Args:
            population: of the same targets and rank; it stays as it is.
            count: at least 1.
            kind: as in `sample`.
        """
        members = self.sample(population, at_least("count", count, 1), kind)
        team = population.with_individuals([population.base_state()] * count)
        for place, member in enumerate(members):
            _write(team, place, member)
            team.lineage.move_(place, member.birth)
        return team

    def state(self) -> dict[str, Any]:
        """Return everything as tensors and plain values."""
        return {"members": [member._asdict() for member in self.members]}

    def load_state_(self, state: dict[str, Any]) -> None:
        """Go on from what `state` returned."""
        members = [Member(**saved) for saved in state["members"]]
        self.members = [m._replace(birth=_birth(*m.birth)) for m in members]


def _birth(number: int, parents: Sequence[int], operator: str, born: int) -> Birth:
    return number, tuple(parents), operator, born


def _write(population: Population, place: int, member: Member) -> None:
    """Write a member into a population, whose base may have moved since."""
    if population.base_change() is None and member.base_change is None:
        population.write_individual_(place, member.state)
        return
    then = population.with_individuals([member.state], member.base_change)
    population.write_change_(place, then.individual_change(0))
