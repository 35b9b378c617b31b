import functools

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from populora_envs import interact_with_env
from populora_envs.sources import as_factory, is_single, open_sources
from tests.clock import Clock, ClockVector, DmClock, OldClock, anyone


class Made(Clock):
    """A clock that is known to its class."""

    all: list = []  # noqa: RUF012 - emptied before each test

    def __init__(self, *args, **settings):
        super().__init__(*args, **settings)
        Made.all.append(self)


@pytest.fixture(autouse=True)
def made():
    Made.all.clear()
    return Made.all


def closes():
    return [env.closes for env in Made.all]


def slots_of(envs, **settings):
    with interact_with_env(envs, **settings) as interactor:
        return interactor.num_envs


# --- what is taken


def test_what_the_user_opened_is_played_and_stays_open():
    first, second = Clock(), Clock()
    with interact_with_env([first, second]) as interactor:
        assert interactor.evaluate(anyone(interactor, 2)).tolist() == [6.0, 6.0]
        assert interactor.num_envs == 2
    assert (first.resets, second.resets) == (1, 1)
    assert (first.closes, second.closes) == (0, 0)


FACTORIES = {
    "class": Made,
    "lambda": lambda: Made(),
    "partial": functools.partial(Made, 3),
    "list of classes": [Made, Made],
    "list of lambdas": [lambda: Made(), lambda: Made(3)],
    "tuple": (Made, Made),
    "mixed list": [Made, lambda: Made()],
    "list of lists": [[Made], [Made, Made]],
    "factory of a list": lambda: [Made(), Made()],
    "factory of factories": lambda: [Made, Made],
    "factories of lists": [lambda: [Made(), Made()], Made],
}


@pytest.mark.parametrize("envs", FACTORIES.values(), ids=FACTORIES)
def test_what_was_opened_here_is_closed_once(envs, made):
    interactor = interact_with_env(envs)
    assert interactor.evaluate(anyone(interactor, 3), num_episodes=2).tolist() == [6.0] * 3
    assert sum(env.resets for env in made) == 6
    assert closes() == [0] * len(made)
    interactor.close()
    interactor.close()
    assert closes() == [1] * len(made)


def test_dicts_hold_anything_that_can_be_passed():
    opened = Clock(1)
    with interact_with_env({"mine": opened, "class": Made, "list": [Made, Made]}) as interactor:
        evaluated = interactor.rollout(anyone(interactor, 2))
        assert evaluated.returns.tolist() == [[1.0, 6.0, 6.0]] * 2
        assert evaluated.fitnesses.tolist() == [pytest.approx(13 / 3)] * 2
    assert opened.closes == 0
    assert set(closes()) == {1}


def test_a_vector_environment_of_the_user_stays_open():
    envs = SyncVectorEnv([Made, Made])
    with interact_with_env(envs) as interactor:
        assert interactor.num_envs == 2
        assert interactor.evaluate(anyone(interactor, 3)).tolist() == [6.0] * 3
    assert closes() == [0, 0]


def test_a_factory_may_give_a_vector_environment():
    with interact_with_env(lambda: SyncVectorEnv([Made, Made])) as interactor:
        assert interactor.evaluate(anyone(interactor, 5)).tolist() == [6.0] * 5
        assert interactor.num_envs == 2
    assert closes() == [1, 1]


def test_a_list_of_one_vector_environment_is_that():
    assert slots_of([SyncVectorEnv([Clock, Clock])]) == 2


# --- copies


@pytest.mark.parametrize(
    ("pop_size", "num_episodes", "expected"), [(1, 1, 1), (3, 2, 6), (40, 2, 64)]
)
def test_a_factory_grows_to_one_slot_per_job_and_at_most_64(pop_size, num_episodes, expected):
    with interact_with_env(Made) as interactor:
        assert interactor.num_envs == 1
        interactor.evaluate(anyone(interactor, pop_size), num_episodes=num_episodes)
        assert interactor.num_envs == expected
    assert closes() == [1] * expected


def test_a_factory_grows_as_it_is_needed_and_never_shrinks():
    with interact_with_env(Made) as interactor:
        sizes = []
        for pop_size in (2, 5, 3):
            fitness = interactor.evaluate(anyone(interactor, pop_size))
            assert fitness.tolist() == [6.0] * pop_size
            sizes.append(interactor.num_envs)
    assert sizes == [2, 5, 5]


