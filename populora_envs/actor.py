"""From what a policy gives to what the simulator takes."""

from __future__ import annotations

import inspect
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from populora_envs.action_arrays import all_rows
from populora_envs.action_map import ActionMap
from populora_envs.actions import ActionHead, heads, make_action
from populora_envs.direct_head import DirectHead

if TYPE_CHECKING:
    from collections.abc import Callable

    from populora_envs.rescale import Range

    Acted = tuple[Any, np.ndarray]
    Direct = Callable[[np.ndarray, int], Acted | None]


class Actor:
    """From a policy's output to actions of the simulator.

    Args:
        action: an action head, its name, a function ``output -> action`` of the user (indices for
            Discrete, numbers in `from_range` for Box), or None for the deterministic action of the
            space: argmax for discrete factors, above 0 for MultiBinary, the output itself for Box.
        space: the action space of one slot.
        from_range: of the numbers for a Box; the head's own range wins.
        to_range: of the actions for the simulator; None means the bounds of the space.

    Attributes:
        warned_of_globals: whether the user was told that rollouts draw from global generators.

    Raises:
        ValueError: for an unknown head, one that does not fit the space, or ranges that do not fit.
        TypeError: for an `action` that is none of these.
    """

    def __init__(
        self,
        action: Any,
        space: spaces.Space[Any],
        from_range: Range | None,
        to_range: Range | None,
    ) -> None:
        self._arguments = action, space, from_range, to_range
        self.head = _head(action, space)
        self.space = space
        self.is_ours = isinstance(self.head, (ActionHead, DirectHead))
        # Numbers that the user's model or function gives lie in from_range; only heads know better.
        own_range = self.head.range if isinstance(self.head, ActionHead) else None
        # A head reads a fixed number of numbers; a function of the user reads what it likes.
        self._width = self.output_size() if isinstance(self.head, ActionHead) else None
        self.warned_of_globals = False
        self._map = ActionMap(space, own_range, from_range, to_range)
        self._direct: Direct | None = None
        if isinstance(self.head, DirectHead):
            self._direct = _direct(space, self._map)

    def described(self) -> Any:
        """Return the head as plain values: None, name and settings, or ``"function"``."""
        if isinstance(self.head, DirectHead):
            return None
        kind = type(self.head)
        name = next((n for n in heads if heads.get(n) is kind), None)
        wanted = inspect.signature(kind).parameters if name is not None else {}
        if name is None or not all(hasattr(self.head, option) for option in wanted):
            return "function"
        return [name, {option: getattr(self.head, option) for option in wanted}]

    @property
    def ranges(self) -> tuple[Range | None, Range | None]:
        """The ranges as they were given, of the numbers and of the actions for the simulator."""
        return self._arguments[2:]

    @property
    def source_range(self) -> Range | None:
        """What the numbers for a Box lie in, None where they are in the simulator's units."""
        own = self.head.range if isinstance(self.head, ActionHead) else None
        return self.ranges[0] if own is None else own

    def __reduce__(self) -> tuple[type[Actor], tuple[Any, ...]]:
        """Copies and pickles are made from the same arguments."""
        return Actor, self._arguments

    @property
    def draws(self) -> bool:
        """Whether actions are drawn unless asked otherwise."""
        return isinstance(self.head, ActionHead) and self.head.sample

    def output_size(self) -> int:
        """Return how many numbers per observation the policy must give."""
        head = self.head if self.is_ours else DirectHead(self.space)
        return int(head.output_size(self.space))

    def map(self, actions: Any, count: int) -> tuple[Any, np.ndarray]:
        """Return what a head or function gave for `count` rows as actions of the simulator."""
        return self._map.map(actions, count)

    def act(self, output: Any, keys: Tensor | None, count: int) -> Acted:
        """Return actions nested `[B, *act]` and which rows were finite, `[B]` bool.

        Args:
            output: of the policy, `[B, ...]`; an array stands for a tensor on the CPU.
            keys: int64 `[B, parts]`, what the noise of each row depends on; None gives the
                deterministic action.
            count: B.
        """
        is_array = isinstance(output, np.ndarray)
        numbers = output if is_array else _float_array(output)
        if self._direct is not None and numbers is not None:
            found = self._direct(numbers, count)
            if found is not None:
                return found
        output = torch.from_numpy(output) if is_array else output
        if not self.is_ours:
            decided = self.head(output)
        else:
            self._check_width(output, count)
            decided = self.head.mean(output) if keys is None else self.head(output, keys)
        actions, finite = self.map(decided, count)
        if not _is_finite(output, numbers):
            finite = finite & output.reshape(count, -1).isfinite().all(dim=1).cpu().numpy()
        return actions, finite

    def _check_width(self, output: Any, count: int) -> None:
        if self._width is None or not isinstance(output, Tensor):
            return
        given = output.numel() // count
        if given != self._width:
            message = (
                f"the policy gives {given} numbers per observation, the head "
                f"{type(self.head).__name__} wants {self._width} for {self.space} "
                f"({self.head.reads}): change the width of its last layer"
            )
            raise ValueError(message)


def _direct(space: spaces.Space[Any], action_map: ActionMap) -> Direct | None:
    """Return what does the work of `DirectHead` and map on arrays, in a few calls, for most spaces.

    It takes outputs `[B, size]` and B, and gives None where they are out of the ordinary.
    """
    if isinstance(space, spaces.Discrete):
        return _LargestLogit(space)
    if not isinstance(space, spaces.Box):
        return None
    shape, size = space.shape, math.prod(space.shape)

    def numbers_themselves(numbers: np.ndarray, count: int) -> Acted | None:
        if numbers.shape != (count, size):
            return None
        return action_map.map(numbers.reshape(count, *shape), count)

    return numbers_themselves


class _LargestLogit:
    """For a Discrete space."""

    def __init__(self, space: spaces.Discrete) -> None:
        self.size, self.start = int(space.n), int(space.start)

    def __call__(self, logits: np.ndarray, count: int) -> Acted | None:
        """Return int64 actions `[B]` and which rows are finite; None where one is not."""
        if logits.shape != (count, self.size) or not _has_finite_sum(logits):
            return None
        actions = logits.argmax(1)
        if self.start:
            actions += self.start
        return actions, all_rows(count)


def _float_array(output: Any) -> np.ndarray | None:
    """Return a float32 tensor on the CPU as an array, None for anything else."""
    if not isinstance(output, Tensor) or not output.is_cpu or output.dtype is not torch.float32:
        return None
    array: np.ndarray = (output.detach() if output.requires_grad else output).numpy()
    return array


@np.errstate(over="ignore")
def _has_finite_sum(numbers: np.ndarray) -> bool:
    """Return whether numbers are finite for sure; a sum of squares costs half of isfinite."""
    flat = numbers.ravel()
    return math.isfinite(np.dot(flat, flat))


def _is_finite(output: Any, numbers: np.ndarray | None) -> bool:
    """Return whether an output is finite for sure: an index says nothing of the logits behind it."""
    if numbers is not None:
        return _has_finite_sum(numbers)
    return not isinstance(output, Tensor) or math.isfinite(output.detach().sum())


def _head(action: Any, space: spaces.Space[Any]) -> Any:
    if action is None:
        return DirectHead(space)
    if isinstance(action, str):
        factors = action == "categorical" and isinstance(space, spaces.MultiDiscrete)
        return make_action(space if factors else action)
    if callable(action):
        return action
    message = f"action is a head, its name, a function of the output or None, not {action!r}"
    raise TypeError(message)
