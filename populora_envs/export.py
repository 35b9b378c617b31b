"""Policies for other runtimes: observation in, action out, in one graph without Python."""

from __future__ import annotations

import logging
import warnings
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from populora_envs.rescale import read_range

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator

    from populora_envs.policy import Policy

CHECKED, TOLERANCE = 100, 1e-5
"""Observations on which an export must give what the policy gives, and how closely."""


class ActingModule(nn.Module):
    """What a policy does, as operations of torch alone: encoded observation `[B, D]` -> action `[B, *act]`.

    The normaliser, the head without its noise, and the map to the environment's range are inside.

    Args:
        policy: whose action space is Box, Discrete, MultiDiscrete or MultiBinary.

    Raises:
        ValueError: for another action space, and for nested observations.
    """

    low: Tensor
    high: Tensor
    slope: Tensor
    shift: Tensor

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        space = policy.actor.space
        kinds = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
        if not isinstance(space, kinds) or policy.encoder.shape is None:
            message = (
                f"a policy for observations {policy.encoder.space} and actions {space} cannot be "
                "exported: vectors or images, and Box, Discrete, MultiDiscrete or MultiBinary can"
            )
            raise ValueError(message)
        self.model, self.space = policy.model, space
        head = policy.actor.head
        self.decide: Callable[[Tensor], Any] = head.mean if policy.actor.is_ours else head
        if isinstance(space, spaces.Box):
            for name, values in _line(policy, space).items():
                self.register_buffer(name, torch.from_numpy(values))

    def forward(self, observation: Tensor) -> Tensor:
        """Return actions."""
        action = torch.as_tensor(self.decide(self.model(observation)))
        if isinstance(self.space, spaces.Discrete):
            return action.reshape(-1) + int(self.space.start)
        if isinstance(self.space, spaces.MultiDiscrete):
            return action.reshape(-1, *self.space.shape) + torch.as_tensor(self.space.start)
        if isinstance(self.space, spaces.MultiBinary):
            return action.reshape(-1, *self.space.shape).to(torch.int8)
        return self._placed(action)

    def _placed(self, action: Tensor) -> Tensor:
        """Return numbers of the head in the environment's range and dtype."""
        numbers = action.to(torch.float64).reshape(-1, *self.low.shape)
        placed = (numbers * self.slope + self.shift).clamp(self.low, self.high)
        dtype = torch.from_numpy(np.zeros(0, self.space.dtype)).dtype
        return placed.to(dtype) if dtype.is_floating_point else placed.round().to(dtype)


def _line(policy: Policy, space: spaces.Box) -> dict[str, np.ndarray]:
    """Return slope and shift of the map that the policy uses, read off two of its points, and bounds."""
    wide = spaces.Box(space.low, space.high, space.shape, np.float64) if _floats(space) else space
    actor = type(policy.actor)(policy.actor.head, wide, *policy.actor.ranges)
    ends = policy.actor.source_range
    if ends is None:
        slope, shift = np.ones(space.shape), np.zeros(space.shape)
    else:
        first, last = (np.broadcast_to(end, space.shape) for end in read_range(ends, "from_range"))
        begun, ended = (
            np.asarray(actor.map(end[None], 1)[0][0], np.float64) for end in (first, last)
        )
        slope = (ended - begun) / (last - first)
        shift = begun - slope * first
    low, high = (np.asarray(bound, np.float64) for bound in (space.low, space.high))
    return {"low": low, "high": high, "slope": slope, "shift": shift}


def _floats(space: spaces.Box) -> bool:
    return np.issubdtype(space.dtype, np.floating)


def export_program(policy: Policy, path: str | os.PathLike[str]) -> None:
    """Write a `torch.export` program that `torch.export.load(path).module()` runs.

    Raises:
        ValueError: where it cannot be, or does not give what the policy gives.
    """
    module, example = _prepared(policy)
    batch = torch.export.Dim("batch", min=1)
    with _quiet():
        program = torch.export.export(module, (example,), dynamic_shapes=({0: batch},))
    _check(policy, lambda seen: program.module()(seen).detach().numpy())
    torch.export.save(program, Path(path))


def export_onnx(policy: Policy, path: str | os.PathLike[str]) -> None:
    """Write an ONNX file with the input ``observation`` `[batch, *obs]` and the output ``action``.

    Raises:
        ValueError: where it cannot be, or does not give what the policy gives.
        ImportError: where onnx, onnxscript or onnxruntime is missing.
    """
    try:
        import onnxruntime
        import onnxscript  # noqa: F401 - what torch writes with
    except ImportError as error:
        error.add_note('to export to ONNX: pip install "populora-envs[export]"')
        raise
    module, example = _prepared(policy)
    batch = torch.export.Dim("batch", min=1)
    with _quiet():
        program = torch.onnx.export(
            module,
            (example,),
            dynamo=True,
            dynamic_shapes=({0: batch},),
            input_names=["observation"],
            output_names=["action"],
            verbose=False,
        )
    assert program is not None
    data = program.model_proto.SerializeToString()
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    _check(policy, lambda seen: session.run(None, {"observation": seen.numpy()})[0])
    Path(path).write_bytes(data)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep to itself what torch says of its own exporter: deprecations, and operators of torchvision."""
    log = logging.getLogger("torch.onnx._internal.exporter._registration")
    before = log.disabled
    log.disabled = True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.disabled = before


def _prepared(policy: Policy) -> tuple[ActingModule, Tensor]:
    """Return what is exported, on the CPU, and an example of two observations."""
    module = ActingModule(policy).cpu().eval()
    return module, _observations(policy, 2)[0]


def _observations(policy: Policy, count: int) -> tuple[Tensor, list[Any]]:
    """Return encoded observations drawn from the space, and the raw ones."""
    policy.encoder.space.seed(0)
    raw = [policy.encoder.space.sample() for _ in range(count)]
    rows = [policy.encode_one(observation) for observation in raw]
    return torch.cat(rows), raw


def _check(policy: Policy, run: Callable[[Tensor], np.ndarray]) -> None:
    seen, raw = _observations(policy, CHECKED)
    given = run(seen)
    for row, observation in zip(given, raw, strict=True):
        expected = np.asarray(policy.act(observation))
        if not np.allclose(row, expected, rtol=TOLERANCE, atol=TOLERANCE):
            message = (
                f"the export gives {row} where the policy gives {expected}: its action function does "
                "something that was not recorded; use a head, or action=None"
            )
            raise ValueError(message)
