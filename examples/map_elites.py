"""A map of all that policies can do in a maze, the best of each kind: python examples/map_elites.py

The way to the goal in the upper right leads around a wall that stands against every step toward it. An
archive of where episodes end keeps the detours, from which the goal is found. With matplotlib installed
the map is drawn to map_elites.png; each elite is a file in the folder map_elites.
"""

import importlib.util
import sys

import gymnasium
import numpy as np

from populora_envs import GridArchive, evolve_with_env
from populora_envs.heatmap import heatmap

GENERATIONS = int(sys.argv[1]) if len(sys.argv) > 1 else 150
START, GOAL = np.array([0.2, 0.2]), np.array([0.9, 0.9])
WALLS = (((0.0, 0.5), (0.75, 0.5)), ((0.75, 0.2), (0.75, 0.5)))


def crosses(place, goal, wall):
    """Whether the straight way between two places meets a wall."""

    def side(a, b, c):
        return (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])

    a, b = wall
    apart = side(place, goal, a) * side(place, goal, b) <= 0
    return apart and side(a, b, place) * side(a, b, goal) <= 0


class Maze(gymnasium.Env):
    """A point in the unit square; the last of 40 steps pays the distance to the goal, negative."""

    observation_space = gymnasium.spaces.Box(0.0, 1.0, (3,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.time = START + self.np_random.uniform(-0.02, 0.02, 2), 0
        return self.seen(), {}

    def seen(self):
        return np.array([*self.place, self.time / 40], np.float32)

    def step(self, action):
        goal = np.clip(self.place + 0.05 * action, 0.0, 1.0)
        if not any(crosses(self.place, goal, wall) for wall in WALLS):
            self.place = goal
        self.time += 1
        over = self.time == 40
        reward = -float(np.linalg.norm(self.place - GOAL)) if over else 0.0
        return self.seen(), reward, over, False, {}


if __name__ == "__main__":
    archive = GridArchive(low=[0.0, 0.0], high=[1.0, 1.0], shape=(20, 20))
    populations = []
    evolve_with_env(
        Maze,
        num_envs=32,
        search="map_elites",
        archive=archive,
        descriptor=lambda episode: episode.final[:2],
        pop_size=32,
        low_rank=4,
        horizon=40,
        standardize=False,
        num_generations=GENERATIONS,
        on_generation=lambda population, entry: populations.append(population),
    )
    if archive.best is not None:
        print(f"{len(archive)} kinds, the best ends {-archive.best.fitness:.2f} from the goal")
        archive.save("map_elites", populations[-1])
    if importlib.util.find_spec("matplotlib") is not None:
        heatmap(archive, "map_elites.png")
