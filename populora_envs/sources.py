"""From what the user passes as environments to adapters: opened once, closed where we opened it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from populora_envs import simulators
from populora_envs.adapter import close_all
from populora_envs.settings import at_least

if TYPE_CHECKING:
    from populora_envs.adapter import Adapter

Factory = Callable[[], Any]


def open_sources(envs: Any, num_envs: int | None = None) -> dict[str, Source]:
    """Return the sources behind `envs`, by the keys of a dict, else under ``""``.

    Args:
        envs: an environment, a list or dict of them, a vector environment, an id, a class or a
            factory of any of these; members of a list may be ids, classes and factories too.
        num_envs: copies of an id, class or factory; None makes one now, and more when they pay.

    Raises:
        ValueError: where there is no environment, or an id or factory is of no use.
        TypeError: for what is no environment.
    """
    if num_envs is not None:
        num_envs = at_least("num_envs", num_envs, 1)
    if not isinstance(envs, Mapping):
        return {"": Source(envs, num_envs)}
    if not envs:
        message = "the dict of environments is empty: pass at least one environment"
        raise ValueError(message)
    opened: dict[str, Source] = {}
    try:
        for name, member in envs.items():
            opened[str(name)] = Source(member, num_envs)
    except BaseException:
        close_all(opened.values())
        raise
    return opened


class Source:
    """Environments of one kind behind one adapter.

    Args:
        envs: as in `open_sources`, but no dict.
        num_envs: copies of an id, class or factory; None lets `grow` add some.

    Attributes:
        adapter: over all of them.
    """

    def __init__(self, envs: Any, num_envs: int | None) -> None:
        self._owned: list[Any] = []
        self._members: list[Any] = []
        self._factory: Factory | None = None
        self._may_grow = num_envs is None
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
        factory = as_factory(envs)
        if factory is not None:
            envs = self._make(factory)
            if not isinstance(envs, (list, tuple, Mapping)) and is_single(envs):
                self._members, self._factory = [envs], factory
                self._copy(num_envs or 1)
                return
        if num_envs is not None:
            message = (
                "num_envs makes copies of an id, of a class, or of a factory of single environments; "
                "these environments exist already: leave num_envs out"
            )
            raise ValueError(message)
        self._members = list(self._flat(envs))
        self._check_members()

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
        if not self._may_grow or self._factory is None or len(self._members) >= count:
            return False
        self._copy(count)
        self.adapter = simulators.adapt(self._members)
        return True

    def close(self) -> None:
        """Close the environments that were made here; what the user opened stays open."""
        owned, self._owned = self._owned, []
        close_all(owned)


def as_factory(thing: Any) -> Factory | None:
    """Return what makes an environment from an id, class or factory; None for anything else."""
    if isinstance(thing, str):
        return lambda: simulators.make(thing)
    if isinstance(thing, type):
        return thing
    if callable(thing) and not simulators.looks_like_environment(thing):
        return thing  # type: ignore[no-any-return]
    return None


def is_single(env: Any) -> bool:
    """Return whether an environment has one slot (a vector environment has `num_envs`)."""
    return not isinstance(getattr(env, "num_envs", None), int)


def _among(thing: Any, others: list[Any]) -> bool:
    return any(thing is other for other in others)
