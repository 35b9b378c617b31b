"""What ranks do in the tests: each function is a scenario, and returns plain values."""

import hashlib
import json
import os
import sys
import warnings
from pathlib import Path

import gymnasium
import torch
import torch.distributed as dist
from torch import nn

from populora_envs import (
    GridArchive,
    Population,
    broadcast,
    evolve_with_env,
    interact_with_env,
    is_main_rank,
    sync,
)

TIMES = {"seconds_env", "seconds_forward", "seconds_evolution"}


def rank():
    return int(os.environ.get("RANK", "0"))


def weights_of(module):
    digest = hashlib.sha256()
    for weights in module.state_dict().values():
        digest.update(weights.numpy().tobytes())
    return digest.hexdigest()


def evolved(env, **settings):
    """The history without times, and a hash of the policy's weights."""
    settings = {"num_generations": 3, "seed": 5, "pop_size": 6, "low_rank": 3, **settings}
    policy, history = evolve_with_env(env, return_history=True, **settings)
    plain = [{k: v for k, v in entry.items() if k not in TIMES} for entry in history]
    return {"history": plain, "weights": weights_of(policy)}


def cartpole():
    return evolved("CartPole-v1", num_envs=3, num_episodes=2)


def pendulum_ga():
    return evolved("Pendulum-v1", search="ga", horizon=60)


def islands():
    """What the lineage says comes with it."""
    rows = []
    told = evolved(
        "Pendulum-v1",
        horizon=40,
        num_islands=2,
        migrate_every=1,
        on_generation=lambda population, entry: rows.extend(population.lineage.rows()),
    )
    return {**told, "lineage": [[row["id"], *row["parents"], row["born"]] for row in rows]}


def map_elites():
    archive = GridArchive([-1.0, -8.0], [1.0, 8.0], (4, 4))
    told = evolved(
        "Pendulum-v1",
        horizon=40,
        search="map_elites",
        archive=archive,
        descriptor=lambda episode: (episode.final[0], episode.mean[2]),
    )
    held = [[c, e.fitnesses, e.descriptors] for c, e in sorted(archive.elites.items())]
    return {**told, "archive": held}


def sampling():
    return evolved("Acrobot-v1", action="categorical", horizon=80)


def dm_control():
    return evolved("dm_control/cartpole-balance", horizon=60)


def workers():
    return evolved("Pendulum-v1", horizon=60, num_workers=2, num_envs=4)


def forked_workers():
    envs = [gymnasium.make("CartPole-v1") for _ in range(4)]
    return evolved(envs, num_workers=2)


def few():
    """Fewer individuals than ranks."""
    return evolved("CartPole-v1", pop_size=2)


def several_entries():
    return evolved({"a": "CartPole-v1", "b": lambda: gymnasium.make("CartPole-v1")})


def unseeded_model():
    """Every rank builds another model; all go on with that of rank 0."""
    torch.manual_seed(100 + rank())
    population = Population(nn.Linear(3, 2), pop_size=3, low_rank=2, init="random")
    before = weights_of(population.model)
    population.evaluate_distributed(lambda population, idx: 0.0)
    seeds = population.seed, population.eval_seed
    return {"before": before, "after": weights_of(population.model), "seeds": seeds}


def fitness_forms():
    """Fitness is the number of the individual, and who was called for whom is noted."""
    population = Population(nn.Linear(3, 2), pop_size=5, low_rank=2, seed=1)
    called = []

    def single(population, idx):
        called.append(idx)
        return float(idx)

    def batched(population, individuals):
        called.append(individuals)
        return individuals

    def everyone(population):
        called.append("all")
        return torch.arange(population.pop_size)

    values = [population.evaluate_distributed(f).tolist() for f in (single, batched, everyone)]
    return {"values": values, "called": called}


def function_evolution():
    model = nn.Linear(4, 1)
    torch.manual_seed(0)
    target = torch.randn(1, 4)

    def fitness(population, idx):
        return -float((population.merge_(idx).weight - target).square().sum())

    torch.manual_seed(7 + rank())
    model = nn.Linear(4, 1)
    nn.init.zeros_(model.bias)
    if rank() == 0:
        nn.init.zeros_(model.weight)
    policy, history = evolve_with_env(
        None, model, fitness=fitness, num_generations=4, pop_size=7, seed=2, return_history=True
    )
    plain = [{k: v for k, v in entry.items() if k not in TIMES} for entry in history]
    return {"history": plain, "weights": weights_of(policy)}


