"""Bad inputs: each gives one clear error, closes what we opened and leaves nothing running."""

import multiprocessing
import threading

import numpy as np
import pytest
from gymnasium import spaces
from torch import nn

from populora_envs import Population, evolve_with_env, interact_with_env, make_action
from tests.tiny import Aim, Record, aim_discrete, linear

SMALL = {"pop_size": 4, "low_rank": 2, "num_generations": 2, "horizon": 8}


@pytest.fixture
def record():
    """Environments made with it are closed afterwards, and nothing else is running."""
    threads, record = set(threading.enumerate()), Record()
    yield record
    assert record.made == record.closed
    assert set(threading.enumerate()) == threads
    assert multiprocessing.active_children() == []


def expect_refusal(envs, error, words, *, model=None, action=None, **settings):
    """Expect the same error from `evolve_with_env` and from an interactor's own loop."""
    model = model or linear()
    with pytest.raises(error, match=words):
        evolve_with_env(envs, model, action=action, **{**SMALL, **settings})
    with pytest.raises(error, match=words):
        own_loop(envs, model, action, {"pop_size": 4, "low_rank": 2, **settings})


def own_loop(envs, model, action, sizes):
    with interact_with_env(envs) as interactor:
        population = interactor.population(model, action=action, **sizes)
        for _ in range(3):
            interactor.evaluate(population, action, horizon=8)
            population.generation += 1


# --- no environment


def test_no_environment():
    with pytest.raises(ValueError, match="both model= and fitness= are needed"):
        evolve_with_env(None)
    with pytest.raises(ValueError, match="there is no environment: pass one"):
        interact_with_env(None)
    with pytest.raises(TypeError, match="envs"):
        evolve_with_env()


@pytest.mark.parametrize("envs", [[], (), list], ids=["list", "tuple", "factory"])
def test_empty_list(envs):
    expect_refusal(envs, ValueError, "the list of environments is empty")


def test_empty_dict():
    expect_refusal({}, ValueError, "the dict of environments is empty")


@pytest.mark.parametrize("envs", [3, object(), [1, 2], lambda: 3])
def test_what_is_no_environment(envs):
    expect_refusal(envs, TypeError, "is no environment: it needs reset and step")


def test_factory_without_environment():
    expect_refusal(lambda: None, ValueError, "the environment factory returned None")


def test_unknown_id_lists_near_names():
    expect_refusal("CartPol-v1", ValueError, "CartPol-v1.*near names: .*CartPole-v1")
    expect_refusal("dm_control/cartpole-balanc", ValueError, "near names: .*cartpole-balance")


def test_same_instance_twice(record):
    env = Aim(record)
    expect_refusal([env, env], ValueError, "the same")
    env.close()


# --- mixed spaces


class Wide(Aim):
    def __init__(self, record):
        super().__init__(record)
        self.observation_space = spaces.Box(-4.0, 4.0, (3,), np.float32)


@pytest.mark.parametrize("other", [Wide, aim_discrete])
def test_mixed_spaces(record, other):
    words = "environment 1 has the (observation|action) space .* environment 0 has"
    expect_refusal([lambda: Aim(record), lambda: other(record)], ValueError, words)


@pytest.mark.parametrize("other", [Wide, aim_discrete])
def test_mixed_spaces_in_a_dict(record, other):
    words = "'?b'? has the (observation|action) space .* '?a'? has"
    expect_refusal({"a": lambda: Aim(record), "b": lambda: other(record)}, ValueError, words)


# --- names and sizes


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        ({"selection_type": "determinstic"}, "unknown selection .*near names: deterministic"),
        ({"parent_selection_type": "roulete"}, "unknown parent selection .*near names: roulette"),
        ({"crossover_type": "averag"}, "unknown crossover .*near names: average"),
        ({"mutation_type": "full_gausian"}, "unknown mutation .*near names: full_gaussian"),
    ],
)
def test_unknown_operator(record, choice, words):
    with pytest.raises(ValueError, match=words):
        evolve_with_env(lambda: Aim(record), linear(), **SMALL, **choice)
    assert record.made == 0


