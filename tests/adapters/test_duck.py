from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from populora_adapters.duck import read_space
from populora_envs import evolve_with_env, interact_with_env
from populora_envs.simulators import find_adapter
from populora_envs.testing import check_adapter
from tests.clock import LIMIT, SHOWN, Clock, DmClock, DuckClock, OldClock, anyone

unseeded = pytest.mark.filterwarnings("ignore:these environments cannot be seeded per episode")


def rollout(envs, pop_size=3, num_episodes=2, **settings):
    with interact_with_env(envs) as interactor:
        population = anyone(interactor, pop_size)
        return interactor.rollout(population, num_episodes=num_episodes, **settings)


@unseeded
@pytest.mark.parametrize("kind", [DuckClock, OldClock, Clock])
def test_any_single_environment_plays(kind):
    envs = [kind(), kind()]
    evaluated = rollout(envs)
    assert evaluated.returns.tolist() == [[6.0, 6.0]] * 3
    assert evaluated.lengths.tolist() == [[3, 3]] * 3
    assert evaluated.ends == [["terminated", "terminated"]] * 3
    assert sum(env.resets for env in envs) == 6
    assert all(env.closes == 0 for env in envs)


@unseeded
def test_an_environment_of_dm_envs_interface_goes_to_its_adapter():
    env = DmClock()
    assert type(find_adapter(env)([env])).__name__ == "DmEnvs"


@pytest.mark.parametrize(
    ("info", "end"),
    [({"TimeLimit.truncated": True}, "truncated"), ({}, "terminated")],
)
def test_the_older_interface_says_in_its_info_that_a_limit_cut(info, end):
    assert rollout(OldClock(info=info)).ends == [[end, end]] * 3


def test_a_dangling_time_limit_before_the_end_does_not_count():
    class Early(OldClock):
        def step(self, action):
            shown, reward, over, _ = super().step(action)
            return shown, reward, over, {"TimeLimit.truncated": not over}

    assert rollout(Early()).ends == [["terminated", "terminated"]] * 3


# --- D-23: seeding


def test_seed_is_used_where_reset_takes_none():
    envs = [OldClock(), OldClock()]
    rollout(envs, pop_size=2, episode_seeds=[8, 9])
    assert [env.seeds for env in envs] == [[8, 9], [8, 9]]


class OldWrapper:
    """The wrapper of the older gym, whose reset takes nothing."""

    def __init__(self, env):
        self.env = env

    def __getattr__(self, name):
        return getattr(self.env, name)

    @property
    def unwrapped(self):
        return getattr(self.env, "unwrapped", self.env)

    def reset(self):
        return self.env.reset()

    def step(self, action):
        return self.env.step(action)


def test_seed_is_used_on_the_innermost_environment():
    env = OldClock()
    rollout(OldWrapper(OldWrapper(env)), pop_size=1, episode_seeds=[8, 9])
    assert env.seeds == [8, 9]


def test_reset_takes_the_seed_where_it_can():
    class Keyword(DuckClock):
        def reset(self, **options):
            self.seeds.append(options["seed"])
            return super().reset()

    env = Keyword()
    rollout(env, pop_size=1, episode_seeds=[8, 9])
    assert env.seeds == [8, 9]


def test_a_wrapper_that_takes_no_seed_is_not_given_one():
    env = OldWrapper(Clock())
    with pytest.warns(UserWarning, match="cannot be seeded"):
        assert rollout(env).returns.tolist() == [[6.0, 6.0]] * 3


def test_an_environment_that_cannot_be_seeded_is_used_with_one_warning(recwarn):
    rollout([DuckClock(), DuckClock()])
    said = [str(warning.message) for warning in recwarn]
    assert len(said) == 1
    assert "cannot be seeded per episode" in said[0]


def test_each_member_of_a_list_is_seeded_its_own_way():
    class Seeded(DuckClock):
        def reset(self, seed=None):
            self.seeds.append(seed)
            return super().reset()

    envs = [OldClock(), Seeded()]
    rollout(envs, pop_size=2, episode_seeds=[8])
    assert [env.seeds for env in envs] == [[8], [8]]


class Drawn(DuckClock):
    """Pays the number it draws at the reset."""

    def __init__(self):
        super().__init__(length=2, pay=lambda time, action: self.luck)

    def draw(self, seed):
        self.seeds.append(seed)
        self.luck = np.random.default_rng(seed).uniform()
        return super().reset()


class ByPosition(Drawn):
    def reset(self, seed=None, /):
        return self.draw(seed)


class ByPositionOnly(Drawn):
    def reset(self, seed, /, **options):
        return self.draw(seed)


class ByName(Drawn):
    def reset(self, *, seed=None):
        return self.draw(seed)


class ByMethod(Drawn):
    def reset(self):
        return self.draw(self.start)

    def seed(self, seed):
        self.start = seed


class Forwarding:
    """Passes on whatever it is asked, and says not what; it has no `unwrapped`."""

    def __init__(self, env):
        self.env = env

    def __getattr__(self, name):
        return getattr(self.env, name)

    def reset(self, **options):
        return self.env.reset(**options)


@pytest.mark.parametrize(
    "make",
    [
        *(ByPosition, ByPositionOnly, ByName, ByMethod),
        *(lambda kind=kind: Forwarding(kind()) for kind in (ByName, ByMethod)),
    ],
    ids=["position", "position only", "name", "method", "name, forwarded", "method, forwarded"],
)
def test_seeds_decide_the_episodes_however_they_are_given(make):
    evaluated = rollout([make(), make()], episode_seeds=[4, 5])
    luck = [2 * np.random.default_rng(seed).uniform() for seed in (4, 5)]
    assert evaluated.returns.tolist() == [[pytest.approx(number) for number in luck]] * 3


@pytest.mark.parametrize("kind", [ByPosition, ByName, ByMethod])
def test_seeded_ones_keep_the_contract(kind):
    report = check_adapter(kind)
    assert report.seeds_slots
    assert report.time_limit == LIMIT


def test_workers_give_the_same_as_this_process():
    envs = [ByMethod(), ByMethod(), ByMethod()]
    here, there = (interact_with_env(envs, num_workers=count, seed=3) for count in (0, 2))
    with here, there:
        fitnesses = [one.evaluate(anyone(one, 5), num_episodes=3) for one in (here, there)]
    assert len(set(fitnesses[0].tolist())) == 1
    assert torch.equal(*fitnesses)


def test_two_generations_run():
    _, history = evolve_with_env(
        lambda: ByMethod(), num_generations=2, pop_size=4, num_envs=2, return_history=True
    )
    assert len(history) == 2


def test_a_wrapper_that_passes_all_keywords_on_gives_no_seed_to_what_takes_none():
    with interact_with_env(Forwarding(OldClock())) as interactor:
        assert interactor.players.entries[0].adapter.seeds_slots
    with pytest.warns(UserWarning, match="cannot be seeded"):
        assert rollout(Forwarding(DuckClock())).returns.tolist() == [[6.0, 6.0]] * 3
    env = OldClock()
    rollout(Forwarding(Forwarding(env)), pop_size=1, episode_seeds=[8, 9])
    assert env.seeds == [8, 9]


def test_a_reset_that_tells_nothing_of_its_parameters_is_given_none():
    class Untold:
        __signature__ = "unknown"

        def __init__(self, reset):
            self.reset = reset

        def __call__(self):
            return self.reset()

    env = DuckClock()
    env.reset = Untold(env.reset)
    with pytest.warns(UserWarning, match="cannot be seeded"):
        assert rollout(env).returns.tolist() == [[6.0, 6.0]] * 3


# --- what answers to every name


class Obliging:
    """A stand-in, such as one for an environment elsewhere, that has whatever it is asked for."""

    def __init__(self, env, answer):
        vars(self).update(_env=env, _answer=answer)
        self.observation_space, self.action_space = env.observation_space, env.action_space

    def reset(self):
        return self._env.reset()

    def step(self, action):
        return self._env.step(action)

    def __getattr__(self, name):
        return self._answer


@pytest.mark.parametrize("answer", [None, lambda *args: None, "text"], ids=repr)
def test_what_has_every_name_plays_and_its_seed_is_not_believed(answer):
    with pytest.warns(UserWarning, match="cannot be seeded per episode") as said:
        evaluated = rollout([Obliging(OldClock(), answer) for _ in range(2)], horizon=LIMIT)
    assert len(said) == 1
    assert evaluated.returns.tolist() == [[6.0, 6.0]] * 3


@unseeded
def test_workers_may_have_what_answers_to_every_name():
    envs = [Obliging(DuckClock(), lambda *args: None) for _ in range(2)]
    with interact_with_env(envs, num_workers=2) as interactor:
        fitnesses = interactor.evaluate(anyone(interactor, 3), horizon=LIMIT)
    assert fitnesses.tolist() == [6.0] * 3


@unseeded
def test_what_has_another_inside_for_ever_plays():
    class Endless(Obliging):
        def __init__(self):
            super().__init__(DuckClock(), None)

        def __getattr__(self, name):
            return Endless()

    assert rollout([Endless(), Endless()], horizon=LIMIT).returns.tolist() == [[6.0, 6.0]] * 3


def test_one_that_cannot_tell_what_it_wraps_plays():
    class Closed(OldClock):
        @property
        def unwrapped(self):
            message = "no connection"
            raise RuntimeError(message)

    envs = [Closed(), Closed()]
    evaluated = rollout(envs, pop_size=2, episode_seeds=[8])
    assert evaluated.returns.tolist() == [[6.0]] * 2
    assert [env.seeds for env in envs] == [[8], [8]]


@unseeded
def test_one_that_cannot_be_closed_and_has_no_dict_plays():
    class Bare:
        __slots__ = ("clock",)
        observation_space, action_space = SHOWN, spaces.Discrete(2)

        def __init__(self):
            self.clock = DuckClock()

        def reset(self):
            return self.clock.reset()

        def step(self, action):
            return self.clock.step(action)

    with interact_with_env(Bare, num_envs=2) as interactor:
        evaluated = interactor.rollout(anyone(interactor, 3), horizon=LIMIT)
    assert evaluated.returns.tolist() == [[6.0]] * 3


# --- what step returns


def one_number(kind):
    return {
        "tensors": torch.tensor,
        "tensors of one": lambda value: torch.tensor([value]),
        "arrays": np.array,
        "arrays of one": lambda value: np.array([value]),
        "scalars": lambda value: np.array([value])[0],
        "whole numbers": int,
        "floats": float,
    }[kind]


NUMBERS = [
    *("tensors", "tensors of one", "arrays", "arrays of one", "scalars", "whole numbers", "floats")
]


def old_form(shown, reward, terminated, truncated, info):
    cut = {"TimeLimit.truncated": truncated}
    return shown, reward, terminated, {**info, **cut}


@unseeded
@pytest.mark.parametrize("kind", NUMBERS)
@pytest.mark.parametrize("container", [tuple, list])
@pytest.mark.parametrize("form", [lambda *values: values, old_form], ids=["five", "four"])
@pytest.mark.parametrize("length", [3, 30])
def test_numbers_and_ends_of_every_type(kind, container, form, length):
    """A limit of 5 steps cuts the longer ones."""
    convert = one_number(kind)

    class Typed(DuckClock):
        def reset(self):
            return container([torch.ones(1, requires_grad=True), {}])

        def step(self, action):
            self.tick(action)
            over, cut = self.time % 5 == length, self.time % 5 == 0
            shown = torch.tensor([float(self.time)], requires_grad=True)
            done = over or (cut and form is old_form)
            return container(
                form(shown, convert(2), convert(done), convert(cut and not over), {"a": 1})
            )

    evaluated = rollout([Typed(), Typed()], pop_size=2, num_episodes=1)
    steps, end = (3, "terminated") if length == 3 else (5, "truncated")
    assert evaluated.returns.tolist() == [[2.0 * steps]] * 2
    assert evaluated.lengths.tolist() == [[steps]] * 2
    assert evaluated.ends == [[end]] * 2


