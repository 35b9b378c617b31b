"""Isaac Lab itself cannot be had here: all of these play stand-ins that have its interface."""

import importlib.util
import sys

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.wrappers import OrderEnforcing, TimeLimit

from populora_adapters.isaaclab import adapt
from populora_envs import evolve_with_env, interact_with_env
from populora_envs.adapter import Autoreset
from populora_envs.simulators import find_adapter
from populora_envs.testing import check_adapter
from tests.adapters.isaac_double import (
    DirectMARLEnv,
    DirectRLEnv,
    ManagerBasedEnv,
    ManagerBasedRLEnv,
    RslRlVecEnvWrapper,
)
from tests.clock import numbered
from tests.imported import imported_by

KINDS = [DirectRLEnv, ManagerBasedRLEnv]
pytestmark = [
    pytest.mark.filterwarnings("ignore:these environments cannot be seeded per episode"),
    # A reset with a seed sets those of Python, NumPy and PyTorch.
    pytest.mark.filterwarnings("ignore:the action function, the policy or the environment drew"),
    pytest.mark.filterwarnings("ignore:Isaac Lab has one seed"),
    pytest.mark.filterwarnings("ignore:the actions of this environment have no bounds"),
]


def wrapped(env):
    """As `gymnasium.make` leaves it."""
    return OrderEnforcing(env)


def rollout(env, pop_size=4, **settings):
    """Individual i acts i times the clock that it sees."""
    with interact_with_env(env) as interactor:
        population = numbered(interactor, pop_size)
        return interactor.rollout(population, **settings)


# --- the interface of Isaac Lab, on stand-ins


