"""The older gym, for real: version 0.26 with its own wrappers, and environments as 0.21 wanted them."""

import sys

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces as new_spaces
from torch import nn

from populora_adapters.duck import read_space
from populora_envs import evolve_with_env, interact_with_env
from populora_envs.simulators import adapt, find_adapter
from populora_envs.testing import check_adapter
from tests.imported import imported_by

gym = pytest.importorskip("gym", reason="gym 0.26 is not installed")

from gym import spaces, wrappers  # noqa: E402 - after the skip
from gym.wrappers.compatibility import EnvCompatibility  # noqa: E402 - after the skip

pytestmark = pytest.mark.filterwarnings("ignore:.*WARN.*old step API:DeprecationWarning")


def cart_pole():
    # gym's checker of steps wants np.bool8, which NumPy 2 has no more.
    return gym.make("CartPole-v1", disable_env_checker=True)


def rollout(envs, outputs, action, seeds, *, pop_size=2, **settings):
    with interact_with_env(envs) as interactor:
        model = nn.Linear(interactor.encoder.shape[0], outputs)
        population = interactor.population(model, pop_size=pop_size, low_rank=1)
        return interactor.rollout(population, action=action, episode_seeds=seeds, **settings)


def choose(action):
    return lambda outputs: torch.full((len(outputs),), action)


def by_hand(env, action, seed):
    """Return what an episode pays, how long it is and how it ends, in gym's own interface."""
    env.reset(seed=seed)
    total, length, terminated, truncated = 0.0, 0, False, False
    while not terminated and not truncated:
        _, reward, terminated, truncated, _ = env.step(action)
        total, length = total + float(reward), length + 1
    return total, length, "terminated" if terminated else "truncated"


# --- gym's own environments


def old_step(env):
    return wrappers.StepAPICompatibility(env, output_truncation_bool=False)


@pytest.mark.parametrize(
    "envs",
    [
        cart_pole,
        lambda: [cart_pole() for _ in range(3)],
        lambda: old_step(cart_pole()),
        lambda: [cart_pole(), old_step(cart_pole())],
        lambda: wrappers.AutoResetWrapper(cart_pole()),
        lambda: wrappers.RecordEpisodeStatistics(cart_pole()),
    ],
    ids=["env", "list", "old step", "both steps", "autoreset", "recorded"],
)
def test_the_ground_truth_of_cart_pole(envs):
    run = rollout(envs(), 2, choose(1), [0, 1, 2])
    assert run.returns.tolist() == [[8.0, 9.0, 10.0]] * 2
    assert run.lengths.tolist() == [[8, 9, 10]] * 2
    assert run.ends == [["terminated"] * 3] * 2