def test_num_envs_is_a_number_of_copies_that_stays():
    with interact_with_env(Made, num_envs=3) as interactor:
        assert interactor.num_envs == 3
        assert interactor.evaluate(anyone(interactor, 5)).tolist() == [6.0] * 5
        assert interactor.num_envs == 3


def test_num_envs_is_for_every_factory_of_a_dict():
    assert slots_of({"a": Clock, "b": lambda: Clock(2)}, num_envs=2) == 4


@pytest.mark.parametrize("num_envs", [0, -1])
def test_num_envs_below_one_is_an_error(num_envs):
    with pytest.raises(ValueError, match="num_envs must be at least 1"):
        interact_with_env(Clock, num_envs=num_envs)


@pytest.mark.parametrize(
    "envs",
    [
        lambda: Made(),
        lambda: [Made()],
        lambda: [Made],
        lambda: SyncVectorEnv([Made]),
    ],
    ids=["environment", "list", "list of factories", "vector environment"],
)
def test_num_envs_with_environments_that_exist_is_an_error(envs):
    given = envs()
    with pytest.raises(ValueError, match=r"num_envs makes copies|cannot be rebuilt"):
        interact_with_env(given, num_envs=2)
    assert set(closes()) <= {0}


@pytest.mark.parametrize("envs", [lambda: [Made()], lambda: SyncVectorEnv([Made])])
def test_num_envs_with_a_factory_of_several_is_an_error(envs):
    with pytest.raises(ValueError, match="a factory or of one single"):
        interact_with_env(envs, num_envs=2)
    assert closes() == [1]


# --- what is refused


@pytest.mark.parametrize(
    ("envs", "kind", "words"),
    [
        (None, ValueError, "there is no environment"),
        ([], ValueError, "list of environments is empty"),
        ((), ValueError, "list of environments is empty"),
        ([[], []], ValueError, "list of environments is empty"),
        ({}, ValueError, "dict of environments is empty"),
        ({"a": []}, ValueError, "list of environments is empty"),
        ({"a": {"b": Clock}}, TypeError, "pass the dict itself"),
        (lambda: None, ValueError, "factory returned None"),
        ([Clock, lambda: None], ValueError, "factory returned None"),
        (list, ValueError, "list of environments is empty"),
        (lambda: {"a": Made()}, TypeError, "pass the dict itself"),
        (3, TypeError, "int is no environment"),
        ([Clock, 3], TypeError, "int is no environment"),
        (object, TypeError, "object is no environment"),
        (lambda: 3, TypeError, "int is no environment"),
        ("CartPole-v7", ValueError, "near names: CartPole-v1"),
        (["CartPole-v1", "CartPole-v7"], ValueError, "near names: CartPole-v1"),
    ],
    ids=str,
)
def test_what_is_no_environment_is_a_clear_error(envs, kind, words):
    with pytest.raises(kind, match=words):
        interact_with_env(envs)
    assert set(closes()) <= {1}


def test_lambdas_of_a_loop_that_give_one_instance_are_an_error():
    envs = [Clock() for _ in range(3)]
    with pytest.raises(ValueError, match=r"members 0 and 1 are the same instance.*lambda e=e: e"):
        interact_with_env([lambda: env for env in envs])  # noqa: B023 - the mistake
    assert slots_of([lambda env=env: env for env in envs]) == 3


def test_lambdas_of_a_loop_that_make_equal_environments_are_legal():
    assert slots_of([lambda: Clock(i) for i in range(3)]) == 3  # noqa: B023 - legal


def test_one_instance_twice_in_a_list_is_an_error():
    env = Clock()
    with pytest.raises(ValueError, match="members 0 and 2 are the same instance"):
        interact_with_env([env, Clock(), env])
    assert env.closes == 0


def test_a_factory_of_one_instance_cannot_be_copied():
    env = Clock()
    with pytest.raises(ValueError, match="the same instance twice"):
        interact_with_env(lambda: env, num_envs=2)
    with interact_with_env(lambda: env) as interactor:
        population = anyone(interactor, 2)
        with pytest.raises(ValueError, match="the same instance twice"):
            interactor.evaluate(population)


