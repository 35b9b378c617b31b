"""Stand-ins for the environments of Isaac Lab, which cannot be had where the tests run.

They have the interface of `isaaclab` 2.3.2, read off its source: tensors on a device, observations in
groups, resets within the step and without a last observation, one global seed, buffers that are used again,
and a `close` for one call. What happens in them is a clock: every step pays what the first action says, plus
in the first step of an episode a bonus that was drawn at its beginning.
"""

from __future__ import annotations

import random
from typing import Any, ClassVar

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector.utils import batch_space


def unbounded(size: int) -> spaces.Box:
    return spaces.Box(-np.inf, np.inf, (size,), np.float32)


class DirectRLEnv(gymnasium.Env):
    """Sub-environments that show their clock; number i terminates after ``lengths[i]`` steps.

    Args:
        lengths: of the episodes, longer than the limit for those that are cut by it.
        limit: the steps after which an episode is cut.
        bonus: whether one is drawn.
        action_space: of one sub-environment.
    """

    is_vector_env = True
    metadata: ClassVar[dict[str, Any]] = {"render_modes": [None, "human", "rgb_array"]}

    def __init__(
        self,
        lengths: tuple[int, ...] = (3, 3, 3),
        limit: int = 20,
        bonus: bool = False,
        action_space: spaces.Space[Any] | None = None,
    ) -> None:
        self.num_envs, self.device = len(lengths), torch.device("cpu")
        self.max_episode_length, self._with_bonus = limit, bonus
        self._lengths = torch.tensor(lengths)
        self.single_action_space = action_space or unbounded(1)
        self._set_spaces()
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.episode_length_buf = torch.zeros(self.num_envs, dtype=torch.int64)
        self.reset_terminated = torch.zeros(self.num_envs, dtype=torch.bool)
        self.reset_time_outs = torch.zeros(self.num_envs, dtype=torch.bool)
        self.reward_buf = torch.zeros(self.num_envs)
        self._shown = torch.zeros(self.num_envs, 1)
        self._bonus = torch.zeros(self.num_envs)
        self.extras: dict[str, Any] = {}
        self.actions: list[torch.Tensor] = []
        self.seeds: list[int | None] = []
        self.resets = self.closes = 0

    def _set_spaces(self) -> None:
        """The batched space is that of the policy alone, unlike the single one."""
        groups = {"policy": unbounded(1), "critic": unbounded(3)}
        self.single_observation_space = spaces.Dict(groups)
        self.observation_space = batch_space(groups["policy"], self.num_envs)

    def _get_observations(self) -> dict[str, Any]:
        self._shown[:, 0] = self.episode_length_buf
        return {"policy": self._shown, "critic": torch.full((self.num_envs, 3), 99.0)}

    @staticmethod
    def seed(seed: int = -1) -> int:
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        torch.manual_seed(seed)
        return seed

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.seeds.append(seed)
        self.resets += 1
        if seed is not None:
            self.seed(seed)
        self._reset_idx(torch.arange(self.num_envs))
        return self._get_observations(), self.extras

    def _reset_idx(self, env_ids: torch.Tensor) -> None:
        self.episode_length_buf[env_ids] = 0
        if self._with_bonus:
            self._bonus[env_ids] = torch.rand(len(env_ids))

    def step(self, action: torch.Tensor) -> tuple[Any, ...]:
        action = action.to(self.device)
        self.actions.append(action.clone())
        self.reward_buf[:] = action[:, 0] + self._bonus * (self.episode_length_buf == 0)
        self.episode_length_buf += 1
        self.reset_terminated[:] = self.episode_length_buf == self._lengths
        self.reset_time_outs[:] = self.episode_length_buf >= self.max_episode_length
        ended = (self.reset_terminated | self.reset_time_outs).nonzero().squeeze(-1)
        if len(ended):
            self._reset_idx(ended)
        flags = self.reset_terminated, self.reset_time_outs
        return self._get_observations(), self.reward_buf, *flags, self.extras

    def close(self) -> None:
        assert not self.closes, "Isaac Lab may be closed once"
        self.closes += 1


class ManagerBasedRLEnv(DirectRLEnv):
    """Both of its spaces have all groups, and a group may be made of named terms."""

    def _set_spaces(self) -> None:
        terms = spaces.Dict({"clock": unbounded(1), "number": spaces.Discrete(10)})
        self.single_observation_space = spaces.Dict({"policy": terms, "critic": unbounded(3)})
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)

    def _get_observations(self) -> dict[str, Any]:
        groups = super()._get_observations()
        number = torch.arange(self.num_envs)[:, None]
        return {**groups, "policy": {"clock": groups["policy"], "number": number}}


class ManagerBasedEnv:
    """It has no rewards and no ends."""

    num_envs = 3

    def reset(self) -> tuple[Any, dict[str, Any]]:
        return {"policy": torch.zeros(3, 1)}, {}

    def step(self, action: torch.Tensor) -> tuple[Any, dict[str, Any]]:
        return {"policy": torch.zeros(3, 1)}, {}


class DirectMARLEnv(DirectRLEnv):
    """It has several agents."""

    possible_agents = ("first", "second")


class RslRlVecEnvWrapper:
    """What a training library sees: `step` gives four values."""

    def __init__(self, env: Any) -> None:
        self.env = env

    @property
    def unwrapped(self) -> Any:
        return self.env.unwrapped

    def reset(self) -> tuple[Any, dict[str, Any]]:
        return self.env.reset()

    def step(self, actions: torch.Tensor) -> tuple[Any, ...]:
        observation, reward, terminated, truncated, extras = self.env.step(actions)
        return observation, reward, (terminated | truncated).long(), extras


for kind, module in (
    (DirectRLEnv, "isaaclab.envs.direct_rl_env"),
    (ManagerBasedRLEnv, "isaaclab.envs.manager_based_rl_env"),
    (ManagerBasedEnv, "isaaclab.envs.manager_based_env"),
    (DirectMARLEnv, "isaaclab.envs.direct_marl_env"),
    (RslRlVecEnvWrapper, "isaaclab_rl.rsl_rl.vecenv_wrapper"),
):
    kind.__module__ = module
