"""Recurrent layers and their cells, one product per gate and step for every row's own individual."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from populora_envs.invariance import padded
from populora_envs.layers.composite import Composite

if TYPE_CHECKING:
    State = tuple[Tensor, ...]


class RoutedCell(Composite):
    """The forward of `LSTMCell`, `GRUCell` and `RNNCell`."""

    def __call__(self, input: Tensor, hx: Any = None) -> Any:
        """Return the next state `[rows, H]`, of an LSTM `(h, c)`, for `[rows, in]` and the last one."""
        if input.dim() == 1:
            one = None if hx is None else _map(lambda part: part[None], hx)
            return _map(lambda part: part[0], self(input[None], one))
        layer: Any = self.layer
        state = _as_tuple(hx) if hx is not None else _zeros(layer, input, layer.hidden_size)
        inward = self.products["weight_ih"](input)
        state = _step(layer, inward, self.products["weight_hh"], state, layer.hidden_size)
        return state if isinstance(layer, nn.LSTMCell) else state[0]


class RoutedRecurrent(Composite):
    """The forward of `LSTM`, `GRU` and `RNN`: any number of layers, one or both directions.

    States are torch's: `[layers * directions, rows, H]`; one of a single row is shown to everyone.
    """

    layer: nn.RNNBase

    def __call__(self, input: Any, hx: Any = None) -> tuple[Tensor, Any]:
        """Return outputs and the last state for a sequence and the first state."""
        layer = self.layer
        if not isinstance(input, Tensor):
            message = (
                f"a routed {type(layer).__name__} takes padded sequences, not a "
                f"{type(input).__name__}: pass the tensor, and read the outputs at the lengths"
            )
            raise TypeError(message)
        if input.dim() == 2:
            one = None if hx is None else _map(lambda part: part[:, None], hx)
            output, last = self(input[None] if layer.batch_first else input[:, None], one)
            alone = output[0] if layer.batch_first else output[:, 0]
            return alone, _map(lambda part: part[:, 0], last)
        rows = input if layer.batch_first else input.transpose(0, 1)
        states = self._first(rows, hx)
        ends: list[State] = []
        for number in range(layer.num_layers):
            if number and layer.dropout:
                rows = F.dropout(rows, layer.dropout, layer.training)
            rows = self._layer(number, rows, states, ends)
        last = tuple(torch.stack(parts) for parts in zip(*ends, strict=True))
        output = rows if layer.batch_first else rows.transpose(0, 1)
        return output, last if isinstance(layer, nn.LSTM) else last[0]

    def _first(self, rows: Tensor, hx: Any) -> list[State]:
        """Return the first state of each layer and direction."""
        count = self.layer.num_layers * (1 + self.layer.bidirectional)
        width = self.layer.proj_size or self.layer.hidden_size
        if hx is None:
            return [_zeros(self.layer, rows, width)] * count
        parts = []
        for part in _as_tuple(hx):
            if part.shape[1] == 1 and len(rows) > 1:  # of one row, shown to everyone
                part = part[:count] if len(part) == count else part[:1].expand(count, -1, -1)
                part = part.expand(-1, len(rows), -1)
            if part.shape[:2] != (count, len(rows)):
                message = (
                    f"the state of a {type(self.layer).__name__} is {tuple(part.shape)}: it must be "
                    f"({count}, {len(rows)}, {part.shape[2]}), layers and directions by rows"
                )
                raise ValueError(message)
            parts.append(part)
        return list(zip(*(part.unbind() for part in parts), strict=True))

    def _layer(self, number: int, rows: Tensor, states: list[State], ends: list[State]) -> Tensor:
        outputs = []
        for end in ("", "_reverse")[: 1 + self.layer.bidirectional]:
            output, last = self._direction(f"l{number}{end}", rows, states[len(ends)])
            outputs.append(output)
            ends.append(last)
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=-1)

    def _direction(self, end: str, rows: Tensor, state: State) -> tuple[Tensor, State]:
        """Return `[rows, T, H]` and the last state."""
        layer = self.layer
        inward = self.products[f"weight_ih_{end}"](rows)
        onward, project = self.products[f"weight_hh_{end}"], self.products.get(f"weight_hr_{end}")
        outputs: list[Any] = [None] * rows.shape[1]
        times = range(rows.shape[1])
        for time in reversed(times) if end.endswith("reverse") else times:
            state = _step(layer, inward[:, time], onward, state, layer.hidden_size)
            if project is not None:
                state = (project(state[0]), *state[1:])
            outputs[time] = state[0]
        return torch.stack(outputs, dim=1), state


def _step(layer: Any, inward: Tensor, onward: Any, state: State, size: int) -> State:
    """Return the state after one step, by the equations in torch's documentation.

    Args:
        layer: says which kind it is.
        inward: `[rows, gates * H]`, the products of the input.
        onward: multiplies the state.
        state: `(h,)` or `(h, c)`.
        size: H.
    """
    hidden = onward(state[0])
    if isinstance(layer, (nn.LSTM, nn.LSTMCell)):
        gates = inward + hidden
        inner, forget, _, outer = torch.split(padded(torch.sigmoid, gates), size, dim=-1)
        cell = padded(torch.tanh, gates[..., 2 * size : 3 * size])
        memory = forget * state[1] + inner * cell
        return outer * padded(torch.tanh, memory), memory
    if isinstance(layer, (nn.GRU, nn.GRUCell)):
        first, others = (torch.split(part, [2 * size, size], -1) for part in (inward, hidden))
        both = padded(torch.sigmoid, first[0] + others[0])
        reset, update = torch.split(both, size, dim=-1)
        new = padded(torch.tanh, first[1] + reset * others[1])
        return ((1 - update) * new + update * state[0],)
    activation = torch.tanh if layer.nonlinearity == "tanh" else torch.relu
    return (padded(activation, inward + hidden),)


def _as_tuple(hx: Any) -> State:
    return tuple(hx) if isinstance(hx, (tuple, list)) else (hx,)


def _map(function: Any, state: Any) -> Any:
    return tuple(map(function, state)) if isinstance(state, (tuple, list)) else function(state)


def _zeros(layer: Any, rows: Tensor, width: int) -> State:
    """Return the state before the first step."""
    hidden = rows.new_zeros(len(rows), width)
    if isinstance(layer, (nn.LSTM, nn.LSTMCell)):
        return hidden, rows.new_zeros(len(rows), layer.hidden_size)
    return (hidden,)