def test_unknown_head(record):
    words = "unknown action head 'squashed_gausian'; near names: squashed_gaussian"
    expect_refusal(lambda: Aim(record), ValueError, words, action="squashed_gausian")
    with pytest.raises(ValueError, match=words):
        make_action("squashed_gausian")


@pytest.mark.parametrize("name", ["pop_size", "low_rank"])
@pytest.mark.parametrize(("value", "error"), [(0, ValueError), (-1, ValueError), (1.5, TypeError)])
def test_sizes(record, name, value, error):
    words = f"{name} must be (at least 1|a whole number), not {value}"
    expect_refusal(lambda: Aim(record), error, words, **{name: value})
    with pytest.raises(error, match=words):
        Population(linear(), **{"pop_size": 2, "low_rank": 2, name: value})


@pytest.mark.parametrize(
    "name", ["num_generations", "num_episodes", "checkpoint_every", "horizon", "num_envs"]
)
@pytest.mark.parametrize("value", [0, -3])
def test_counts(record, name, value):
    with pytest.raises(ValueError, match=f"{name} must be at least 1, not {value}"):
        evolve_with_env(lambda: Aim(record), linear(), **{**SMALL, name: value})
    assert record.made == 0


def test_resume_without_a_folder(record):
    with pytest.raises(ValueError, match="resume=True wants checkpoint_dir="):
        evolve_with_env(lambda: Aim(record), linear(), resume=True, **SMALL)
    assert record.made == 0


@pytest.mark.parametrize("targets", [["5"], "encoder.*", ["1"]])
def test_targets_that_match_nothing(record, targets):
    with pytest.raises(ValueError, match=r"'0'.*'2'"):
        evolve_with_env(lambda: Aim(record), linear(), lora_targets=targets, **SMALL)


@pytest.mark.parametrize("model", [lambda x: x, "mlp", 3])
def test_model_that_is_no_module(record, model):
    with pytest.raises(TypeError, match=r"(?i)module"):
        evolve_with_env(lambda: Aim(record), model, **SMALL)


def test_model_without_a_linear(record):
    with pytest.raises(ValueError, match="no layer to adapt"):
        evolve_with_env(lambda: Aim(record), nn.Tanh(), **SMALL)


# --- fitness


@pytest.mark.parametrize(
    ("fitness", "error", "words"),
    [
        (lambda population: [0.0] * 3, ValueError, "shape .3,. for .* individuals"),
        (lambda population, ids: [[0.0]] * len(ids), ValueError, "shape .* individuals"),
        (lambda population: None, TypeError, "the fitness function gave NoneType None"),
        (lambda population, idx: None, TypeError, "gave None for individual 0"),
        (lambda population, idx: "good", TypeError, "gave 'good' for individual 0"),
        (lambda population, who: 0.0, ValueError, "this one takes .population, who."),
    ],
)
def test_fitness(record, fitness, error, words):
    with pytest.raises(error, match=words):
        evolve_with_env(lambda: Aim(record), linear(), fitness=fitness, **SMALL)
    with interact_with_env(lambda: Aim(record)) as interactor:
        population = interactor.population(linear(), pop_size=4, low_rank=2)
        with pytest.raises(error, match=words):
            interactor.evaluate(population, fitness=fitness)


def test_fitnesses_of_the_wrong_length():
    population = Population(linear(), pop_size=4, low_rank=2)
    with pytest.raises(ValueError, match=r"shape \(3,\) .* 4 individuals"):
        population.evolve_([1.0, 2.0, 3.0])


# --- policies and actions


def test_policy_whose_output_does_not_fit(record):
    words = "gives 2 numbers per observation, .* wants 1"
    expect_refusal(lambda: Aim(record), ValueError, words, model=linear(2, 2))
    words = "gives 2 numbers per observation, .* wants 3"
    expect_refusal(lambda: aim_discrete(record), ValueError, words, model=linear(2, 2))
    words = "gives 1 numbers per observation, the head SquashedGaussian wants 2 for Box"
    expect_refusal(lambda: Aim(record), ValueError, words, action="squashed_gaussian")
    for width in (2, 4):
        words = f"gives {width} numbers per observation, the head Categorical wants 3 for Discrete"
        model = linear(2, width)
        expect_refusal(
            lambda: aim_discrete(record), ValueError, words, model=model, action="categorical"
        )


