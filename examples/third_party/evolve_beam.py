"""A simulator of your own, once its package is installed: pip install examples/third_party."""

from beam import Beams

from populora_envs import evolve_with_env
from populora_envs.testing import check_adapter

check_adapter(lambda: Beams(4))
_, history = evolve_with_env("beam/one", num_generations=20, seed=0, return_history=True)
print(f"time near the middle: {history[-1]['champion_mean']:.0f} of 200 steps")
