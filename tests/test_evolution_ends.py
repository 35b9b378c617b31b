"""What `evolve_with_env` gives back, and that it leaves nothing behind."""

import gc
import threading

import pytest

from populora_envs import Policy, evolve_with_env, interact_with_env
from tests.test_evolution import SMALL, evolve
from tests.tiny import Aim, Record, Spiky, linear

# --- what comes back


def test_policy_alone_or_with_its_history():
    assert isinstance(evolve_with_env(Aim, linear(), **SMALL), Policy)
    policy, history = evolve_with_env(Aim, linear(), return_history=True, **SMALL)
    assert isinstance(policy, Policy)
    assert len(history) == 4


def test_returned_policy_scores_what_the_history_says_of_the_champion():
    settings = {**SMALL, "num_generations": 30, "pop_size": 16, "num_episodes": 4}
    policy, history = evolve_with_env(Aim, linear(), return_history=True, **settings)
    with interact_with_env(Aim) as interactor:
        score = interactor.evaluate_policy(policy, num_episodes=300, horizon=8)
    last = history[-1]
    error = (score.standard_error**2 + last["champion_se"] ** 2) ** 0.5
    assert abs(score.mean - last["champion_mean"]) < 4 * error
    assert score.mean > history[0]["base_fitness"] + 1.0


def test_callback_sees_the_population_and_its_entry():
    seen = []
    evolve_with_env(
        Aim,
        linear(),
        on_generation=lambda population, entry: seen.append(
            (population.pop_size, population.generation, entry["generation"])
        ),
        **SMALL,
    )
    assert seen == [(5, g, g) for g in range(4)]


def test_settings_of_the_population_are_passed_on():
    seen = []
    evolve_with_env(
        Aim,
        linear(),
        lora_targets=["2"],
        eval_seed=5,
        on_generation=lambda population, entry: seen.append(population),
        **SMALL,
    )
    assert list(seen[0].individuals) == ["2"]
    assert seen[0].low_rank == 2
    other = interact_with_env(Aim).population(linear(), pop_size=5, seed=0, eval_seed=5)
    other.generation = seen[0].generation
    assert other.eval_seed == seen[0].eval_seed


def test_targets_mean_the_users_model_also_behind_a_normaliser():
    seen = []
    for targets in (["0"], "0", None):
        evolve_with_env(
            Aim,
            linear(),
            lora_targets=targets,
            standardize=True,
            on_generation=lambda population, entry: seen.append(population.individuals),
            **{**SMALL, "num_generations": 1},
        )
    assert [len(individuals) for individuals in seen] == [1, 1, 2]


# --- nothing is left behind


@pytest.mark.parametrize("what", ["reset", "step", "action", "callback", "fitness"])
@pytest.mark.parametrize("error", [ValueError("broken"), KeyboardInterrupt()])
def test_environments_we_opened_are_closed_whatever_fails(what, error):
    def fails(*_):
        raise error

    class Breaks(Aim):
        def reset(self, *, seed=None, options=None):
            return fails() if what == "reset" else super().reset(seed=seed)

        def step(self, action):
            return fails() if what == "step" else super().step(action)

    record = Record()
    settings = {
        "action": {"action": fails},
        "callback": {"on_generation": fails},
        "fitness": {"fitness": lambda population: fails()},
    }
    threads = threading.active_count()
    with pytest.raises(type(error)):
        evolve_with_env(lambda: Breaks(record), linear(), **SMALL, **settings.get(what, {}))
    assert record.made == record.closed > 0
    assert threading.active_count() == threads


def test_environments_of_the_user_stay_open():
    record = Record()
    envs = [Aim(record) for _ in range(3)]
    evolve_with_env(envs, linear(), **SMALL)
    assert record.closed == 0


def test_error_names_slot_individual_episode_and_generation():
    class Breaks(Aim):
        def step(self, action):
            if self.record.steps == 150:
                message = "no licence"
                raise OSError(message)
            return super().step(action)

    record = Record()
    with pytest.raises(OSError, match="no licence") as caught:
        evolve_with_env(lambda: Breaks(record), linear(), **{**SMALL, "num_generations": 20})
    notes = " ".join(caught.value.__notes__)
    assert all(word in notes for word in ("slot", "individual", "episode", "generation"))


def test_run_keeps_no_environment_alive():
    record = Record()
    evolve_with_env(lambda: Aim(record), linear(), **SMALL)
    gc.collect()
    assert record.made == record.closed == 5


def test_rewards_that_are_not_finite_do_not_spread():
    with pytest.warns(UserWarning, match="rank last"):
        _, last, history = evolve(Spiky, linear(), num_generations=10, pop_size=10)
    assert history[0]["num_nonfinite"] > 0
    assert all(tensor.isfinite().all() for tensor in last.values())
    assert history[-1]["num_nonfinite"] < 10
