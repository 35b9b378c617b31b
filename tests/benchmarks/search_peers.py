"""Peers on the tasks of the search benchmark, in an interpreter of their own, scored in the same way.

EvoTorch's SNES and sb3-contrib's ARS are looked at every tenth of what they may be looked at: 10 episodes of
the centre, and where these reach the target 50 more, whose mean less one standard error must reach it. populora
is called with 16 individuals for 25 generations; what it returns is scored, and its training steps are what
full episodes would take, for it does not count them.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import torch
from torch import nn

from tests.benchmarks.peers import value_from
from tests.benchmarks.tasks import EPISODES, TASKS, UNTOUCHED, Row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    Act = Callable[[np.ndarray], Any]

PEERS = {"evotorch-snes": "evotorch", "sb3-ars": "sb3_contrib", "populora": "populora"}
LOOKS = 60
"""Looks within the budget."""


def play(
    python: str, tasks: Sequence[str], seeds: Iterable[int], path: Any, append: Callable[..., None]
) -> None:
    """Run every peer that the interpreter has on every gymnasium task."""
    for name, module in PEERS.items():
        try:
            value_from(python, f"import {module}", "0")
        except (RuntimeError, OSError) as error:
            print(f"without {name}: {error}")
            continue
        for task in (task for task in tasks if task[-3:-1] == "-v"):
            for seed in seeds:
                call = f"run_peer({name!r}, {task!r}, {seed})"
                imports = "from tests.benchmarks.search_peers import run_peer"
                row = Row(*value_from(python, imports, call))
                append(path, row)
                print(f"{task} {name} seed {seed}: {row.score:.1f} +- {row.score_se:.1f}")


def run_peer(name: str, task: str, seed: int) -> list[Any]:
    """Train, score; return a row."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    start = time.perf_counter()
    runs = {"evotorch-snes": _run_evotorch, "sb3-ars": _run_ars, "populora": _run_populora}
    act, reported, train, looks, generations = runs[name](task, seed)
    score = _score(task, act, range(seed + UNTOUCHED, seed + UNTOUCHED + EPISODES))
    seconds = time.perf_counter() - start
    return [task, name, seed, *score, *reported, train, looks, train + looks, generations, seconds]


def _score(task: str, act: Act, seeds: Iterable[int]) -> tuple[float, float]:
    returns = [_episode(task, act, seed)[0] for seed in seeds]
    return float(np.mean(returns)), float(np.std(returns, ddof=1) / len(returns) ** 0.5)


def _episode(task: str, act: Act, seed: int) -> tuple[float, int]:
    env = gymnasium.make(task)
    observation, _ = env.reset(seed=seed)
    total, steps, done = 0.0, 0, False
    while not done:
        observation, reward, terminated, truncated, _ = env.step(act(observation))
        total, steps, done = total + float(reward), steps + 1, terminated or truncated
    env.close()
    return total, steps


class _Watch:
    """Looks at the centre now and then; keeps the best, and says when the target is reached."""

    def __init__(self, task: str, seed: int) -> None:
        self.task, self.seed, self.next = task, seed * 10_000, 0.0
        self.steps, self.best = 0, (-np.inf, np.nan)
        self.act: Act | None = None

    def look(self, trained: int, act: Act) -> bool:
        """Return whether the run is over."""
        solved, budget = TASKS[self.task]
        if trained < self.next and trained < budget:
            return False
        self.next = trained + budget / LOOKS
        returns = self._play(act, 10)
        if solved is not None and np.mean(returns) >= solved:
            returns = self._play(act, 50)
        error = float(np.std(returns, ddof=1) / len(returns) ** 0.5)
        if np.mean(returns) > self.best[0]:
            self.best, self.act = (float(np.mean(returns)), error), act
        is_done = solved is not None and len(returns) > 10 and np.mean(returns) - error >= solved
        return bool(is_done) or trained >= budget

    def _play(self, act: Act, count: int) -> list[float]:
        played = [_episode(self.task, act, self.seed + i) for i in range(count)]
        self.seed += count
        self.steps += sum(steps for _, steps in played)
        return [total for total, _ in played]


