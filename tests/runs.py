"""Short runs, what they show, and how two of them are compared."""

from populora_envs import evolve_with_env
from tests.tiny import Aim, linear, same, weights, without_times


class Watch:
    """Keeps the weights of every generation; raises after one of them where asked to."""

    def __init__(self, crash_after=None, error=None):
        self.weights, self.generations = [], []
        self.crash_after, self.error = crash_after, error or RuntimeError("crash")

    def __call__(self, population, entry):
        self.weights.append([*weights(population), *population.model.state_dict().values()])
        self.weights[-1] = [tensor.clone() for tensor in self.weights[-1]]
        self.generations.append(entry["generation"])
        if entry["generation"] == self.crash_after:
            raise self.error


def run(env=Aim, model=None, *, watch=None, **settings):
    """Evolve a little and return what a run shows: policy, history without times, the watch."""
    watch = watch or Watch()
    defaults = {
        "num_generations": 6,
        "horizon": 8,
        "pop_size": 6,
        "low_rank": 2,
        "standardize": True,
        "seed": 3,
    }
    policy, history = evolve_with_env(
        env,
        linear() if model is None else model,
        return_history=True,
        on_generation=watch,
        **{**defaults, **settings},
    )
    return policy, without_times(history), watch


def assert_same_end(first, second):
    """Two runs end with the same champion, history and last generation, bit for bit."""
    (policy, history, watch), (other_policy, other_history, other_watch) = first, second
    assert history == other_history
    assert same(policy.state_dict(), other_policy.state_dict())
    assert same(watch.weights[-1], other_watch.weights[-1])