def test_policy_whose_input_does_not_fit(record):
    expect_refusal(lambda: Aim(record), ValueError, "takes 5 numbers met 2", model=linear(5, 1))


def test_head_that_does_not_fit_the_space(record):
    words = "the head Categorical reads .* which does not fit Box"
    expect_refusal(lambda: Aim(record), ValueError, words, model=linear(2, 3), action="categorical")
    words = "the head Beta reads .* which does not fit Discrete"
    expect_refusal(
        lambda: aim_discrete(record), ValueError, words, model=linear(2, 6), action="beta"
    )


@pytest.mark.parametrize(
    ("action", "words"),
    [
        (lambda out: out.argmax(-1) + 3, "row 0 of the actions has [345], .* from 0 to 2"),
        (lambda out: out.argmax(-1) - 3, "row 0 of the actions has -[123]"),
        (lambda out: out.argmax(-1) * 0 + 0.5, "row 0 of the actions has 0.5"),
        (lambda out: out.argmax(-1)[:1], "gives 1 actions for [24] observations"),
        (lambda out: None, "no array of numbers|is a NoneType"),
        (lambda out: out, r"shape \[[24], 3\]"),
    ],
)
def test_action_outside_a_discrete_space(record, action, words):
    expect_refusal(
        lambda: aim_discrete(record), ValueError, words, model=linear(2, 3), action=action
    )


def test_action_outside_a_box_is_clipped_with_one_warning(record):
    settings = {"model": linear(), "action": lambda out: out * 0 + 5.0, **SMALL}
    with pytest.warns(UserWarning, match="outside its from_range") as caught:
        evolve_with_env(lambda: Aim(record), **settings)
    assert len(caught) == 1


def test_action_that_is_no_action(record):
    expect_refusal(
        lambda: Aim(record), TypeError, "action is a head, its name, a function", action=3
    )


@pytest.mark.parametrize("to_range", [(-3.0, 1.0), (1.0, -1.0)])
def test_range_that_does_not_fit(record, to_range):
    with pytest.raises(ValueError, match=r"range"):
        evolve_with_env(lambda: Aim(record), linear(), to_range=to_range, **SMALL)


# --- simulators


class Grows(Aim):
    """Its observation gets longer in the middle of an episode."""

    def step(self, action):
        observation, *rest = super().step(action)
        return np.append(observation, 0.0) if self.record.steps > 5 else observation, *rest


class BadReset(Aim):
    def reset(self, *, seed=None, options=None):
        if len(self.record.seeds) >= self.record.made > 2:
            message = "no licence"
            raise OSError(message)
        return super().reset(seed=seed)


class NoReward(Aim):
    def step(self, action):
        observation, _, *rest = super().step(action)
        return observation, None, *rest


def test_observation_that_changes_shape(record):
    words = r"observation of shape \(3,\), its space says \(2,\)"
    expect_refusal(lambda: Grows(record), ValueError, words)


def test_simulator_that_raises_in_its_second_reset(record):
    with pytest.raises(OSError, match="no licence") as caught:
        evolve_with_env(lambda: BadReset(record), linear(), **SMALL)
    notes = " ".join(caught.value.__notes__)
    assert all(word in notes for word in ("slot", "individual", "episode", "generation"))
    assert record.made > 2


def test_reward_none(record):
    expect_refusal(lambda: NoReward(record), TypeError, "reward None: a reward is one number")


def test_environment_without_spaces(record):
    class Blank:
        def reset(self):
            return 0

        def step(self, action):
            return 0, 0.0, True, {}

    expect_refusal(Blank, TypeError, "Blank has no observation_space: give it one")
