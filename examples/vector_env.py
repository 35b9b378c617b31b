"""A vector environment that exists already: python examples/vector_env.py

Its slots are played as they are, whatever their autoreset mode. It is not closed: who opens it closes it.
30 generations take 5 seconds and score -86.3 +- 1.6; -100 solves the task.
"""

import sys

import gymnasium

from populora_envs import evolve_with_env, interact_with_env

GENERATIONS = int(sys.argv[1]) if len(sys.argv) > 1 else 30

if __name__ == "__main__":
    envs = gymnasium.make_vec("Acrobot-v1", num_envs=16, vectorization_mode="sync")
    policy, history = evolve_with_env(
        envs, num_generations=GENERATIONS, seed=0, progress=True, return_history=True
    )
    with interact_with_env(envs, seed=1) as interactor:
        score = interactor.evaluate_policy(policy, num_episodes=32)
    envs.close()
    print(f"{history[-1]['env_steps']} env steps in {len(history)} generations")
    print(f"32 fresh episodes: {score.mean:.1f} +- {score.standard_error:.1f}")
