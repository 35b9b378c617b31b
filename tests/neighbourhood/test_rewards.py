"""Rewards and ends as simulators give them."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from populora_envs import interact_with_env
from tests.clock import MODES, Clock, ClockVector, OldClock, anyone, at_the_end


def fitness_of(envs, pop_size=3, **settings):
    with interact_with_env(envs) as interactor:
        return interactor.evaluate(anyone(interactor, pop_size), **settings).tolist()


# case D-01
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("slots", [1, 2, 3])
@pytest.mark.filterwarnings("ignore:these environments cannot be seeded")
def test_the_step_that_only_resets_is_no_step(mode, slots):
    with interact_with_env(ClockVector([2] * slots, mode)) as interactor:
        run = interactor.rollout(anyone(interactor, 2), num_episodes=3, horizon=2)
    assert run.returns.tolist() == [[3.0] * 3] * 2
    assert run.lengths.tolist() == [[2] * 3] * 2


# case D-02
@pytest.mark.parametrize("slots", [1, 2, 5])
@pytest.mark.parametrize("kind", [Clock, OldClock])
def test_no_episode_consumes_two_initial_states(kind, slots):
    envs = [kind() for _ in range(slots)]
    fitness_of(envs, pop_size=4, num_episodes=3)
    assert sum(env.resets for env in envs) == 12


# case D-04
@pytest.mark.parametrize("ends", [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize("slots", [1, 2, 4])
def test_both_ends_at_once_are_one_end(ends, slots):
    envs = [Clock(ends=ends, pay=lambda time, action: 1.0) for _ in range(slots)]
    assert fitness_of(envs, num_episodes=2) == [3.0] * 3


# case D-05
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.filterwarnings("ignore:these environments cannot be seeded")
def test_the_one_reward_at_the_end_is_not_dropped(mode, slots):
    assert fitness_of(ClockVector([4] * slots, mode, pay=at_the_end)) == [10.0] * 3
    assert fitness_of([Clock(4, pay=at_the_end) for _ in range(slots)]) == [10.0] * 3


# case D-06
@pytest.mark.parametrize("slots", [1, 2])
@pytest.mark.parametrize("horizon", [1, 7])
def test_an_environment_that_never_ends_is_cut_at_the_horizon(slots, horizon):
    envs = [Clock(ends=None, pay=lambda time, action: 1.0, limit=None) for _ in range(slots)]
    assert fitness_of(envs, horizon=horizon) == [float(horizon)] * 3


# case D-07
@pytest.mark.parametrize("slots", [1, 2])
@pytest.mark.parametrize(
    "reward", [np.array([2.0]), np.array(2.0), np.array([[2]]), torch.tensor([2.0]), np.float16(2)]
)
def test_a_reward_of_one_element_is_that_number(reward, slots):
    envs = [Clock(pay=lambda time, action: reward) for _ in range(slots)]
    assert fitness_of(envs) == [6.0] * 3


# case D-08
@pytest.mark.parametrize("slots", [1, 2])
@pytest.mark.parametrize(
    ("reward", "error"), [(None, TypeError), ("2", TypeError), (np.ones(2), ValueError)]
)
def test_a_reward_that_is_no_number_stops_at_once_and_says_where(reward, error, slots):
    def pay(time, action):
        return reward if time == 2 else 1.0

    with pytest.raises(error, match="reward") as caught:
        fitness_of([Clock(pay=pay) for _ in range(slots)])
    notes = " ".join(caught.value.__notes__)
    assert "slot 0" in notes
    assert "individual 0, episode 0, step 1" in notes


# case D-09
@pytest.mark.parametrize("rewards", [[np.inf], [-np.inf], [np.inf, -np.inf], [np.nan]])
def test_a_fitness_that_is_not_finite_is_the_worst_and_evolution_goes_on(rewards):
    def pay(time, action):
        return rewards[time - 1] if time <= len(rewards) else 0.0

    with interact_with_env([Clock(pay=pay)]) as interactor:
        population = anyone(interactor, 4)
        with pytest.warns(UserWarning, match="not finite"):
            fitnesses = interactor.evaluate(population)
        population.evolve_(fitnesses)
        layers = population.individuals.values()
        assert fitnesses.tolist() == [-np.inf] * 4
        assert all(layer.down.isfinite().all() and layer.up.isfinite().all() for layer in layers)


# case D-10, D-11, D-12
@pytest.mark.parametrize(
    ("space", "output", "expected"),
    [
        (spaces.Box(-np.inf, np.inf, (2,), np.float32), [0.5, -2.0], [0.5, -2.0]),
        (spaces.Box(-np.inf, np.inf, (2,), np.float64), [0.5, -200.0], [0.5, -200.0]),
        (spaces.Box(0, 10, (3,), np.int64), [-1.0, 0.0, 1.0], [0, 5, 10]),
        (spaces.Box(0, 200, (2,), np.uint8), [-1.0, 1.0], [0, 200]),
        (spaces.Box(-1.0, 1.0, (1,), np.float64), [0.1], [np.float64(np.float32(0.1))]),
    ],
)
def test_a_box_gets_numbers_in_its_own_bounds_and_dtype(space, output, expected):
    env = Clock(action_space=space)
    with interact_with_env([env]) as interactor:
        population = anyone(interactor, 1, outputs=len(output))
        interactor.evaluate(population, action=lambda out: torch.tensor([output]))
    assert env.actions[0].dtype == space.dtype
    assert env.actions[0].tolist() == expected


# case D-14
@pytest.mark.parametrize("start", [-1, 0, 5])
def test_indices_of_a_function_begin_at_0_whatever_the_start(start):
    env = Clock(action_space=spaces.Discrete(3, start=start))
    with interact_with_env([env]) as interactor:
        population = anyone(interactor, 1, outputs=3)
        interactor.evaluate(population, action=lambda out: torch.tensor([2]))
    assert env.actions == [start + 2] * 3
