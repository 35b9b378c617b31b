"""Stop a run and go on with it, bit for bit: python examples/resume.py

The stopped run is at 497.0, the resumed one at 499.8, as the whole one is.
"""

import sys
import tempfile

from populora_envs import evolve_with_env

GENERATIONS = int(sys.argv[1]) if len(sys.argv) > 1 else 12
SETTINGS = {"seed": 0, "pop_size": 16, "return_history": True}


def scores_of(history):
    return [(entry["best_fitness"], entry["champion_mean"]) for entry in history]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        run = {**SETTINGS, "checkpoint_dir": folder}
        _, first = evolve_with_env("CartPole-v1", num_generations=GENERATIONS // 2, **run)
        print(f"stopped after {len(first)} generations at {first[-1]['champion_mean']:.1f}")
        _, resumed = evolve_with_env("CartPole-v1", num_generations=GENERATIONS, resume=True, **run)
    _, whole = evolve_with_env("CartPole-v1", num_generations=GENERATIONS, **SETTINGS)
    print(f"resumed to {len(resumed)} generations at {resumed[-1]['champion_mean']:.1f}")
    print(f"equal to a run that never stopped: {scores_of(resumed) == scores_of(whole)}")