@unseeded
@pytest.mark.parametrize("info", [None, [], "told", 3], ids=repr)
@pytest.mark.parametrize("kind", [DuckClock, OldClock])
def test_an_info_of_any_kind_is_left_alone(kind, info):
    class Told(kind):
        def reset(self):
            return (super().reset()[0], None) if kind is DuckClock else super().reset()

        def step(self, action):
            return (*super().step(action)[:-1], info)

    assert rollout(Told()).ends == [["terminated", "terminated"]] * 3


@unseeded
def test_observations_may_be_lists_and_results_named():
    class Named(NamedTuple):
        observation: Any
        reward: Any
        terminated: Any
        truncated: Any
        info: Any

    class Listed(DuckClock):
        def reset(self):
            return super().reset()[0].tolist()

        def step(self, action):
            shown, *rest = super().step(action)
            return Named(shown.tolist(), *rest)

    with interact_with_env([Listed(), Listed()]) as interactor:
        assert interactor.reset().tolist() == [[0.0], [0.0]]
        assert interactor.step([0, 0])[0].tolist() == [[1.0], [1.0]]
        assert interactor.evaluate(anyone(interactor, 3)).tolist() == [6.0] * 3


class Board(DuckClock):
    """Shows an array of its class, into which all of them write."""

    board = np.zeros(1, np.float32)

    def step(self, action):
        shown, *rest = super().step(action)
        self.board[:] = shown
        return (self.board, *rest)


@unseeded
def test_environments_that_write_into_one_array_are_refused():
    assert rollout(Board()).returns.tolist() == [[6.0, 6.0]] * 3
    with pytest.raises(ValueError, match="environments 0 and 1 show one array between them"):
        rollout([Board(), Board()])
    with pytest.raises(ValueError, match="show one array between them"):
        rollout(Board)


@unseeded
def test_environments_may_show_one_array_that_never_changes():
    class Blind(DuckClock):
        nothing = np.ones(1, np.float32)

        def step(self, action):
            return (self.nothing, *super().step(action)[1:])

    with interact_with_env([Blind(), Blind()]) as interactor:
        assert interactor.evaluate(anyone(interactor, 3)).tolist() == [6.0] * 3
        assert interactor.reset().tolist() == [[0.0], [0.0]]
        assert interactor.step([0, 0])[0].tolist() == [[1.0], [1.0]]


# --- D-17: what reset returns


class Pair(DuckClock):
    """Its observation is a pair of numbers, or what `spaces` says."""

    def __init__(self, returns, second=SHOWN):
        super().__init__()
        self.observation_space = spaces.Tuple((SHOWN, second))
        self.returns = returns

    def shown(self):
        return np.float32([self.time]), np.float32([self.time + 1])

    def reset(self):
        self.begin()
        return self.returns(self.shown())


class PairWithDict(Pair):
    def __init__(self, returns):
        super().__init__(returns, spaces.Dict(a=SHOWN))

    def shown(self):
        return np.float32([self.time]), {"a": np.float32([self.time + 1])}


def alone(shown):
    return shown


def with_info(shown):
    return shown, {"a": 1}