def wide(**settings):
    env = Made(**settings)
    env.observation_space = spaces.Box(-1.0, 1.0, (3,), np.float32)
    return env


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (wide, r"environment {} has the observation space .*\(3,\).*environment {} has .*\(1,\)"),
        (
            functools.partial(Made, action_space=spaces.Discrete(3)),
            r"environment {} has the action space Discrete\(3\), environment {} has Discrete\(2\)",
        ),
    ],
)
def test_mixed_spaces_are_an_error_that_names_slots_and_spaces(other, words):
    with pytest.raises(ValueError, match=words.format(1, 0)):
        interact_with_env([Made, other])
    assert closes() == [1, 1]
    with pytest.raises(ValueError, match=words.format("'b'", "'a'")):
        interact_with_env({"a": Made, "b": other})
    assert closes() == [1] * 4


class OfDmEnv(DmClock):
    __module__ = "dm_env.somewhere"


@pytest.mark.parametrize("second", [DmClock, OfDmEnv])
def test_environments_of_different_spaces_are_an_error_that_names_both_kinds(second):
    if second is DmClock:  # both go to the duck adapter
        first, last = "environment 1 is a DmClock.*0 a OldClock", "1 is a OldClock.*0 a DmClock"
    else:
        first = r"environment 1 \(a OfDmEnv\) has the observation .*environment 0 \(a OldClock\)"
        last = r"environment 1 \(a OldClock\) has the observation .*environment 0 \(a OfDmEnv\)"
    with pytest.raises(ValueError, match=first):
        interact_with_env([OldClock(), second()])
    with pytest.raises(ValueError, match=last):
        interact_with_env([second(), OldClock()])


def test_vector_environments_do_not_go_in_a_list():
    with pytest.raises(ValueError, match="not vector environments"):
        interact_with_env([SyncVectorEnv([Clock]), SyncVectorEnv([Clock])])


# --- closing after a failure


def test_everything_is_closed_when_a_later_factory_fails():
    def fail():
        message = "no licence"
        raise LookupError(message)

    for envs in ([Made, Made, fail], {"a": Made, "b": [Made, fail]}):
        with pytest.raises(LookupError, match="no licence"):
            interact_with_env(envs)
    assert closes() == [1, 1, 1, 1]


def test_everything_is_closed_when_growing_fails():
    def limited():
        if len(Made.all) == 3:
            message = "no licence"
            raise LookupError(message)
        return Made()

    with interact_with_env(limited) as interactor:
        population = anyone(interactor, 8)
        with pytest.raises(LookupError, match="no licence"):
            interactor.evaluate(population)
        assert interactor.evaluate(anyone(interactor, 1)).tolist() == [6.0]
    assert closes() == [1, 1, 1]


def test_everything_is_closed_when_a_step_fails():
    def fail(time, action):
        message = "no licence"
        raise LookupError(message)

    with interact_with_env([Made, functools.partial(Made, pay=fail)]) as interactor:
        population = anyone(interactor, 2)
        with pytest.raises(LookupError, match="no licence"):
            interactor.evaluate(population)
    assert closes() == [1, 1]


def test_everything_is_closed_when_one_cannot_be():
    class Stuck(Made):
        def close(self):
            super().close()
            message = "stuck"
            raise LookupError(message)

    interactor = interact_with_env({"a": [Made, Stuck, Made], "b": Made})
    with pytest.raises(LookupError, match="stuck"):
        interactor.close()
    assert closes() == [1] * 4
    interactor.close()
    assert closes() == [1] * 4


def test_a_bad_setting_closes_what_was_opened():
    with pytest.raises(ValueError, match="to_range"):
        interact_with_env(
            functools.partial(Made, action_space=spaces.Box(-1.0, 1.0, (1,))), to_range=(-9, 9)
        )
    assert closes() == [1]


# --- the parts


def test_a_callable_environment_is_no_factory():
    class Callable(Clock):
        def __call__(self): ...

    assert as_factory(Callable()) is None
    assert as_factory(Clock()) is None
    assert as_factory(3) is None
    assert as_factory(Clock) is Clock


def test_a_vector_environment_is_not_single():
    assert is_single(Clock())
    assert not is_single(ClockVector([1, 2], AutoresetMode.SAME_STEP))


def test_sources_are_named_by_the_keys_of_a_dict():
    opened = open_sources({"a": Clock, 3: Clock})
    assert list(opened) == ["a", "3"]
    assert list(open_sources(Clock)) == [""]
