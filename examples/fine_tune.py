"""Evolve, fine-tune the elite by gradients, and evolve on: python examples/fine_tune.py"""

import sys

import torch
from torch import nn

from populora_envs import Population

GENERATIONS = int(sys.argv[1]) if len(sys.argv) > 1 else 30
STEPS = 100

torch.manual_seed(0)
x = torch.linspace(-2, 2, 64)[:, None, None]
y = torch.sin(2 * x)


def fitness(population):
    """Minus the squared error of everyone, who all see the same 64 numbers."""
    outputs = population(x.reshape(1, 64, 1), all_individuals=True)  # [P, 64, 1]
    return -(outputs - y.reshape(1, 64, 1)).square().mean((1, 2))


def evolve(population):
    for _ in range(GENERATIONS):
        population.evolve_(fitness(population), crossover_type="average", epsilon=0.1)
    return fitness(population)


if __name__ == "__main__":
    model = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 1))
    population = Population(model, pop_size=16, low_rank=4, adapt_bias=True, seed=0)
    scores = evolve(population)
    elite = int(scores.argmax())
    print(f"evolved: {float(scores.max()):.3f}")

    lora = population.to_lora(elite)  # its low-rank factors are ordinary parameters
    factors = [parameter for parameter in lora.parameters() if parameter.requires_grad]
    optimiser = torch.optim.Adam(factors, lr=0.01)
    for _ in range(STEPS):
        optimiser.zero_grad()
        (lora(x) - y).square().mean().backward()
        optimiser.step()
    population.load_individual_(elite, lora)  # back among the others
    print(f"after {STEPS} gradient steps: {float(fitness(population)[elite]):.3f}")
    print(f"evolved on: {float(evolve(population).max()):.3f}")
