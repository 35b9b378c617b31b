"""Isaac Lab: sub-environments on one device that begin their next episodes themselves."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from gymnasium import spaces

from populora_adapters.tensors import BatchInWaves, TensorBatch, layers, single_space
from populora_envs.adapter import Autoreset
from populora_envs.spaces import at, leaves, rebuild

if TYPE_CHECKING:
    from populora_envs.adapter import Adapter

OBSERVED = "policy"
"""The group of observations that the policy sees; others, such as "critic", are left alone."""

_SEEDS = (
    "Isaac Lab has one seed for all of its sub-environments: an episode depends on the slot in which it "
    "is played"
)
_UNBOUNDED = (
    "the actions of this environment have no bounds, so what the policy gives goes to Isaac Lab as it "
    "is: pass to_range=(low, high) to map it onto a range"
)


def adapt(envs: list[Any]) -> Adapter:
    """Return an adapter over one environment of Isaac Lab, `DirectRLEnv` or `ManagerBasedRLEnv`.

    Raises:
        ValueError: for several, for a wrapper of a training library, and without a group "policy".
        TypeError: for environments of several agents, without rewards, or with nested actions.
    """
    if len(envs) > 1:
        message = (
            f"there are {len(envs)} environments of Isaac Lab, which runs one per process: pass one, "
            "with as many sub-environments as you need (num_envs in its configuration)"
        )
        raise ValueError(message)
    env = envs[0]
    _check_kind(env)
    action_space = single_space(env, "action")
    if isinstance(action_space, (spaces.Dict, spaces.Tuple)):
        message = f"Isaac Lab steps with one tensor of actions, the space is {action_space}"
        raise TypeError(message)
    limit = int(env.unwrapped.max_episode_length)
    batch = IsaacLabBatch(env, _observed_space(env), action_space, limit)
    notes = (_SEEDS, _UNBOUNDED) if _is_unbounded(action_space) else (_SEEDS,)
    return BatchInWaves(batch, Autoreset.SAME_STEP, notes)


def make(env_id: str) -> Any:
    """Say why an id alone is not enough.

    Raises:
        ImportError: where Isaac Lab is not installed.
        ValueError: where it is.
    """
    if importlib.util.find_spec("isaaclab") is None:
        message = (
            f"{env_id} wants Isaac Lab, which is not installed: it comes with Isaac Sim and needs an "
            "NVIDIA GPU, follow its installation guide"
        )
        raise ImportError(message)
    message = (
        f"{env_id} cannot be made from its id, for Isaac Sim must be started first and every task has "
        "a configuration: start isaaclab.app.AppLauncher, import isaaclab_tasks, make the environment "
        "with gymnasium.make(id, cfg=...) and pass it"
    )
    raise ValueError(message)


def _check_kind(env: Any) -> None:
    """Refuse what has another interface, each kind with what to pass in its place."""
    inner = getattr(env, "unwrapped", env)
    if hasattr(inner, "possible_agents"):
        message = (
            f"{type(inner).__name__} has several agents: pass what "
            "isaaclab.envs.multi_agent_to_single_agent makes of it"
        )
        raise TypeError(message)
    if not hasattr(inner, "single_action_space"):
        message = (
            f"{type(inner).__name__} has neither rewards nor ends: pass a DirectRLEnv or a "
            "ManagerBasedRLEnv"
        )
        raise TypeError(message)
    for layer in layers(env):
        if type(layer).__module__.partition(".")[0] == "isaaclab_rl":
            message = (
                f"{type(layer).__name__} has the interface of a training library: pass the environment "
                "that it wraps"
            )
            raise ValueError(message)


def _observed_space(env: Any) -> spaces.Space[Any]:
    groups = env.unwrapped.single_observation_space
    if OBSERVED not in groups.spaces:
        message = (
            f"the environment observes {', '.join(groups.spaces)}: a policy sees the group {OBSERVED!r}, "
            "which is missing"
        )
        raise ValueError(message)
    return groups[OBSERVED]  # type: ignore[no-any-return]


def _is_unbounded(space: spaces.Space[Any]) -> bool:
    return isinstance(space, spaces.Box) and not np.isfinite([space.low, space.high]).all()


class IsaacLabBatch(TensorBatch):
    """Sub-environments of Isaac Lab, seen through the group "policy" of their observations."""

    def reset(
        self, *, seed: int | list[int] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin episodes in all sub-environments."""
        groups, extras = self._batch.reset(seed=seed, options=options)
        return self._observed(groups), extras

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step all sub-environments; a slot that ends shows its next episode."""
        given = torch.tensor(actions, device=self._batch.unwrapped.device)
        if given.ndim == 1:
            given = given[:, None]  # Isaac Lab keeps a dimension for one discrete action
        groups, *rest = super().step(given)
        return self._observed(groups), *rest

    def _observed(self, groups: dict[str, Any]) -> Any:
        """Return the observations nested as their space is, discrete ones without a dimension."""
        space, observed = self.single_observation_space, groups[OBSERVED]
        values = {}
        for leaf in leaves(space):
            value = at(observed, leaf.path)
            values[leaf.path] = value if leaf.space.shape else value.reshape(self.num_envs)
        return rebuild(space, values)
