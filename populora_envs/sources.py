"""From what the user passes as environments to adapters: opened once, closed where we opened it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from populora_envs import simulators
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
        for source in opened.values():
            source.close()
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
            self.adapter: Adapter = simulators.find_adapter(self._members[0])(self._members)
        except BaseException:
            self.close()
            raise

    def _open(self, envs: Any, num_envs: int | None) -> None:
        if envs is None:
            message = "there is no environment: pass one, an id, a list, a class or a factory"
            raise ValueError(message)
        factory = as_factory(envs)
        if factory is None:
            if num_envs is not None:
                message = (
                    "num_envs makes copies of an id, a class or a factory; these environments exist "
                    "already: leave num_envs out"
                )
                raise ValueError(message)
            self._members = self._listed(envs)
            return
        first = self._make(factory)
        if isinstance(first, (list, tuple)) or not is_single(first):
            self._members = self._listed(first)
            self._owned.extend(m for m in self._members if not _among(m, self._owned))
            return
        self._members, self._factory = [first], factory
        self._copy(num_envs or 1)

    def _listed(self, envs: Any) -> list[Any]:
        """Return a list of environments, making those that are ids, classes or factories."""
        if isinstance(envs, Mapping):
            message = "a factory or list gave a dict of environments: pass the dict itself"
            raise TypeError(message)
        members = list(envs) if isinstance(envs, (list, tuple)) else [envs]
        if not members:
            message = "the list of environments is empty: pass at least one environment"
            raise ValueError(message)
        made: list[Any] = []
        for member in members:
            factory = as_factory(member)
            made.append(member if factory is None else self._make(factory))
            if any(made[-1] is other for other in made[:-1]):
                message = (
                    f"members {_index(made, made[-1])} and {len(made) - 1} are the same environment: "
                    "pass different ones, and bind the loop variable of a lambda (lambda e=e: e)"
                )
                raise ValueError(message)
        return made

    def _make(self, factory: Factory) -> Any:
        made = factory()
        if made is None:
            message = "the environment factory returned None: return an environment"
            raise ValueError(message)
        if not isinstance(made, (list, tuple)) and not _among(made, self._owned):
            self._owned.append(made)
        return made

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
        self.adapter = simulators.find_adapter(self._members[0])(self._members)
        return True

    def close(self) -> None:
        """Close the environments that were made here; what the user opened stays open."""
        while self._owned:
            close = getattr(self._owned.pop(), "close", None)
            if callable(close):
                close()


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


def _index(things: list[Any], thing: Any) -> int:
    return next(i for i, other in enumerate(things) if other is thing)
