import sys
from collections import OrderedDict

import dm_env
import numpy as np
import pytest
from dm_env import specs
from gymnasium import spaces

from populora_adapters.dm_env import make, space_of
from populora_envs import interact_with_env
from populora_envs.simulators import find_adapter
from tests.clock import LIMIT, DmClock, Spec, TimeStep, anyone

# GLFW says so on a machine without a screen.
pytestmark = pytest.mark.filterwarnings("ignore:.*DISPLAY environment variable is missing")
unseeded = pytest.mark.filterwarnings("ignore:these environments cannot be seeded per episode")


def rollout(envs, pop_size=3, num_episodes=2, horizon=LIMIT, **settings):
    with interact_with_env(envs) as interactor:
        population = interactor.population(pop_size=pop_size, low_rank=1)
        return interactor.rollout(
            population, num_episodes=num_episodes, horizon=horizon, **settings
        )


@unseeded
@pytest.mark.parametrize(("discount", "end"), [(1.0, "truncated"), (0.0, "terminated")])
def test_the_discount_of_the_last_step_tells_how_it_ends(discount, end):
    envs = [DmClock(discount=discount) for _ in range(2)]
    evaluated = rollout(envs)
    assert evaluated.returns.tolist() == [[6.0, 6.0]] * 3
    assert evaluated.lengths.tolist() == [[3, 3]] * 3
    assert evaluated.ends == [[end, end]] * 3
    assert sum(env.resets for env in envs) == 6


@unseeded
def test_an_environment_that_never_ends_is_cut_by_the_horizon():
    evaluated = rollout(DmClock(length=10**9), horizon=7)
    assert evaluated.returns.tolist() == [[28.0, 28.0]] * 3
    assert evaluated.ends == [["horizon", "horizon"]] * 3


class Library(dm_env.Environment):
    """A clock by dm_env's own classes."""

    def __init__(self, reward=1.0):
        self.reward, self.closes, self.actions = reward, 0, []

    def observation_spec(self):
        return OrderedDict(z=specs.Array((), np.float64), a=specs.Array((2,), np.float32))

    def action_spec(self):
        return specs.BoundedArray((2,), np.float64, [-1.0, 0.0], [1.0, 4.0])

    def _shown(self):
        return OrderedDict(z=np.float64(self.time), a=np.zeros(2, np.float32))

    def reset(self):
        self.time = 0
        return dm_env.restart(self._shown())

    def step(self, action):
        self.time += 1
        self.actions.append(action)
        if self.time < 3:
            return dm_env.transition(self.reward, self._shown())
        return dm_env.termination(self.reward, self._shown())

    def close(self):
        self.closes += 1


@unseeded
def test_environments_of_the_library_play():
    env = Library()
    with interact_with_env(env) as interactor:
        assert list(interactor.observation_space) == ["z", "a"]
        assert interactor.reset().tolist() == [[0.0, 0.0, 0.0]]
        population = interactor.population(pop_size=2, low_rank=1)
        evaluated = interactor.rollout(population, horizon=LIMIT)
    assert evaluated.returns.tolist() == [[3.0], [3.0]]
    assert evaluated.ends == [["terminated"], ["terminated"]]
    assert all(action.dtype == np.float64 and action.shape == (2,) for action in env.actions)
    assert env.closes == 0


@unseeded
def test_actions_keep_the_precision_of_the_spec():
    env = DmClock(length=1)
    with interact_with_env(env) as interactor:
        interactor.evaluate(anyone(interactor, 1), lambda output: np.array([[0.1]]), horizon=LIMIT)
    assert env.actions[0].dtype == np.float64
    assert env.actions[0].tolist() == [0.1]


@unseeded
@pytest.mark.parametrize("reward", [2.0, np.float64(2.0), np.array([2.0]), 2], ids=repr)
def test_a_reward_may_be_any_one_number(reward):
    evaluated = rollout(DmClock(pay=lambda time, action: reward))
    assert evaluated.fitnesses.tolist() == [6.0] * 3


@unseeded
def test_only_a_first_step_may_have_no_reward():
    with pytest.raises(TypeError, match="reward None") as raised:
        rollout([DmClock(), DmClock(pay=lambda time, action: None if time == 3 else 1.0)])
    assert "in slot 1 of 2" in raised.value.__notes__
    assert "individual 1, episode 0, step 2" in "".join(raised.value.__notes__)


@unseeded
def test_a_first_step_within_an_episode_pays_nothing():
    class Restarting(DmClock):
        def step(self, action):
            step = super().step(action)
            return TimeStep(0, None, None, step.observation) if self.time == 2 else step

    assert rollout(Restarting()).returns.tolist() == [[4.0, 4.0]] * 3


class Drawn(DmClock):
    """Pays a number drawn by its task at the reset."""

    class Task:
        def __init__(self):
            self.random = np.random.RandomState()

    def __init__(self):
        super().__init__(length=1, pay=lambda time, action: self.luck)
        self.task = self.Task()

    def reset(self):
        self.luck = float(self.task.random.uniform())
        return super().reset()


