"""Named things: operators, action heads, simulators. Unknown names list near ones."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

T = TypeVar("T")


def near_names(name: str, known: Iterable[str], count: int = 5) -> str:
    """Say which known names look like `name`, or list them all where none does."""
    known = sorted(known)
    near = difflib.get_close_matches(name, known, n=count, cutoff=0.5)
    if near:
        return f"near names: {', '.join(near)}"
    return (
        f"known names: {', '.join(known) if len(known) <= 30 else ', '.join(known[:30]) + ', ...'}"
    )


class Registry(Generic[T]):
    """A table of named entries of one kind.

    Args:
        kind: what an entry is called in messages, such as ``"mutation"``.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._entries: dict[str, T] = {}

    def register(self, name: str) -> Callable[[T], T]:
        """Return a decorator that enters a function or class under `name`.

        What operators take and give stands at the head of the modules of `populora_envs.operators`;
        a search is a subclass of `Search`.

        Args:
            name: by which it is chosen from now on, in Python and on the command line.

        Raises:
            ValueError: at the decorated thing, where the name is taken.
        """

        def enter(entry: T) -> T:
            if name in self._entries:
                message = f"the {self.kind} {name!r} is registered already: choose another name"
                raise ValueError(message)
            self._entries[name] = entry
            return entry

        return enter

    def get(self, name: str) -> T:
        """Return the entry called `name`; ValueError with near names where there is none."""
        if name not in self._entries:
            message = f"unknown {self.kind} {name!r}; {near_names(name, self._entries)}"
            raise ValueError(message)
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries
