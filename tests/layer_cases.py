"""One small model around each kind of layer, and batches for it."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Callable

NUM_TOKENS = 10


class Around(nn.Module):
    """One layer and how it is called."""

    def __init__(self, inner, call):
        super().__init__()
        self.inner, self.call = inner, call

    def forward(self, x):
        return self.call(self.inner, x)


class Case(NamedTuple):
    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    """Of one row; a row of tokens where there are 0 channels."""
    call: Callable[[Any, Any], Any] = lambda layer, x: layer(x)


def first(layer, x):
    return layer(x)[0]


def attend(layer, x):
    return layer(x, x, x)[0]


def attend_across(layer, x):
    hidden = torch.triu(torch.ones(2, x.shape[1], dtype=torch.bool), 2)
    return layer(x[:, :2], x, x.flip(1), attn_mask=hidden, need_weights=False)[0]


def turned(layer, x):
    """A recurrent layer that takes time before rows."""
    return layer(x.transpose(0, 1))[0].transpose(0, 1)


def transposed_linear():
    from transformers.pytorch_utils import Conv1D

    return Conv1D(4, 5)


CASES = {
    "linear": Case(lambda: nn.Linear(5, 4), (5,)),
    "conv1d circular": Case(lambda: nn.Conv1d(6, 8, 3, padding=2, padding_mode="circular"), (6, 9)),
    "conv1d same": Case(lambda: nn.Conv1d(6, 8, 4, padding="same", dilation=2), (6, 9)),
    "conv2d": Case(
        lambda: nn.Conv2d(4, 8, 3, stride=2, padding=1, padding_mode="reflect"), (4, 9, 8)
    ),
    "conv2d in groups": Case(lambda: nn.Conv2d(4, 8, 3, stride=(1, 2), groups=2), (4, 9, 8)),
    "conv2d by channel": Case(lambda: nn.Conv2d(4, 4, 3, groups=4, bias=False), (4, 5, 8)),
    "conv3d": Case(lambda: nn.Conv3d(2, 4, 2, padding=1, padding_mode="replicate"), (2, 4, 4, 5)),
    "embedding": Case(lambda: nn.Embedding(NUM_TOKENS, 8), (4, 0)),
    "lstm": Case(
        lambda: nn.LSTM(5, 7, num_layers=2, bidirectional=True, batch_first=True), (4, 5), first
    ),
    "lstm projected": Case(lambda: nn.LSTM(5, 7, proj_size=3), (4, 5), turned),
    "gru": Case(lambda: nn.GRU(5, 7, batch_first=True), (4, 5), first),
    "gru without bias": Case(lambda: nn.GRU(5, 7, bias=False, bidirectional=True), (4, 5), turned),
    "rnn": Case(lambda: nn.RNN(5, 7, batch_first=True, nonlinearity="relu"), (4, 5), first),
    "lstm cell": Case(lambda: nn.LSTMCell(5, 7), (5,), first),
    "gru cell": Case(lambda: nn.GRUCell(5, 7), (5,)),
    "rnn cell": Case(lambda: nn.RNNCell(5, 7), (5,)),
    "attention": Case(lambda: nn.MultiheadAttention(8, 2, batch_first=True), (5, 8), attend),
    "attention across": Case(
        lambda: nn.MultiheadAttention(8, 2, batch_first=True, add_bias_kv=True, add_zero_attn=True),
        (5, 8),
        attend_across,
    ),
    "attention with its own keys": Case(
        lambda: nn.MultiheadAttention(6, 1, batch_first=True, kdim=8, vdim=8),
        (5, 8),
        lambda layer, x: layer(x[..., :6], x, x)[0],
    ),
    "layer norm": Case(lambda: nn.LayerNorm((5, 8)), (3, 5, 8)),
    "group norm": Case(lambda: nn.GroupNorm(2, 8), (8, 5)),
    "rms norm": Case(lambda: nn.RMSNorm(8), (5, 8)),
    "instance norm": Case(lambda: nn.InstanceNorm2d(8, affine=True), (8, 5, 3)),
    "batch norm": Case(lambda: nn.BatchNorm1d(8), (8,)),
    "batch norm of images": Case(lambda: nn.BatchNorm2d(8), (8, 3, 5)),
}

if importlib.util.find_spec("transformers") is not None:
    CASES["transformers Conv1D"] = Case(transposed_linear, (3, 5))


def make(name, dtype=torch.float32):
    """Return the model of a case in evaluation mode, its weights the same every time."""
    case = CASES[name]
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = Around(case.make(), case.call)
        for layer in model.modules():
            if isinstance(layer, nn.modules.batchnorm._BatchNorm):
                layer.running_mean.normal_()
                layer.running_var.uniform_(0.5, 2.0)
    return model.to(dtype).eval()


def batch(name, rows, dtype=torch.float32, seed=0):
    """Return rows for a case."""
    shape = CASES[name].shape
    generator = torch.Generator().manual_seed(seed)
    if shape[-1] == 0:
        return torch.randint(NUM_TOKENS, (rows, *shape[:-1]), generator=generator)
    return torch.randn(rows, *shape, generator=generator).to(dtype)