class Lean(nn.Module):
    """Pushes towards the side to which the pole leans and falls."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2, bias=False)
        with torch.no_grad():
            self.layer.weight.copy_(torch.tensor([[0.0] * 4, [0.0, 0.0, 1.0, 0.5]]))

    def forward(self, observation):
        return self.layer(observation)


@pytest.mark.parametrize("wrap", [lambda env: env, old_step], ids=["five values", "four values"])
def test_a_time_limit_is_a_truncation_in_both_interfaces(wrap):
    with interact_with_env([wrap(cart_pole()), wrap(cart_pole())]) as interactor:
        assert interactor.players.entries[0].adapter.time_limit == 500
        population = interactor.population(Lean(), pop_size=2, low_rank=1, init="zero")
        run = interactor.rollout(population, episode_seeds=[0])
    assert run.returns.tolist() == [[500.0]] * 2
    assert run.ends == [["truncated"]] * 2


@pytest.mark.parametrize(
    ("name", "outputs", "action"),
    [
        ("MountainCar-v0", 3, 0),
        ("FrozenLake-v1", 4, 2),
        ("Taxi-v3", 6, 0),
        ("Blackjack-v1", 2, 1),
        ("CartPole-v1", 2, 0),
    ],
)
@pytest.mark.filterwarnings("ignore:the environment names no time limit")
def test_episodes_are_those_of_a_loop_by_hand(name, outputs, action):
    make = lambda: gym.make(name, disable_env_checker=True)  # noqa: E731
    seeds = [3, 4, 5]
    run = rollout([make(), make()], outputs, choose(action), seeds)
    expected = [by_hand(make(), action, seed) for seed in seeds]
    assert run.returns.tolist() == [[total for total, _, _ in expected]] * 2
    assert run.lengths.tolist() == [[length for _, length, _ in expected]] * 2
    assert run.ends == [[end for _, _, end in expected]] * 2


def test_a_list_may_hold_gyms_and_gymnasiums():
    make = lambda: gym.make("Pendulum-v1", disable_env_checker=True)  # noqa: E731
    zeros = lambda outputs: torch.zeros(len(outputs), 1)  # noqa: E731
    mixed = [make(), gymnasium.make("Pendulum-v1"), make()]
    run = rollout(mixed, 1, zeros, [0], pop_size=3)
    assert run.returns.tolist() == [[pytest.approx(-978.8000472468732, abs=1e-4)]] * 3
    assert run.ends == [["truncated"]] * 3
    with pytest.raises(ValueError, match=r"environment 1 .* has the observation space"):
        interact_with_env([cart_pole(), gymnasium.make("CartPole-v1")])  # gym's has no inf


def test_continuous_actions_fill_the_range_of_gyms_box():
    make = lambda: gym.make("Pendulum-v1", disable_env_checker=True)  # noqa: E731
    ones = lambda outputs: torch.ones(len(outputs), 1)  # noqa: E731
    run = rollout([make(), make()], 1, ones, [0])
    total, length, end = by_hand(make(), np.array([2.0], np.float32), 0)
    assert total == pytest.approx(-1664.741375716125, abs=1e-4)
    assert run.returns.tolist() == [[pytest.approx(total, abs=1e-6)]] * 2
    assert (run.lengths[0].item(), run.ends[0][0]) == (length, end) == (200, "truncated")


def test_gyms_environments_keep_the_contract_and_their_seeds():
    report = check_adapter(cart_pole)
    assert report.adapter == "DuckEnvs"
    assert report.seeds_slots
    assert report.time_limit == 500


def test_two_generations_run_and_workers_give_the_same():
    settings = {"num_generations": 2, "pop_size": 4, "num_envs": 2, "return_history": True}
    here, there = (evolve_with_env(cart_pole, num_workers=count, **settings)[1] for count in (0, 2))
    assert [entry["mean_fitness"] for entry in here] == [entry["mean_fitness"] for entry in there]


# --- environments of the user's own, as 0.21 and as 0.26 want them


class Old(gym.Env):
    """As 0.21 wants it: it pays the number drawn at the reset, for `length` steps."""

    observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, length=4):
        self.length = length
        self.generator = np.random.default_rng()

    def seed(self, seed=None):
        self.generator = np.random.default_rng(seed)
        return [seed]

    def reset(self):
        self.time, self.luck = 0, self.generator.uniform()
        return np.array([self.luck], np.float32)

    def step(self, action):
        self.time += 1
        return np.array([self.luck], np.float32), self.luck, self.time >= self.length, {}


class New(Old):
    """As 0.26 wants it."""

    def reset(self, *, seed=None, options=None):
        self.seed(seed)
        return super().reset(), {}

    def step(self, action):
        shown, reward, over, info = super().step(action)
        return shown, reward, over, False, info


class OldTimeLimit(gym.Wrapper):
    """What 0.21 did at a time limit."""

    def __init__(self, env, limit):
        super().__init__(env)
        self._max_episode_steps = limit

    def reset(self):
        self.elapsed = 0
        return self.env.reset()

    def step(self, action):
        shown, reward, done, info = self.env.step(action)
        self.elapsed += 1
        if self.elapsed >= self._max_episode_steps:
            info["TimeLimit.truncated"] = not done
            done = True
        return shown, reward, done, info


def luck(seed):
    return np.random.default_rng(seed).uniform()


FORMS = {
    "0.21 in its time limit": lambda length, limit: OldTimeLimit(Old(length), limit),
    "0.21 made compatible": lambda length, limit: wrappers.TimeLimit(
        EnvCompatibility(Old(length)), limit
    ),
    "0.26": lambda length, limit: wrappers.TimeLimit(New(length), limit),
    "0.26 that takes old steps": lambda length, limit: old_step(
        wrappers.TimeLimit(wrappers.OrderEnforcing(New(length)), limit)
    ),
}


@pytest.mark.parametrize("make", FORMS.values(), ids=list(FORMS))
@pytest.mark.parametrize(
    ("length", "steps", "end"), [(4, 4, "terminated"), (6, 6, "terminated"), (9, 6, "truncated")]
)
def test_own_environments_in_a_time_limit(make, length, steps, end):
    """An end in the very step of the limit is an end, no truncation."""
    run = rollout([make(length, 6) for _ in range(3)], 2, choose(0), [7, 8], pop_size=3)
    assert (
        run.returns.tolist()
        == [[pytest.approx(steps * luck(seed), abs=1e-9) for seed in (7, 8)]] * 3
    )
    assert run.lengths.tolist() == [[steps, steps]] * 3
    assert run.ends == [[end, end]] * 3


@pytest.mark.parametrize("make", FORMS.values(), ids=list(FORMS))
def test_own_environments_keep_the_contract_and_tell_their_limit(make):
    report = check_adapter(lambda: make(9, 6))
    assert report.seeds_slots
    assert report.time_limit == 6
    assert report.num_truncated == report.num_ends > 0


def test_a_wrapper_that_has_a_seed_of_its_own_gets_the_seed():
    class Noisy(gym.Wrapper):
        def seed(self, seed=None):
            self.noise = np.random.default_rng(seed)
            return self.env.seed(seed)

        def reset(self):
            return self.env.reset()

        def step(self, action):
            shown, reward, done, info = self.env.step(action)
            return shown, reward + self.noise.uniform(), done, info

    one = rollout(OldTimeLimit(Noisy(Old()), 6), 2, choose(0), [1, 2])
    three = rollout([OldTimeLimit(Noisy(Old()), 6) for _ in range(3)], 2, choose(0), [1, 2])
    assert torch.equal(one.returns, three.returns)


def test_a_wrapper_in_the_middle_that_takes_no_seed_leaves_them_unseeded():
    class Middle(gym.Wrapper):
        def reset(self):
            return self.env.reset()

    class Seeded(New):
        seed = None

        def reset(self, *, seed=None, options=None):
            self.time, self.luck = 0, 1.0
            return np.ones(1, np.float32), {}

    env = wrappers.TimeLimit(Middle(Seeded()), 6)
    with pytest.warns(UserWarning, match="cannot be seeded per episode"):
        assert rollout(env, 2, choose(0), None).returns.tolist() == [[4.0]] * 2


# --- what gym has besides


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (spaces.Box(-1.0, 2.0, (2, 3), np.float64), new_spaces.Box(-1.0, 2.0, (2, 3), np.float64)),
        (spaces.Box(0, 255, (4, 4, 3), np.uint8), new_spaces.Box(0, 255, (4, 4, 3), np.uint8)),
        (spaces.Discrete(3, start=-1), new_spaces.Discrete(3, start=-1)),
        (spaces.MultiDiscrete([[2, 3], [4, 5]]), new_spaces.MultiDiscrete([[2, 3], [4, 5]])),
        (spaces.MultiBinary((3, 2)), new_spaces.MultiBinary((3, 2))),
        (spaces.Text(5), new_spaces.Text(5)),
        (
            spaces.Dict(b=spaces.Tuple([spaces.Discrete(2)]), a=spaces.MultiBinary(2)),
            new_spaces.Dict(
                a=new_spaces.MultiBinary(2), b=new_spaces.Tuple([new_spaces.Discrete(2)])
            ),
        ),
    ],
    ids=lambda space: type(space).__name__,
)
def test_gyms_spaces_are_read(old, new):
    env = Old()
    env.observation_space = old
    assert read_space(env, "observation_space") == new


def test_a_space_of_gym_that_no_policy_can_see_is_refused():
    env = Old()
    env.observation_space = spaces.Sequence(spaces.Discrete(2))
    with pytest.raises(TypeError, match="Sequence is no space that is known"):
        interact_with_env(env)


def test_gyms_vector_environments_are_refused_by_name():
    env = gym.vector.SyncVectorEnv([New, New])
    with pytest.raises(ValueError, match="SyncVectorEnv holds 2 environments"):
        interact_with_env(env)


def test_an_unknown_id_is_gyms_own_error():
    with pytest.raises(gym.error.Error, match="CartPool"):
        interact_with_env(lambda: gym.make("CartPool-v1"))


def test_a_wrong_number_of_values_is_an_error_that_names_the_slot():
    """0.26's time limit around an environment as 0.21 wanted it takes four values for five."""
    with pytest.raises(ValueError, match="not enough values to unpack") as raised:
        rollout([wrappers.TimeLimit(Old(), 6)], 2, choose(0), [0])
    assert "in slot 0 of 1" in raised.value.__notes__


def test_gym_is_not_imported_to_adapt_what_is_not_its_own():
    assert find_adapter(Old()).__module__ == "populora_adapters.duck"
    assert adapt([Old(), Old()]).num_slots == 2
    code = "from populora_envs import interact_with_env; interact_with_env('CartPole-v1')"
    assert imported_by(code) == set()
    code = f"import sys; sys.path.insert(0, {sys.path[0]!r}); import populora_adapters.duck"
    assert imported_by(code) == set()
