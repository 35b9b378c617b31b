"""Callbacks of a run, and what calls them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from populora_envs.history import History
    from populora_envs.population import Population

    OnGeneration = Callable[[Population, dict[str, Any]], None]


class Callback:
    """What a run calls; override what you need. Any object with some of these methods will do.

    Of several ranks each calls its own, so all must do the same to the population.
    """

    def before_evaluation(self, population: Population) -> None:
        """Be told of a generation, the `population`, before it is scored."""

    def after_evaluation(self, population: Population, fitnesses: Tensor) -> None:
        """Be told of the `population` and its fitnesses, float32 `[P]`, before the search learns from them."""

    def on_generation(self, population: Population, entry: dict[str, Any]) -> None:
        """Be told at the end of a generation, when its checkpoint is written.

        Args:
            population: the next generation, where the search has made it already.
            entry: of the history.
        """

    def on_end(self, policy: Any, history: History) -> None:
        """Be told of what the run returns, `policy` and `history`."""


MOMENTS = ("before_evaluation", "after_evaluation", "on_generation", "on_end")
"""The methods of a callback."""


def check_callbacks(callbacks: Any, on_generation: OnGeneration | None) -> tuple[Any, ...]:
    """Return callbacks as a tuple, a function for the end of each generation among them.

    Raises:
        TypeError: for what has none of the methods of `Callback`.
    """
    several = tuple(callbacks) if isinstance(callbacks, (list, tuple)) else (callbacks,)
    for callback in several:
        if not any(callable(getattr(callback, moment, None)) for moment in MOMENTS):
            message = (
                f"a callback has some of the methods {', '.join(MOMENTS)}, and {callback!r} has none: "
                "pass a function as on_generation="
            )
            raise TypeError(message)
    own = () if on_generation is None else (SimpleNamespace(on_generation=on_generation),)
    return (*several, *own)


def tell(callbacks: Sequence[Any], moment: str, *told: Any) -> None:
    """Call a method of all callbacks that have it, in their order."""
    for callback in callbacks:
        method = getattr(callback, moment, None)
        if method is not None:
            method(*told)
