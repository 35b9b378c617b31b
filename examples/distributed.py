"""Evolve on several processes: torchrun --standalone --nproc-per-node=4 examples/distributed.py

20 generations score -92.2 +- 3.7, on any number of processes; -100 solves the task.
"""

import sys

import gymnasium

from populora_envs import evolve_with_env, is_main_rank

# Without a command line: the same script, the same numbers, in one process.
generations = int(sys.argv[1]) if len(sys.argv) > 1 else 20

policy, history = evolve_with_env(
    lambda: gymnasium.make("Acrobot-v1"),  # every rank makes its own
    num_generations=generations,
    pop_size=16,
    seed=0,
    progress=True,  # rank 0 draws the bar and writes files
    return_history=True,
)
if is_main_rank():
    last = history[-1]
    print(f"mean return {last['champion_mean']:.1f} +- {last['champion_se']:.1f}")
