"""A generation loop of one's own on Acrobot: python examples/own_loop.py

30 generations take 5 seconds and score -85.1 +- 1.8; -100 solves the task.
"""

import sys

from populora_envs import interact_with_env

GENERATIONS = int(sys.argv[1]) if len(sys.argv) > 1 else 30

if __name__ == "__main__":
    with interact_with_env("Acrobot-v1", seed=0) as interactor:
        population = interactor.population(pop_size=16, low_rank=4)
        fitnesses = interactor.evaluate(population)
        for generation in range(GENERATIONS):
            population.evolve_(fitnesses)
            fitnesses = interactor.evaluate(population)
            if generation % 10 == 9:
                print(f"{population.generation:4d} best {fitnesses.max():8.1f}")
        policy = interactor.policy(population.merge_(fitnesses.argmax()))
        score = interactor.evaluate_policy(policy)
        print(f"{score.mean:.1f} +- {score.standard_error:.1f} over {len(score.returns)} episodes")
