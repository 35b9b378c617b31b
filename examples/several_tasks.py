"""One policy for several simulators, by a dict: python examples/several_tasks.py

Everyone plays every entry, and the fitness is the mean. The entries need the same spaces; here it is CartPole with poles
of three lengths, the longest of which falls slowest.
15 generations take 4 seconds and score 500 with each of them.
"""

import sys

import gymnasium

from populora_envs import evolve_with_env, interact_with_env

GENERATIONS = int(sys.argv[1]) if len(sys.argv) > 1 else 15
LENGTHS = {"short": 0.25, "usual": 0.5, "long": 1.5}


def cartpole(length):
    """Return a factory of cartpoles whose pole has half the length `length` in metres."""

    def make():
        env = gymnasium.make("CartPole-v1")
        pole = env.unwrapped
        pole.length, pole.polemass_length = length, pole.masspole * length
        return env

    return make


if __name__ == "__main__":
    tasks = {name: cartpole(length) for name, length in LENGTHS.items()}
    policy, history = evolve_with_env(
        tasks, num_envs=8, num_generations=GENERATIONS, seed=0, progress=True, return_history=True
    )
    print(f"all: {history[-1]['champion_mean']:.1f} +- {history[-1]['champion_se']:.1f}")
    for name, task in tasks.items():
        with interact_with_env(task, num_envs=8, seed=1) as interactor:
            print(f"{name}: {interactor.evaluate_policy(policy, num_episodes=16).mean:.1f}")