def _network(task: str) -> nn.Module:
    env = gymnasium.make(task)
    discrete = isinstance(env.action_space, gymnasium.spaces.Discrete)
    size = int(env.action_space.n) if discrete else env.action_space.shape[0]
    layers = [nn.Linear(env.observation_space.shape[0], 32), nn.Tanh(), nn.Linear(32, size)]
    return nn.Sequential(*layers) if discrete else nn.Sequential(*layers, nn.Tanh())


def _run_evotorch(task: str, seed: int) -> tuple[Any, ...]:
    from evotorch.algorithms import SNES
    from evotorch.neuroevolution import GymNE

    problem = GymNE(task, lambda: _network(task), observation_normalization=True)
    problem.manual_seed(seed)
    search = SNES(problem, popsize=50, stdev_init=0.5)
    watch, generations, is_over = _Watch(task, seed), 0, False
    while not is_over:
        search.step()
        generations += 1
        policy = problem.to_policy(search.status["center"])
        is_over = watch.look(int(problem.interaction_count), _evotorch_act(task, policy))
    trained = int(problem.interaction_count)
    return watch.act, watch.best, trained, watch.steps, generations


def _evotorch_act(task: str, policy: nn.Module) -> Act:
    space = gymnasium.make(task).action_space

    def act(observation: np.ndarray) -> Any:
        with torch.no_grad():
            output = policy(torch.as_tensor(observation, dtype=torch.float32)).numpy()
        if isinstance(space, gymnasium.spaces.Discrete):
            return int(output.argmax())
        return np.clip(output, space.low, space.high)

    return act


def _run_ars(task: str, seed: int) -> tuple[Any, ...]:
    from sb3_contrib import ARS

    watch = _Watch(task, seed)
    model = ARS("LinearPolicy", task, seed=seed)
    trained, is_over, generations = 0, False, 0
    while not is_over:
        model.learn(max(1, TASKS[task].budget // LOOKS), reset_num_timesteps=False)
        trained, generations = int(model.num_timesteps), generations + 1
        parameters = {k: v.clone() for k, v in model.policy.state_dict().items()}
        is_over = watch.look(trained, _ars_act(model, parameters))
    return watch.act, watch.best, trained, watch.steps, generations


def _ars_act(model: Any, parameters: dict[str, torch.Tensor]) -> Act:
    import copy

    policy = copy.deepcopy(model.policy)
    policy.load_state_dict(parameters)
    return lambda observation: policy.predict(observation, deterministic=True)[0]


def _run_populora(task: str, seed: int) -> tuple[Any, ...]:
    from populora import evolve_with_env

    space = gymnasium.make(task).action_space
    discrete = isinstance(space, gymnasium.spaces.Discrete)
    head = (lambda output: output.argmax(-1)) if discrete else (lambda output: output)
    limit = gymnasium.make(task).spec.max_episode_steps
    envs = [gymnasium.make(task) for _ in range(16)]
    policy, history = evolve_with_env(
        envs,
        _network(task),
        pop_size=16,
        low_rank=16,
        action=head,
        num_generations=25,
        horizon=limit,
        seed=seed,
        return_history=True,
    )
    best = max(entry["best_fitness"] for entry in history)

    def act(observation: np.ndarray) -> Any:
        with torch.no_grad():
            output = policy(torch.as_tensor(observation, dtype=torch.float32)[None])[0]
        if discrete:
            return int(output.argmax())
        middle, half = (space.high + space.low) / 2, (space.high - space.low) / 2
        return np.clip(middle + half * output.numpy(), space.low, space.high)

    return act, (best, np.nan), 16 * 25 * limit, 0, 25
