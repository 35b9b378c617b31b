"""A whole population side by side in one film, without a screen: before and after ten generations.

Wants ``populora-envs[video]``. Writes before.mp4 and after.mp4 into the current folder.
"""

import sys

from populora_envs import interact_with_env, record_video

ENV = "CartPole-v1"


def film(interactor, population, path):
    policies = [interactor.policy(population.merge_(i)) for i in range(population.pop_size)]
    recording = record_video(policies, ENV, path, horizon=200)
    print(f"{path}: {recording.frames} frames, returns {[round(r) for r in recording.returns]}")


def main(num_generations=10):
    with interact_with_env(ENV, seed=0) as interactor:
        population = interactor.population(pop_size=16)
        film(interactor, population, "before.mp4")
        for _ in range(num_generations):
            population.evolve_(interactor.evaluate(population), epsilon=0.5)
        film(interactor, population, "after.mp4")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
