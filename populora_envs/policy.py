"""Policies: built from the spaces, bound to an action head, and returned to the user."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch
from gymnasium import spaces
from torch import Tensor, nn

from populora_envs import export, policy_files
from populora_envs.actions import ActionHead, make_action
from populora_envs.actor import Actor
from populora_envs.distributed import device_of
from populora_envs.rescale import read_range
from populora_envs.seeds import derive_seed, seeded_globals
from populora_envs.slot_actions import slot_action
from populora_envs.spaces import Encoder
from populora_envs.stacks import Stack

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    import numpy as np

    from populora_envs.rescale import Range

    Acted = tuple[Any, np.ndarray]
    Direct = Callable[[np.ndarray, int], Acted | None]

HIDDEN = 32
"""Units in the hidden layer of a policy that is built here."""


def build_model(encoder: Encoder, actor: Actor, seed: int) -> nn.Module:
    """Return a policy for vector observations: one hidden layer of 32 with tanh.

    A last tanh keeps the numbers for a Box in (-1, 1), unless a head shapes them; the choices of discrete
    factors beside it stay what they are. Initial weights are PyTorch's, drawn from `seed`.
    """
    if not encoder.is_vector or encoder.shape is None:
        message = (
            f"a policy is built for vector observations, not for {encoder.space}: pass a model, or "
            "flatten=True"
        )
        raise ValueError(message)
    squash = _holds_box(actor.space) and not isinstance(actor.head, ActionHead)
    with seeded_globals(derive_seed(seed, "model")):
        layers: list[nn.Module] = [
            nn.Linear(encoder.shape[0], HIDDEN),
            nn.Tanh(),
            nn.Linear(HIDDEN, actor.output_size()),
        ]
    return nn.Sequential(*layers, nn.Tanh()) if squash else nn.Sequential(*layers)


def _holds_box(space: spaces.Space[Any]) -> bool:
    if isinstance(space, spaces.Dict):
        return any(map(_holds_box, space.spaces.values()))
    if isinstance(space, spaces.Tuple):
        return any(map(_holds_box, space.spaces))
    return isinstance(space, spaces.Box)


class Policy(nn.Module):
    """A plain model with what it needs to act in an environment.

    Args:
        model: takes encoded observations.
        encoder: of raw observations.
        actor: from outputs to actions.

    Attributes:
        model: the plain module; it holds the observation statistics, where there are any.
    """

    def __init__(self, model: nn.Module, encoder: Encoder, actor: Actor) -> None:
        super().__init__()
        self.model = model
        self.encoder = encoder
        self.actor = actor

    def forward(self, observation: Any) -> Any:
        """Return the model's output `[B, out]` on raw observations (one, or a batch).

        Args:
            observation: of the environment's space; a tensor goes to the model as it is.
        """
        if isinstance(observation, Tensor):
            return self.model(observation)
        return self.model(self._encode(observation)[0])

    def act(self, observation: Any) -> Any:
        """Return what the environment takes, without noise where the head is one of ours.

        Args:
            observation: one raw observation, or a batch of them.

        Returns:
            One action in the environment's range, dtype and shape, or a batch `[B, *act]`.
        """
        batch, size = self._encode(observation)
        with torch.inference_mode():
            output = self.model(batch)
        actions, _ = self.actor.act(output, None, 1 if size is None else size)
        return slot_action(self.actor.space, actions, 0) if size is None else actions

    def check_fits(
        self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]
    ) -> None:
        """Refuse spaces of other sizes than those that the policy was made for.

        Args:
            observation_space: of one raw observation.
            action_space: of one action of the simulator.

        Raises:
            ValueError: where they do not fit, naming both.
        """
        own = _sizes(self.encoder, self.actor.space)
        if own != _sizes(Encoder(observation_space, flatten=not self.encoder.nested), action_space):
            message = (
                f"the policy was made for observations {self.encoder.space} and actions "
                f"{self.actor.space}, and here are {observation_space} and {action_space}"
            )
            raise ValueError(message)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the policy as one file of safetensors, spaces, head and ranges in its header.

        Functions of yours are not in it: `load` takes them again.

        Args:
            path: of the file, such as ``"policy.safetensors"``.
        """
        described = {
            "observation_space": policy_files.describe_space(self.encoder.space),
            "action_space": policy_files.describe_space(self.actor.space),
            "flatten": not self.encoder.nested,
            "head": self.actor.described(),
            "ranges": [None if r is None else _plain(r) for r in self.actor.ranges],
        }
        policy_files.write(path, self.model, described)

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], model: nn.Module | None = None, action: Any = None
    ) -> Policy:
        """Return a policy that `save` wrote.

        Args:
            path: the file.
            model: of the same structure, to take the weights; None where it was made of Linear and plain
                layers, which the file describes.
            action: the function that the policy had; not needed for heads.

        Raises:
            ValueError: where the file holds no policy, or wants a model or an action function.
        """
        weights, told = policy_files.read(path)
        if model is None and told["model"] is None:
            message = f"{path} does not describe its model: pass model=, of the same structure"
            raise ValueError(message)
        if action is None and told["head"] == "function":
            message = f"{path} was saved with an action function of its user: pass action="
            raise ValueError(message)
        model = policy_files.build_model(told["model"]) if model is None else copy.deepcopy(model)
        model.load_state_dict(weights, assign=True)
        space = policy_files.build_space(told["action_space"])
        head = action if action is not None or told["head"] is None else _made(told["head"])
        encoder = Encoder(
            policy_files.build_space(told["observation_space"]), flatten=told["flatten"]
        )
        return cls(model.eval(), encoder, Actor(head, space, *told["ranges"]))

    def encode_one(self, observation: Any) -> Tensor:
        """Return one raw observation as the model takes it, `[1, *obs]` on the CPU."""
        encoded: Tensor = self._encode(observation)[0]
        return encoded.cpu()

    def export_onnx(self, path: str | os.PathLike[str]) -> None:
        """Write the policy as ONNX, observation to action; see `populora_envs.export.export_onnx`.

        Args:
            path: of the file, such as ``"policy.onnx"``.
        """
        export.export_onnx(self, path)

    def export_program(self, path: str | os.PathLike[str]) -> None:
        """Write the policy as a program of `torch.export`; see `populora_envs.export`.

        Args:
            path: of the file, such as ``"policy.pt2"``, for `torch.export.load`.
        """
        export.export_program(self, path)

    def _encode(self, observation: Any) -> tuple[Any, int | None]:
        """Return the batch for the model, and the batch size, None for a single observation."""
        size = self.encoder.batch_size(observation)
        if size is None:
            stack = Stack(self.encoder.space, 1)
            stack.write(0, observation)
            observation = stack.value
        count = 1 if size is None else size
        return self.encoder.encode(observation, count, device_of(self.model)), size


def _sizes(encoder: Encoder, space: spaces.Space[Any]) -> tuple[Any, ...]:
    return encoder.shape, type(space), Actor(None, space, None, None).output_size()


def _plain(given: Range) -> list[Any]:
    return [bound.tolist() for bound in read_range(given, "range")]


def _made(described: tuple[str, dict[str, Any]]) -> Any:
    """Return a head from its name and settings."""
    name, settings = described
    return make_action(name, **settings)


def plain_module(policy: Any) -> nn.Module:
    """Return the plain module of a policy, in evaluation mode and without changing the user's."""
    model = policy.model if isinstance(policy, Policy) else policy
    if not isinstance(model, nn.Module):
        message = f"a policy is a torch.nn.Module, not {type(policy).__name__}"
        raise TypeError(message)
    return copy.deepcopy(model).eval() if model.training else model
