"""A slow evaluator for tests: each job alone, in one environment, with one merged policy, step by step."""

import numpy as np
import torch
from gymnasium import spaces


def encoded(space, observation):
    """One observation as a list of numbers, discrete ones as one-hot."""
    if isinstance(space, spaces.Dict):
        return [n for k in sorted(space) for n in encoded(space[k], observation[k])]
    if isinstance(space, spaces.Discrete):
        return [float(observation - space.start == i) for i in range(space.n)]
    return np.asarray(observation, np.float64).ravel().tolist()


def acted(space, output):
    """The deterministic action of one output."""
    if isinstance(space, spaces.Discrete):
        return int(output.argmax()) + int(space.start)
    if isinstance(space, spaces.MultiBinary):
        return (output > 0).astype(np.int8).reshape(space.shape)
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    place = (output.astype(np.float64).reshape(space.shape) + 1.0) / 2.0
    mapped = np.clip(low + place * (high - low), low, high)
    return (np.rint(mapped) if space.dtype.kind == "i" else mapped).astype(space.dtype)


def episode(env, model, seed, horizon):
    """Return, length and end of one episode."""
    observation, _ = env.reset(seed=seed)
    total = 0.0
    for step in range(1, horizon + 1):
        row = torch.tensor([encoded(env.observation_space, observation)], dtype=torch.float32)
        with torch.inference_mode():
            action = acted(env.action_space, model(row)[0].numpy())
        observation, reward, terminated, truncated, _ = env.step(action)
        total += np.asarray(reward, np.float64).item()
        if terminated or truncated:
            return total, step, "terminated" if terminated else "truncated"
    return total, horizon, "horizon"


def played(make_env, population, seeds, horizon):
    """For each individual, (return, length, end) of each episode."""
    models = [population.merge_(i) for i in range(population.pop_size)]
    return [[episode(make_env(), model, seed, horizon) for seed in seeds] for model in models]