def test_tasks_are_seeded_through_their_generator():
    evaluated = rollout([Drawn(), Drawn()], episode_seeds=[0, 1])
    luck = [float(np.random.RandomState(seed).uniform()) for seed in (0, 1)]
    assert evaluated.returns.tolist() == [luck] * 3


def test_one_environment_without_a_generator_leaves_all_unseeded():
    with pytest.warns(UserWarning, match="cannot be seeded per episode"):
        interact_with_env([Drawn(), DmClock()])


# --- specs

SPECS = [
    (Spec((2,), np.float32), spaces.Box(-np.inf, np.inf, (2,), np.float32)),
    (specs.Array((), np.float64), spaces.Box(-np.inf, np.inf, (), np.float64)),
    (
        specs.BoundedArray((2,), np.float32, 0.0, [1.0, 2.0]),
        spaces.Box(np.float32([0, 0]), np.float32([1, 2])),
    ),
    (specs.DiscreteArray(3), spaces.Discrete(3)),
    (Spec((1,), np.int32), spaces.Box(-(2**31), 2**31 - 1, (1,), np.int32)),
    (specs.BoundedArray((1,), np.int32, 0, 5), spaces.Box(0, 5, (1,), np.int32)),
    (specs.Array((4, 4, 3), np.uint8), spaces.Box(0, 255, (4, 4, 3), np.uint8)),
    (specs.Array((2,), bool), spaces.MultiBinary([2])),
    (
        [specs.DiscreteArray(2), {"a": specs.DiscreteArray(3)}],
        spaces.Tuple((spaces.Discrete(2), spaces.Dict(a=spaces.Discrete(3)))),
    ),
]


@pytest.mark.parametrize(("spec", "space"), SPECS, ids=lambda value: str(value)[:40])
def test_a_spec_is_a_space(spec, space):
    assert space_of(spec) == space


def test_a_truth_value_without_dimensions_is_a_number():
    space = space_of(specs.Array((), bool))
    assert space.shape == ()
    assert space.contains(np.array(1, np.int8))


def test_text_is_left_out():
    class Named(Library):
        def observation_spec(self):
            return OrderedDict(name=specs.StringArray(()), z=specs.Array((), np.float64))

        def _shown(self):
            return {"name": "door", "z": np.float64(self.time)}

    with pytest.warns(UserWarning, match="text observations are left out: name|cannot be seeded"):
        interactor = interact_with_env(Named())
    assert interactor.encoder.shape == (1,)


@unseeded
def test_specs_of_different_shape_are_an_error_that_names_both():
    class Wide(DmClock):
        def observation_spec(self):
            return {"time": Spec((3,), np.float64)}

    with pytest.raises(ValueError, match=r"environment 1 has .*\(3,\).*environment 0 has .*\(\)"):
        interact_with_env([DmClock(), Wide()])


# --- dm_control


def test_an_id_loads_a_task():
    env = make("cartpole-balance")
    adapter = find_adapter(env)([env])
    assert adapter.seeds_slots
    assert adapter.time_limit == 1000
    assert list(adapter.observation_space) == ["position", "velocity"]
    assert adapter.action_space == spaces.Box(-1.0, 1.0, (1,), np.float64)


def test_an_unknown_task_lists_near_ones():
    with pytest.raises(ValueError, match="no task 'cartpole-balanse'; near names: cartpole-bal"):
        interact_with_env("dm_control/cartpole-balanse")


def test_a_missing_simulator_names_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "dm_control", None)
    with pytest.raises(ImportError) as raised:
        interact_with_env("dm_control/cartpole-balance")
    assert 'pip install "populora-envs[dm-control]"' in "".join(raised.value.__notes__)


def test_the_second_episode_does_not_depend_on_the_first():
    env = make("cartpole-balance")
    alone = rollout(env, pop_size=1, episode_seeds=[4], horizon=20)
    after = rollout(env, pop_size=1, episode_seeds=[3, 4], horizon=20)
    assert alone.returns[0, 0] == after.returns[0, 1]


def test_an_action_that_is_not_finite_makes_its_individual_the_worst():
    env = make("cartpole-balance")

    def action(output):
        return output * np.nan if output[0, 0] == 1 else output

    with interact_with_env([env]) as interactor:
        population = anyone(interactor, 2, 1)
        layer = next(iter(population.individuals.values()))
        layer.up[1] = np.nan
        with pytest.warns(UserWarning, match="individuals \\[1\\]"):
            fitness = interactor.evaluate(population, horizon=5)
    assert fitness[0] > 0
    assert fitness[1] == -np.inf


def test_copies_of_an_id_are_the_same_environment():
    """The lqr tasks draw the stiffness of their joints when they are loaded."""
    first, second = (make("dm_control/lqr-lqr_2_1") for _ in range(2))
    assert np.array_equal(first.physics.model.jnt_stiffness, second.physics.model.jnt_stiffness)
