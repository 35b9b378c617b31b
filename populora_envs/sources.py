"""From what the user passes as environments to adapters: opened once, closed where we opened it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from populora_envs import simulators
from populora_envs.adapter import close_all, inside_of, team_of
from populora_envs.settings import at_least

if TYPE_CHECKING:
    from populora_envs.adapter import Adapter

Factory = Callable[[], Any]


def open_sources(
    envs: Any, num_envs: int | None = None, *, one_each: bool = False
) -> dict[str, Source]:
    """Return the sources behind `envs`, by the keys of a dict, else under ``""``.

    Args:
        envs: an environment, a list or dict of them, a vector environment, an id, a class or a
            factory of any of these; members of a list may be ids, classes and factories too.
        num_envs: copies of an id, class or factory, or of one environment that its simulator can
            copy exactly; None makes one now of an id, class or factory, and more when they pay.
        one_each: make one now whatever `num_envs` says.

    Raises:
        ValueError: where there is no environment, or an id or factory is of no use.
        TypeError: for what is no environment.
    """
    if num_envs is not None:
        num_envs = at_least("num_envs", num_envs, 1)
    if not isinstance(envs, Mapping):
        return {"": Source(envs, num_envs, one_each=one_each)}
    if not envs:
        message = "the dict of environments is empty: pass at least one environment"
        raise ValueError(message)
    opened: dict[str, Source] = {}
    try:
        for name, member in envs.items():
            opened[str(name)] = Source(member, num_envs, one_each=one_each)
    except BaseException:
        close_all(opened.values())
        raise
    return opened


class Source:
    """Environments of one kind behind one adapter.

    Args:
        envs: as in `open_sources`, but no dict.
        num_envs: copies of an id, class or factory; None lets `grow` make as many as are of use.
        one_each: make one copy now, and those of `num_envs` when `grow` is called.

    Attributes:
        adapter: over all of them.
    """

    def __init__(self, envs: Any, num_envs: int | None, *, one_each: bool = False) -> None:
        self._owned: list[Any] = []
        self._members: list[Any] = []
        self._factory: Factory | None = None
        self._makers: list[Factory] | None = None
        self._given, self._make_batch = envs, _batch_maker(envs)
        self._num_envs, self._one_each = num_envs, one_each
        try:
            self._open(envs, num_envs)
            self.adapter: Adapter = simulators.adapt(self._members)
        except BaseException:
            self.close()
            raise

    def _open(self, envs: Any, num_envs: int | None) -> None:
        if envs is None:
            message = "there is no environment: pass one, an id, a list, a class or a factory"
            raise ValueError(message)
        if self._make_batch is not None:
            self._batch(1 if self._one_each else num_envs or 1)
            return
        factory = as_factory(envs)
        if factory is not None:
            envs = self._make(factory)
            if not isinstance(envs, (list, tuple, Mapping)):
                self._makers = [factory]
                if is_single(envs):
                    self._members, self._factory = [envs], factory
                    self._copy(1 if self._one_each else num_envs or 1)
                    return
        elif isinstance(envs, (list, tuple)):
            makers = [as_factory(member) for member in envs]
            self._makers = None if None in makers else makers  # type: ignore[assignment]
        if num_envs is not None:
            envs = self._multiplied(envs, num_envs)
        self._members = list(self._flat(envs))
        self._check_members()

    def _multiplied(self, env: Any, num_envs: int) -> list[Any]:
        """Return copies of an environment that exists, itself the first where it is one of them."""
        if isinstance(env, (list, tuple, Mapping)) or not is_single(env):
            message = (
                "num_envs makes copies of an id, of a class, of a factory or of one single "
                "environment; these environments exist already: leave num_envs out"
            )
            raise ValueError(message)
        copies = simulators.multiply(env, num_envs)
        for copy in copies:
            if copy is not env:
                self._own(copy)
        return copies

    def _batch(self, count: int) -> None:
        """Make a batch of `count` in place of the one there is."""
        assert self._make_batch is not None
        self.close()
        made = self._make_batch(count)
        self._own(made)
        self._members = [made]

    def _flat(self, envs: Any) -> Iterator[Any]:
        """Yield the environments of nested lists, making those that are ids, classes or factories."""
        if isinstance(envs, Mapping):
            message = "a factory or list gave a dict of environments: pass the dict itself"
            raise TypeError(message)
        if not isinstance(envs, (list, tuple)):
            yield envs
            return
        for member in envs:
            factory = as_factory(member)
            yield from self._flat(member if factory is None else self._make(factory))

    def _check_members(self) -> None:
        if not self._members:
            message = "the list of environments is empty: pass at least one environment"
            raise ValueError(message)
        first_place: dict[int, int] = {}
        for place, member in enumerate(self._members):
            first = first_place.setdefault(id(member), place)
            if first != place:
                message = (
                    f"members {first} and {place} are the same instance: pass different "
                    "environments, and bind the loop variable of a lambda (lambda e=e: e)"
                )
                raise ValueError(message)

    def _make(self, factory: Factory) -> Any:
        made = factory()
        if made is None:
            message = "the environment factory returned None: return an environment"
            raise ValueError(message)
        self._own(made)
        return made

    def _own(self, made: Any) -> None:
        if isinstance(made, (list, tuple, Mapping)):
            for member in made.values() if isinstance(made, Mapping) else made:
                self._own(member)
        elif as_factory(made) is None and not _among(made, self._owned):
            self._owned.append(made)

    def _copy(self, count: int) -> None:
        assert self._factory is not None
        while len(self._members) < count:
            made = self._make(self._factory)
            if _among(made, self._members):
                message = (
                    "the factory returned the same instance twice: return a new environment each "
                    "time, or pass the environment itself"
                )
                raise ValueError(message)
            self._members.append(made)

    def grow(self, count: int) -> bool:
        """Make copies until there are `count`, where we may; return whether there are new ones."""
        count = count if self._num_envs is None else self._num_envs
        can_grow = self._factory is not None or self._make_batch is not None
        there = self.adapter.num_slots // self.team
        if not can_grow or there >= count:
            return False
        if self._make_batch is None:
            self._copy(count)
        else:
            self._batch(count)
        self.adapter = simulators.adapt(self._members)
        return True

    @property
    def num_slots(self) -> int:
        """How many slots there are, or will be by the first use."""
        return max(self.adapter.num_slots, (self._num_envs or 0) * self.team)

    @property
    def team(self) -> int:
        """How many slots each environment has: one, or one per agent."""
        return len(team_of(self.adapter))

    @property
    def is_made(self) -> bool:
        """Whether other processes can make these environments themselves."""
        return self._makers is not None or self._make_batch is not None

    @property
    def most_slots(self) -> int | None:
        """How many slots there will be at most; None where that is open, or each process has its own."""
        if self._factory is not None or self._make_batch is not None:
            return None if self._num_envs is None else self._num_envs * self.team
        if self._makers is None:
            return self.adapter.num_slots
        return None if self._is_vector_maker else len(self._makers) * self.team

    @property
    def _is_vector_maker(self) -> bool:
        return (
            self._makers is not None and len(self._makers) == 1 and not is_single(self._members[0])
        )

    def why_not_shared(self) -> str | None:
        """Return why several processes cannot each take some of the slots, None where they can."""
        if not self.is_made and not all(is_single(member) for member in self._members):
            return (
                "a vector environment is one simulator: pass what makes it, for each worker its own"
            )
        return None

    def share(self, number: int, count: int) -> tuple[Any, int | None]:
        """Return the arguments of the source that has every count-th slot, from `number` on."""
        if self._factory is not None or self._make_batch is not None:
            copies = None if self._num_envs is None else len(range(number, self._num_envs, count))
            return self._factory or self._given, copies
        if self._makers is None:
            return self._members[number::count], None
        return (self._makers[0] if self._is_vector_maker else self._makers[number::count]), None

    def close(self) -> None:
        """Close the environments that were made here; what the user opened stays open."""
        owned, self._owned = self._owned, []
        close_all(owned)


def must_fork(sources: Iterable[Source]) -> bool:
    """Return whether other processes can have some of these environments by inheritance alone."""
    return not all(source.is_made for source in sources)


def as_factory(thing: Any) -> Factory | None:
    """Return what makes an environment from an id, class or factory; None for anything else."""
    if isinstance(thing, str):
        return lambda: simulators.make(thing)
    if isinstance(thing, type):
        return thing
    if callable(thing) and not simulators.looks_like_environment(thing):
        return thing  # type: ignore[no-any-return]
    return None


def _batch_maker(envs: Any) -> Callable[[int], Any] | None:
    return simulators.batch_maker(envs) if isinstance(envs, str) else None


def is_single(env: Any) -> bool:
    """Return whether an environment has one slot; a batch has `num_envs`, itself or below its wrappers.

    Isaac Lab's say that they are batches also where they have one, PufferLib's name a `driver_env`.
    """
    if isinstance(getattr(env, "num_envs", None), int):
        return False
    inner = inside_of(env)
    count = getattr(inner, "num_envs", None)
    drives = simulators.looks_like_environment(getattr(env, "driver_env", None))
    is_batch = getattr(inner, "is_vector_env", False) is True or drives
    return not is_batch and not (isinstance(count, int) and count > 1)


def _among(thing: Any, others: list[Any]) -> bool:
    return any(thing is other for other in others)
