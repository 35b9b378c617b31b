"""PettingZoo: parallel environments; one individual plays all agents of one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from populora_adapters.duck import longest, read_space
from populora_envs.adapter import Autoreset, Transition, blame, close_all, reward_number
from populora_envs.registry import near_names
from populora_envs.slot_actions import make_splitter
from populora_envs.spaces import check_same
from populora_envs.stacks import Stack

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gymnasium import Space

    from populora_envs.adapter import Adapter


def adapt(envs: list[Any]) -> Adapter:
    """Return one adapter over parallel environments with the same agents."""
    return ParallelEnvs(envs)


def make(env_id: str, render_mode: str | None = None) -> Any:
    """Make ``"pettingzoo/sisl/multiwalker-v9"`` from PettingZoo's registry of parallel environments.

    Raises:
        ValueError: for an unknown name, with near ones.
        ImportError: where the package, or one that the environment needs, is not installed.
    """
    name = env_id.removeprefix("pettingzoo/")
    try:
        from pettingzoo import make, parallel_registry
    except ImportError as error:
        error.add_note('ids need PettingZoo 1.27: pip install "populora-envs[pettingzoo]"')
        raise
    if name not in parallel_registry:
        near = near_names(name, parallel_registry)
        message = f"PettingZoo has no parallel environment {name!r}; {near}"
        raise ValueError(message)
    try:
        return make("parallel", name, render_mode=render_mode)
    except Exception as error:
        if isinstance(error.__cause__, ImportError):
            message = f"pettingzoo/{name} wants a package that is not installed: {error}"
            raise ImportError(message) from error
        raise


def ids() -> list[str]:
    """Return what `make` takes; ImportError where PettingZoo is missing."""
    from pettingzoo import parallel_registry

    return [f"pettingzoo/{name}" for name in sorted(parallel_registry)]


class ScoredAgent:
    """A parallel environment in which the return of one agent alone is the fitness.

    All agents are played by the same individual all the same.

    Args:
        env: a parallel environment.
        agent: one of its `possible_agents`.

    Raises:
        ValueError: where it has no such agent.
    """

    def __init__(self, env: Any, agent: str) -> None:
        agents = _agents(env)
        if agent not in agents:
            message = f"there is no agent {agent!r}: the environment has {', '.join(agents)}"
            raise ValueError(message)
        self.env, self.scored_agent = env, agent

    @property
    def unwrapped(self) -> Any:
        """The innermost environment."""
        return getattr(self.env, "unwrapped", self.env)

    def __getattr__(self, name: str) -> Any:
        if name == "env":  # not there yet, as in a copy that is being made
            raise AttributeError(name)
        return getattr(self.env, name)


def _agents(env: Any) -> list[Any]:
    """Return all agents of a parallel environment; TypeError where they take turns."""
    if callable(getattr(env, "last", None)) and callable(getattr(env, "agent_iter", None)):
        message = (
            f"in {env} agents take turns: pass its parallel_env(), or what "
            "pettingzoo.utils.aec_to_parallel makes of it"
        )
        raise TypeError(message)
    agents = list(getattr(env, "possible_agents", ()))
    if not agents:
        message = f"{env} names no possible_agents: an environment needs to know all of its agents"
        raise TypeError(message)
    return agents


class ParallelEnvs:
    """N parallel environments of A agents: N * A slots, A in a row are a team.

    An agent that leaves before the others ends its slot. The return of an episode is the mean over
    the agents, or that of the agent that `ScoredAgent` names.

    Args:
        envs: with the same agents and spaces; within an environment agents have the same spaces too.

    Raises:
        ValueError: where agents or spaces differ.
        TypeError: for environments in which agents take turns.
    """

    autoreset = Autoreset.CALLER
    seeds_slots = True

    def __init__(self, envs: list[Any]) -> None:
        self._envs, self.agents = envs, _agents(envs[0])
        self.team = _weights(envs, self.agents)
        self.num_slots = len(envs) * len(self.agents)
        self.observation_space = self._space("observation")
        self.action_space = self._space("action")
        self.time_limit = longest(_time_limit(env) for env in envs)
        self._split = make_splitter(self.action_space)
        self._stack = Stack(self.observation_space, self.num_slots)

    def _space(self, what: str) -> Space[Any]:
        spaces = {}
        for number, env in enumerate(self._envs):
            for agent in self.agents:
                spaces[f"{number}, agent {agent}"] = _space_of(env, agent, what)
        first = next(iter(spaces))
        for name, space in spaces.items():
            check_same(spaces[first], space, name, first, what)
        return spaces[first]

    def _slot(self, number: int, agent: Any) -> int:
        return number * len(self.agents) + self.agents.index(agent)

    def _asked(self, slots: np.ndarray | None) -> list[int]:
        """Return the environments of which some slots are asked."""
        if slots is None:
            return list(range(len(self._envs)))
        asked: list[int] = np.flatnonzero(slots.reshape(len(self._envs), -1).any(axis=1)).tolist()
        return asked

    def reset(self, seeds: Sequence[int] | None = None, slots: np.ndarray | None = None) -> Any:
        """Begin episodes in the environments of `slots`, each from the seed of its first slot."""
        for number in self._asked(slots):
            try:
                seed = None if seeds is None else seeds[number * len(self.agents)]
                observations, _ = self._envs[number].reset(seed=seed)
                self._write(number, observations)
            except Exception as error:
                blame(error, number * len(self.agents))
                raise
        return self._stack.value

    def _write(self, number: int, observations: dict[Any, Any]) -> None:
        for agent, observation in observations.items():
            self._stack.write(self._slot(number, agent), observation)

    def step(self, actions: Any, slots: np.ndarray | None = None) -> Transition:
        """Step the environments of `slots`; all agents that are in one act."""
        reward = np.zeros(self.num_slots)
        terminated, truncated = np.zeros((2, self.num_slots), dtype=bool)
        given = list(self._split(actions, range(self.num_slots)))
        for number in self._asked(slots):
            slot = number * len(self.agents)
            try:
                env = self._envs[number]
                chosen = {agent: given[self._slot(number, agent)] for agent in env.agents}
                results = env.step(chosen)
                self._write(number, results[0])
                for agent in self.agents:
                    slot = self._slot(number, agent)
                    if agent in results[1]:
                        reward[slot] = reward_number(results[1][agent])
                    terminated[slot] = bool(results[2].get(agent, agent not in env.agents))
                    truncated[slot] = bool(results[3].get(agent, False))
            except Exception as error:
                blame(error, slot)
                raise
        return Transition(self._stack.value, reward, terminated, truncated)

    def close(self) -> None:
        """Close every environment."""
        close_all(self._envs)


def _weights(envs: Sequence[Any], agents: Sequence[Any]) -> tuple[float, ...]:
    """Return how much the return of each agent counts."""
    scored = getattr(envs[0], "scored_agent", None)
    for number, env in enumerate(envs):
        if _agents(env) != agents or getattr(env, "scored_agent", None) != scored:
            message = (
                f"environment {number} has the agents {_agents(env)} and scores "
                f"{getattr(env, 'scored_agent', None) or 'all'}, environment 0 has {agents} and "
                f"scores {scored or 'all'}: pass different ones as separate interactors"
            )
            raise ValueError(message)
    if scored is None:
        return (1 / len(agents),) * len(agents)
    return tuple(float(agent == scored) for agent in agents)


def _space_of(env: Any, agent: Any, what: str) -> Space[Any]:
    name = f"{what}_space"
    return read_space(SimpleNamespace(**{name: getattr(env, name)(agent)}), name)


def _time_limit(env: Any) -> int | None:
    """Return the most steps of an episode, as many environments name them; None for others."""
    inner = getattr(env, "unwrapped", None)
    for layer in (env, inner, getattr(inner, "env", None)):
        for name in ("max_cycles", "max_steps"):
            limit = getattr(layer, name, None)
            if isinstance(limit, (int, np.integer)):
                return int(limit)
    return None
