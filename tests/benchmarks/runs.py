"""One run of the search benchmark."""

from __future__ import annotations

import time
import warnings
from typing import Any

import torch
from torch import nn

from populora_envs import EnvInteractor, evolve_with_env
from populora_envs.invariance import one_thread
from tests.benchmarks.tasks import EPISODES, SPARE, TASKS, UNTOUCHED, Row


def run(task: str, search: str, seed: int) -> tuple[Row, dict[int, float]]:
    """Evolve, score the policy; return the row, and the champion's score by half millions of steps."""
    warnings.simplefilter("ignore")
    start = time.perf_counter()
    with one_thread():
        play = _run_design if task == "design" else _run_id
        score, history = play(task, {} if search == "default" else {"search": search}, seed)
    last = history[-1]
    looks = history[-2]["env_steps_validation"] if len(history) > 1 else 0
    curve = {_trained(entry) // 500_000: round(entry["champion_mean"], 1) for entry in history}
    scores = (score.mean, score.standard_error, last["champion_mean"], last["champion_se"])
    steps = (_trained(last), looks, last["env_steps"], len(history))
    return Row(task, search, seed, *scores, *steps, time.perf_counter() - start), curve


def _trained(entry: dict[str, Any]) -> int:
    return int(entry["env_steps"] - entry["env_steps_validation"])


def _run_id(task: str, settings: dict[str, Any], seed: int) -> tuple[Any, Any]:
    policy, history = evolve_with_env(
        task,
        seed=seed,
        target_fitness=TASKS[task].solved,
        max_env_steps=round(TASKS[task].budget * SPARE),
        return_history=True,
        **settings,
    )
    with EnvInteractor(task, seed=seed + UNTOUCHED, num_envs=16) as interactor:
        return interactor.evaluate_policy(policy, num_episodes=EPISODES), history


def _run_design(task: str, settings: dict[str, Any], seed: int) -> tuple[Any, Any]:
    torch.manual_seed(seed)
    policy, history = evolve_with_env(
        _sixteen_cartpoles(),
        nn.Sequential(nn.Linear(5, 32), nn.ReLU(), nn.Linear(32, 2)),
        pop_size=16,
        low_rank=16,
        action=_bang_bang,
        num_generations=25,
        horizon=1000,
        seed=seed,
        return_history=True,
        **settings,
    )
    with EnvInteractor(_sixteen_cartpoles(), seed=seed + UNTOUCHED) as interactor:
        return interactor.evaluate_policy(policy, num_episodes=EPISODES, horizon=1000), history


def _sixteen_cartpoles() -> list[Any]:
    from dm_control import suite

    return [suite.load("cartpole", "balance") for _ in range(16)]


def _bang_bang(logits: torch.Tensor) -> torch.Tensor:
    return logits.argmax(-1) * 2 - 1
