"""Evolve a small network on dm_control's cartpole: python examples/dm_control_cartpole.py

Actions of +-1 cost 0.2 of the reward of each step, so 800 is the most that this policy can reach.
25 generations take a minute and a half and score 799.3 +- 0.0.
"""

import sys

from dm_control import suite
from torch import nn

from populora_envs import evolve_with_env, interact_with_env

GENERATIONS = int(sys.argv[1]) if len(sys.argv) > 1 else 25

if __name__ == "__main__":
    envs = [suite.load("cartpole", "balance") for _ in range(16)]
    policy, history = evolve_with_env(
        envs,
        nn.Sequential(nn.Linear(5, 32), nn.ReLU(), nn.Linear(32, 2)),
        pop_size=16,
        low_rank=16,
        action=lambda logits: logits.argmax(-1) * 2 - 1,
        num_generations=GENERATIONS,
        horizon=1000,
        seed=0,
        progress=True,
        return_history=True,
    )
    with interact_with_env(envs) as interactor:
        score = interactor.evaluate_policy(policy, num_episodes=20)
    print(f"{history[-1]['env_steps']} env steps; {score.mean:.1f} +- {score.standard_error:.1f}")
