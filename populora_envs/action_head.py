"""What an action head is, and the table of heads by name."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from populora_envs.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Callable

    from gymnasium.spaces import Space
    from torch import Tensor


class ActionHead(ABC):
    """Reads a policy's output as a distribution over actions.

    The output is never changed in place. Numbers are computed in float64 by operations whose
    result for a row does not depend on the rest of the batch.

    Args:
        sample: whether calling the head draws; false means the deterministic action.
        temperature: above 0, more is more random; `log_prob` is of what is drawn.

    Attributes:
        range: the ends of what a head for a Box emits, None where the action is not a Box's.
        reads: what it reads, in one phrase for messages.
    """

    range: tuple[float, float] | None = None
    reads: ClassVar[str] = "its own layout"

    def __init__(self, *, sample: bool = True, temperature: float = 1.0) -> None:
        if not 0 < temperature < math.inf:
            message = (
                f"temperature must be a positive number, not {temperature!r}: "
                "pass sample=False for the deterministic action"
            )
            raise ValueError(message)
        self.sample = sample
        self.temperature = temperature

    def __call__(self, output: Tensor, keys: Tensor | None = None) -> Tensor:
        """Return an action: drawn, or the deterministic one where `sample` is false.

        Args:
            output: `[..., size]`, with keys `[B, size]`.
            keys: int64 `[B, parts]`; the noise of a row depends on its key and the dimension
                alone. None draws from torch's global generator.
        """
        return self._draw(output, keys) if self.sample else self.mean(output)

    @abstractmethod
    def mean(self, output: Tensor) -> Tensor:
        """Return the deterministic action, `[..., *act]`, of an output `[..., size]`."""

    @abstractmethod
    def log_prob(self, output: Tensor, action: Tensor) -> Tensor:
        """Return the log-probability `[...]` of `action` given `output`, summed over its dimensions."""

    @abstractmethod
    def output_size(self, space: Space[Any]) -> int:
        """Say how many numbers per observation the policy must give for `space`."""

    @abstractmethod
    def _draw(self, output: Tensor, keys: Tensor | None) -> Tensor:
        """Return a drawn action, `[..., *act]`."""

    def refuse(self, space: Space[Any]) -> ValueError:
        """Return the error that says the head is not for `space`."""
        name = type(self).__name__
        return ValueError(f"the head {name} reads {self.reads}, which does not fit {space}")


heads: Registry[Callable[..., ActionHead]] = Registry("action head")


def register_head(
    name: str,
) -> Callable[[Callable[..., ActionHead]], Callable[..., ActionHead]]:
    """Return a decorator that enters a head's class under `name`.

    Args:
        name: for ``action=`` and `make_action`. The class, a subclass of `ActionHead`, is called with
            `sample`, `temperature` and its own keyword options.

    Raises:
        ValueError: at the decorated class, where the name is taken.
    """
    return heads.register(name)
