import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from populora_adapters.duck import read_space
from populora_envs import interact_with_env
from populora_envs.simulators import find_adapter
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
    ("result", "words"), [((1, 2, 3), "returned 3 values"), (None, "returned NoneType values")]
)
def test_a_step_of_another_form_is_an_error(result, words):
    class Odd(DuckClock):
        def step(self, action):
            return result

    with pytest.raises(ValueError, match=words):
        rollout(Odd())


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