@pytest.mark.parametrize("wrap", [lambda env: env, wrapped], ids=["bare", "wrapped"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_stand_in_is_found_and_keeps_the_contract(kind, wrap):
    assert find_adapter(wrap(kind())) is adapt
    report = check_adapter(lambda: wrap(kind((2, 5, 30))))
    assert report.adapter == "BatchInWaves"
    assert report.num_slots == 3
    assert report.autoreset is Autoreset.SAME_STEP
    assert not report.seeds_slots
    assert report.time_limit == 20
    assert report.num_ends == 25 + 10 + 2


@pytest.mark.parametrize("num_slots", [1, 3, 4])
@pytest.mark.parametrize("pop_size", [1, 4, 7])
def test_a_stand_in_pays_each_individual_its_own_returns(pop_size, num_slots):
    played = rollout(DirectRLEnv((3,) * num_slots), pop_size, num_episodes=2)
    assert played.returns.tolist() == [[i * (0 + 1 + 2)] * 2 for i in range(pop_size)]
    assert played.lengths.tolist() == [[3, 3]] * pop_size
    assert played.ends == [["terminated"] * 2] * pop_size


def test_a_stand_in_that_runs_to_its_limit_is_truncated():
    played = rollout(wrapped(DirectRLEnv((99, 99), limit=5)), 3)
    assert played.returns.tolist() == [[i * (0 + 1 + 2 + 3 + 4)] for i in range(3)]
    assert played.ends == [["truncated"]] * 3


def test_a_step_of_a_stand_in_pays_the_old_episode_and_shows_the_new_one():
    adapter = adapt([DirectRLEnv((2, 3))])
    adapter.reset([0, 0])
    actions = np.array([[5.0], [7.0]], np.float32)
    seen = []
    for _ in range(3):
        observation, reward, terminated, truncated = adapter.step(actions)
        assert reward.tolist() == [5.0, 7.0]
        assert not truncated.any()
        seen.append((observation[:, 0].tolist(), terminated.tolist()))
    assert seen == [
        ([1.0, 1.0], [False, False]),
        ([0.0, 2.0], [True, False]),
        ([1.0, 0.0], [False, True]),
    ]


def test_rewards_that_a_stand_in_writes_into_one_buffer_are_kept_apart():
    adapter = adapt([DirectRLEnv()])
    adapter.reset()
    one = adapter.step(np.full((3, 1), 1.0, np.float32))
    two = adapter.step(np.full((3, 1), 2.0, np.float32))
    assert one.reward.tolist() == [1.0] * 3
    assert two.reward.tolist() == [2.0] * 3


def first_returns_by_hand(env):
    """Return and length of the first episode of every sub-environment, the clock being the action."""
    groups, _ = env.reset()
    returns, found, steps = torch.zeros(env.num_envs), {}, 0
    while len(found) < env.num_envs:
        groups, reward, terminated, truncated, _ = env.step(groups["policy"].clone())
        returns += reward
        steps += 1
        for i in (terminated | truncated).nonzero().flatten().tolist():
            found.setdefault(i, (float(returns[i]), steps))
    return sorted(found.values())


def test_uneven_episodes_of_a_stand_in_are_counted_as_a_loop_by_hand_counts_them():
    lengths = (2, 5, 9)
    with interact_with_env(DirectRLEnv(lengths)) as interactor:
        population = numbered(interactor, 3)
        next(iter(population.individuals.values())).up.fill_(1.0)
        played = interactor.rollout(population)
    pairs = zip(played.returns[:, 0].tolist(), played.lengths[:, 0].tolist(), strict=True)
    assert sorted(pairs) == first_returns_by_hand(DirectRLEnv(lengths))
    assert played.env_steps == sum(lengths)


class Elsewhere(DirectRLEnv):
    """Its device is another one than that of the policy."""

    def __init__(self):
        super().__init__()
        self.device = torch.device("meta")

    def step(self, action):
        self.actions.append(action)
        zeros = torch.zeros(3)
        return {"policy": zeros[:, None]}, zeros, zeros.bool(), zeros.bool(), {}


def test_actions_reach_a_stand_in_as_tensors_on_its_device():
    env = Elsewhere()
    adapter = adapt([env])
    adapter.reset()
    adapter.step(np.zeros((3, 1), np.float32))
    assert env.actions[0].device.type == "meta"
    assert env.actions[0].dtype == torch.float32
    assert env.actions[0].shape == (3, 1)


def test_discrete_actions_and_observations_of_a_stand_in_have_a_dimension_there():
    env = ManagerBasedRLEnv((2, 2, 2, 2), action_space=spaces.Discrete(4))
    with interact_with_env(env) as interactor:
        assert interactor.encoder.shape == (1 + 10,)
        shown = interactor.reset()
        interactor.step(torch.tensor([0, 1, 2, 3]))
    assert shown[:, 1:].argmax(1).tolist() == [0, 1, 2, 3]
    assert env.actions[0].tolist() == [[0], [1], [2], [3]]
    assert env.actions[0].dtype == torch.int64


def test_only_the_group_of_the_policy_is_observed_on_stand_ins():
    for kind, size in ((DirectRLEnv, 1), (ManagerBasedRLEnv, 1 + 10)):
        with interact_with_env(kind()) as interactor:
            assert interactor.encoder.shape == (size,)
            assert not (interactor.reset() == 99.0).any()


# --- seeds


def test_what_a_stand_in_cannot_do_is_said_in_warnings():
    with (
        pytest.warns(UserWarning, match="one seed for all of its sub-environments"),
        pytest.warns(UserWarning, match=r"no bounds.*pass to_range=\(low, high\)"),
        pytest.warns(UserWarning, match="cannot be seeded per episode"),
    ):
        interact_with_env(DirectRLEnv())
    bounded = adapt([DirectRLEnv(action_space=spaces.Box(-1.0, 1.0, (1,)))])
    assert len(bounded.notes) == 1


def test_the_same_seed_gives_the_same_returns_on_a_stand_in():
    first, again = (rollout(DirectRLEnv(bonus=True), num_episodes=2) for _ in range(2))
    other = rollout(DirectRLEnv(bonus=True), num_episodes=2, episode_seeds=[6, 7])
    assert torch.equal(first.returns, again.returns)
    assert not torch.equal(first.returns, other.returns)
    assert len(set(first.returns.flatten().tolist())) == 8


def test_each_wave_of_a_stand_in_begins_with_one_seed_for_all():
    env = DirectRLEnv()
    rollout(env, pop_size=6, episode_seeds=[4])
    assert set(env.seeds) == {4}


# --- ranges


def test_actions_without_bounds_are_mapped_by_to_range_on_a_stand_in():
    env = DirectRLEnv()
    with interact_with_env(env, to_range=(-40.0, 40.0)) as interactor:
        interactor.reset()
        interactor.step(torch.tensor([[-1.0], [0.0], [1.0]]))
    assert env.actions[0].tolist() == [[-40.0], [0.0], [40.0]]


def test_actions_without_bounds_go_to_a_stand_in_as_they_are():
    env = DirectRLEnv()
    with interact_with_env(env) as interactor:
        interactor.reset()
        interactor.step(torch.tensor([[-3.0], [0.5], [100.0]]))
    assert env.actions[0].tolist() == [[-3.0], [0.5], [100.0]]


# --- evolution


@pytest.mark.parametrize("kind", KINDS)
def test_two_generations_run_on_a_stand_in(kind):
    env = wrapped(kind())
    policy, history = evolve_with_env(
        env, num_generations=2, pop_size=4, seed=0, return_history=True
    )
    assert len(history) == 2
    assert env.unwrapped.closes == 0
    shown = policy.act({"clock": np.zeros(1), "number": 3} if kind is KINDS[1] else np.zeros(1))
    assert shown.shape == (1,)


# --- what cannot be


def test_an_environment_that_was_made_here_is_closed_once():
    made = []
    with interact_with_env(lambda: made.append(DirectRLEnv()) or made[-1]) as interactor:
        interactor.close()
    assert [env.closes for env in made] == [1]
    adapter = adapt([DirectRLEnv()])
    adapter.close()
    adapter.close()


def test_a_factory_of_a_stand_in_is_called_once():
    made = []
    with interact_with_env(lambda: made.append(DirectRLEnv()) or wrapped(made[-1])) as interactor:
        played = interactor.rollout(numbered(interactor, 9))
    assert played.returns[:, 0].tolist() == [i * (0 + 1 + 2) for i in range(9)]
    assert [env.closes for env in made] == [1]


def test_a_stand_in_that_exists_is_neither_copied_nor_shared():
    with pytest.raises(ValueError, match="leave num_envs out"):
        interact_with_env(wrapped(DirectRLEnv()), num_envs=2)
    with pytest.raises(ValueError, match="a vector environment is one simulator"):
        interact_with_env(wrapped(DirectRLEnv()), num_workers=2)


def test_a_second_environment_is_refused():
    with pytest.raises(ValueError, match="there are 2 environments of Isaac Lab"):
        interact_with_env([DirectRLEnv(), wrapped(DirectRLEnv())])


def test_a_time_limit_around_a_stand_in_is_refused():
    with pytest.raises(ValueError, match=r"gymnasium's TimeLimit around a batch.*horizon="):
        interact_with_env(TimeLimit(wrapped(DirectRLEnv()), 5))


def test_several_agents_are_refused():
    with pytest.raises(TypeError, match="multi_agent_to_single_agent"):
        interact_with_env(wrapped(DirectMARLEnv()))


def test_an_environment_without_rewards_is_refused():
    with pytest.raises(TypeError, match="ManagerBasedEnv has neither rewards nor ends"):
        interact_with_env(ManagerBasedEnv())


def test_the_wrapper_of_a_training_library_is_refused():
    with pytest.raises(ValueError, match="RslRlVecEnvWrapper has the interface of a training"):
        interact_with_env(RslRlVecEnvWrapper(wrapped(DirectRLEnv())))


def test_observations_without_a_group_for_the_policy_are_refused():
    env = DirectRLEnv()
    env.single_observation_space = spaces.Dict({"critic": spaces.Box(0.0, 1.0, (3,))})
    with pytest.raises(ValueError, match=r"observes critic: .* 'policy', which is missing"):
        interact_with_env(env)


def test_nested_actions_are_refused():
    nested = spaces.Dict({"arm": spaces.Box(-1.0, 1.0, (2,))})
    with pytest.raises(TypeError, match="one tensor of actions"):
        interact_with_env(DirectRLEnv(action_space=nested))


def test_an_id_says_how_isaac_lab_is_started(monkeypatch):
    monkeypatch.setitem(sys.modules, "isaaclab", None)
    with pytest.raises(ImportError, match="wants Isaac Lab, which is not installed"):
        interact_with_env("isaaclab/Isaac-Cartpole-v0")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    with pytest.raises(ValueError, match=r"AppLauncher.*gymnasium\.make\(id, cfg="):
        interact_with_env("isaaclab/Isaac-Cartpole-v0")


def test_the_space_of_a_wrapper_around_a_stand_in_counts():
    class Halved(gymnasium.ActionWrapper):
        def __init__(self, env):
            super().__init__(env)
            self.action_space = spaces.Box(-2.0, 2.0, (3, 1), np.float32)

        def action(self, action):
            return action / 2

    env = DirectRLEnv()
    with interact_with_env(Halved(env)) as interactor:
        assert interactor.action_space == spaces.Box(-2.0, 2.0, (1,), np.float32)
        interactor.reset()
        interactor.step(torch.tensor([[-1.0], [0.0], [1.0]]))
    assert env.actions[0].tolist() == [[-1.0], [0.0], [1.0]]


def test_no_simulator_is_imported():
    code = (
        "from populora_adapters.isaaclab import adapt\n"
        "from tests.adapters.isaac_double import DirectRLEnv\n"
        "adapt([DirectRLEnv()]).reset()"
    )
    assert imported_by(code) == set()