@unseeded
@pytest.mark.parametrize("returns", [alone, with_info])
@pytest.mark.parametrize("kind", [Pair, PairWithDict])
def test_a_pair_is_no_observation_with_info(kind, returns):
    with interact_with_env(kind(returns)) as interactor:
        assert interactor.reset().tolist() == [[0.0, 1.0]]
        assert interactor.step([0])[0].tolist() == [[1.0, 2.0]]
    with interact_with_env(kind(returns), flatten=False) as interactor:
        first, second = interactor.reset()
        assert first.tolist() == [[0.0]]
        second = second["a"] if kind is PairWithDict else second
        assert second.tolist() == [[1.0]]


@unseeded
def test_a_pair_reaches_the_model_as_a_pair_of_batches():
    class OfPair(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def forward(self, pair):
            assert isinstance(pair, tuple)
            return self.layer(torch.cat(pair, dim=-1))

    envs = [Pair(with_info), Pair(with_info)]
    with interact_with_env(envs, flatten=False) as interactor:
        population = interactor.population(OfPair(), pop_size=3, low_rank=1)
        assert interactor.evaluate(population).tolist() == [6.0] * 3


# --- what is no such environment


@unseeded
@pytest.mark.parametrize(
    ("result", "words"),
    [
        ((1, 2, 3), "returned 3 values"),
        (None, "returned a NoneType"),
        ((1,) * 6, "returned 6 values"),
        ({}, "a dict"),
    ],
)
def test_a_step_of_another_form_is_an_error(result, words):
    class Odd(DuckClock):
        def step(self, action):
            return result

    with pytest.raises(ValueError, match=words):
        rollout(Odd())


@unseeded
@pytest.mark.parametrize(
    ("returned", "words"),
    [
        (lambda shown: None, "reset returned None"),
        (lambda shown: (shown, {}, 1), "reset returned 3 values"),
        (lambda shown: ({}, shown), "reset returned 2 values"),
        (lambda shown: shown[None], r"observation of shape \(1, 1\), its space says \(1,\)"),
        (lambda shown: (np.zeros(2), {}), r"observation of shape \(2,\), its space says \(1,\)"),
    ],
)
def test_a_reset_of_another_form_is_an_error(returned, words):
    class Odd(DuckClock):
        def reset(self):
            shown, _ = super().reset()
            return returned(shown)

    with pytest.raises(ValueError, match=words) as raised:
        rollout([DuckClock(), Odd()])
    assert "in slot 1 of 2" in raised.value.__notes__


@unseeded
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("value", [0.5, 300.0, -1, np.nan], ids=repr)
@pytest.mark.parametrize(
    "convert", [np.asarray, torch.tensor, float], ids=["array", "tensor", "float"]
)
def test_an_observation_that_its_whole_numbers_cannot_hold_is_an_error(count, value, convert):
    """A picture scaled to 0..1 in a space of uint8 would be black."""

    class Scaled(DuckClock):
        def __init__(self):
            super().__init__()
            self.observation_space = spaces.Box(0, 255, (), np.uint8)

        def reset(self):
            super().reset()
            return convert(7.0)

        def step(self, action):
            _, *rest = super().step(action)
            return (convert(value if self.time == 2 else 7.0), *rest)

    with interact_with_env([Scaled() for _ in range(count)]) as interactor:
        assert interactor.reset().tolist() == [[7.0]] * count
        assert interactor.step([0] * count)[0].tolist() == [[7.0]] * count
        with pytest.raises(ValueError, match="its space holds uint8 alone"):
            interactor.step([0] * count)


@unseeded
@pytest.mark.parametrize(
    ("flags", "error", "words"),
    [
        (({"a": 1}, None), TypeError, r"returned \{'a': 1\} where it must say whether"),
        ((False, {}), TypeError, r"returned \{\} where it must say"),
        (("False", False), TypeError, "returned 'False' where"),
        (([], False), TypeError, r"returned \[\] where"),
        ((np.zeros(2, bool), False), ValueError, r"an end of the episode of shape \(2,\)"),
        ((torch.zeros(0), False), ValueError, r"an end of the episode of shape \(0,\)"),
    ],
)
def test_an_end_that_is_no_bool_is_an_error(flags, error, words):
    """Values in another order, as ``(observation, reward, done, info, more)``, end no episode."""

    class Odd(DuckClock):
        def step(self, action):
            shown, reward, *_ = super().step(action)
            return shown, reward, *flags, {}

    with pytest.raises(error, match=words) as raised:
        rollout([DuckClock(), Odd()])
    assert "in slot 1 of 2" in raised.value.__notes__


def test_values_in_another_order_are_an_error_for_gymnasiums_environments_too():
    class Odd(Clock):
        def step(self, action):
            shown, reward, over, cut, _ = super().step(action)
            return shown, reward, over, {"told": 1}, cut

    with pytest.raises(TypeError, match=r"returned .*told.* where"):
        rollout(Odd())


@unseeded
@pytest.mark.parametrize("reward", ["1.0", None, [1.0], np.ones(2), {}], ids=repr)
@pytest.mark.parametrize("kind", [DuckClock, OldClock])
def test_a_reward_that_is_no_number_is_an_error(kind, reward):
    with pytest.raises((TypeError, ValueError), match="a reward is one number"):
        rollout(kind(pay=lambda time, action: reward))


def test_a_batch_of_another_interface_is_refused():
    class Batch(DuckClock):
        num_envs = 3

    with pytest.raises(ValueError, match="Batch holds 3 environments behind an interface"):
        interact_with_env(Batch())


@pytest.mark.parametrize(
    ("missing", "has"), [("action_space", "action_spec"), ("observation_space", "observation_spec")]
)
def test_half_of_each_interface_is_an_error_that_names_what_is_missing(missing, has):
    class Half(DmClock):
        observation_space, action_space = SHOWN, spaces.Discrete(2)

    for name in {"action_spec", "observation_spec"} - {has}:
        setattr(Half, name, None)
    setattr(Half, missing, None)
    with pytest.raises(TypeError, match=f"Half has no {missing}"):
        interact_with_env(Half())


def test_an_environment_without_spaces_is_an_error():
    class Blind:
        def reset(self): ...
        def step(self, action): ...

    with pytest.raises(TypeError, match="Blind has no observation_space"):
        interact_with_env(Blind())


# --- spaces of another package


def foreign(name, base=object, **attributes):
    return type(name, (base,), attributes)()


FOREIGN = [
    (
        foreign("Box", low=np.zeros(2), high=np.ones(2), shape=(2,), dtype=np.float64),
        spaces.Box(0.0, 1.0, (2,), np.float64),
    ),
    (foreign("Discrete", n=3), spaces.Discrete(3)),
    (foreign("Discrete", n=3, start=-1), spaces.Discrete(3, start=-1)),
    (foreign("MultiDiscrete", nvec=np.array([2, 3])), spaces.MultiDiscrete([2, 3])),
    (foreign("MultiBinary", n=4), spaces.MultiBinary(4)),
    (foreign("Text", max_length=5), spaces.Text(5)),
    (
        foreign("Tuple", spaces=[foreign("Dict", spaces={"a": foreign("Discrete", n=2)})]),
        spaces.Tuple((spaces.Dict(a=spaces.Discrete(2)),)),
    ),
    (foreign("Switch", base=type("Discrete", (), {}), n=2), spaces.Discrete(2)),
]


@pytest.mark.parametrize(("space", "expected"), FOREIGN, ids=lambda value: type(value).__name__)
def test_spaces_of_another_package_are_read(space, expected):
    env = DuckClock()
    env.observation_space = space
    assert read_space(env, "observation_space") == expected


def test_a_space_of_no_known_kind_is_an_error():
    env = DuckClock()
    env.action_space = "left or right"
    with pytest.raises(TypeError, match="str is no space that is known"):
        interact_with_env(env)


def test_the_time_limit_is_an_attribute_of_the_environment():
    assert find_adapter(OldClock())([OldClock()]).time_limit == LIMIT
