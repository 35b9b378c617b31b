"""A search of one's own, hill climbing, on CartPole: python examples/own_search.py

25 generations take 4 seconds and score 500.0 +- 0.0, the most there is.
"""

import sys

from populora_envs import Search, evolve_with_env

GENERATIONS = int(sys.argv[1]) if len(sys.argv) > 1 else 25


class HillClimbing(Search):
    """Individual 0 is the best so far, everyone else a mutation of it."""

    def _ask(self):
        others = range(1, self.population.pop_size)
        if self.population.generation:
            self.population.crossover_("clone", [[0]] * len(others), others)
            self.population.mutate_("full_gaussian", individuals=others, epsilon=0.5)

    def _tell(self, fitnesses):
        best = self.population.individual_state(fitnesses.argmax())
        self.population.write_individual_(0, best)


if __name__ == "__main__":
    policy, history = evolve_with_env(
        "CartPole-v1", search=HillClimbing, num_generations=GENERATIONS, return_history=True
    )
    for entry in history[::5]:
        print(f"{entry['generation']:4d} best {entry['best_fitness']:8.1f}")
    last = history[-1]
    print(f"{last['champion_mean']:.1f} +- {last['champion_se']:.1f}")