def helpers():
    given = broadcast({"from": rank(), "tensor": torch.tensor([float(rank())])})
    sync()
    return {"from": given["from"], "tensor": given["tensor"].tolist(), "main": is_main_rank()}


def own_group():
    """The caller's group is used and left alive."""
    dist.init_process_group("gloo")
    played = cartpole()
    total = torch.tensor([1.0])
    dist.all_reduce(total)
    dist.destroy_process_group()
    return {**played, "total": total.item()}


def unseedable():
    class Own(gymnasium.Wrapper):
        def reset(self):
            return self.env.reset()

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with interact_with_env(
            [Own(gymnasium.make("CartPole-v1")) for _ in range(2)]
        ) as interactor:
            population = interactor.population(pop_size=6)
            run = interactor.rollout(population, num_episodes=2)
    return {
        "fitness": run.fitnesses.tolist(),
        "lengths": run.lengths.tolist(),
        "said": [str(w.message) for w in said],
    }


def custom_loop():
    from populora_envs import make_search

    with interact_with_env("CartPole-v1", seed=3) as interactor:
        population = interactor.population(pop_size=5)
        search = make_search("es", population)
        fitnesses = []
        for _ in range(3):
            search.ask()
            values = interactor.evaluate(population)
            search.tell(values)
            fitnesses.append(values.tolist())
        return {"fitness": fitnesses, "weights": weights_of(population.merge_(0))}


def checkpointed():
    """A run that goes on from wherever its folder stands."""
    most = int(os.environ.get("GENERATIONS", "6"))
    return evolved("CartPole-v1", num_generations=most, checkpoint_dir="run", resume=True)


class Trouble(gymnasium.Wrapper):
    """Calls a function at its hundredth step on rank 1."""

    def __init__(self, function):
        super().__init__(gymnasium.make("CartPole-v1"))
        self.function, self.steps = function, 0

    def step(self, action):
        self.steps += 1
        if self.steps == 100 and rank() == 1:
            self.function()
        return super().step(action)


def raise_it():
    message = "the simulator broke"
    raise ArithmeticError(message)


def operators():
    """Products and singular vectors must not depend on how many threads a rank has."""
    choices = {"crossover_type": "svd_subspace", "mutation_type": "svd_structured"}
    return evolved("CartPole-v1", search="ga", selection_type="fuss", **choices)


def broken_simulator():
    return evolved(lambda: Trouble(raise_it), num_envs=2)


def killed_rank():
    return evolved(lambda: Trouble(lambda: os.kill(os.getpid(), 9)), num_envs=2)


def killed_worker():
    """A worker of rank 1 dies once; its episodes are played again."""
    mark = Path("killed")

    def die():
        if not mark.exists():
            mark.touch()
            os.kill(os.getpid(), 9)

    return evolved([Trouble(die) for _ in range(4)], num_workers=2)


def failing_callback():
    def fail(population, entry):
        if rank() == 1:
            message = "a callback of rank 1"
            raise LookupError(message)

    return evolved("CartPole-v1", on_generation=fail)


def drifting():
    """One rank changes its individuals on its own."""

    def change(population, entry):
        if rank() == 1:
            next(iter(population.individuals.values())).up.add_(0.1)

    return evolved("CartPole-v1", search="ga", on_generation=change)


def different_settings():
    return evolved("CartPole-v1", pop_size=6 + rank())


def different_budgets():
    return evolved("CartPole-v1", num_generations=3 + rank())


def folder_with_a_run():
    """Rank 0 alone sees that the folder holds a run, and all stop."""
    evolved("CartPole-v1", checkpoint_dir="taken", num_generations=1)
    return evolved("CartPole-v1", checkpoint_dir="taken", num_generations=1)


def restarted():
    """Each rank may die at a random moment, and is started again by torchrun."""
    import random
    import threading

    start = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    if start < int(os.environ["DEATHS"]) and rank() == start % 2:
        after = random.Random(f"{os.environ['MOMENT']} {start}").uniform(0.0, 1.0)
        threading.Timer(after, lambda: os.kill(os.getpid(), 9)).start()
    return evolved(
        "CartPole-v1", num_generations=12, checkpoint_dir="run", resume=True, horizon=100
    )


def main(names):
    results = {name: globals()[name]() for name in names}
    Path(f"told.{rank()}.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main(sys.argv[1:])
