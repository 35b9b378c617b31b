import copy
import sys

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from populora_envs import evolve_with_env, interact_with_env
from populora_envs.simulators import make
from tests.imported import imported_by

pytest.importorskip("pettingzoo", reason="PettingZoo is not installed")

import pettingzoo
from pettingzoo import ParallelEnv
from pettingzoo.utils import parallel_to_aec

from populora_adapters.pettingzoo import ParallelEnvs, ScoredAgent

SEEDS = [3, 4]


class Relay(ParallelEnv):
    """Agent number k leaves after k + 2 steps; its action 1 pays k + 1, plus the seed at the first step."""

    def __init__(self, agents="abc", late=()):
        self.metadata, self.render_mode, self.max_cycles = {"name": "relay"}, None, 10
        self.possible_agents, self._late = list(agents), late
        self.agents, self.steps, self.bonus = [], 0, 0

    def observation_space(self, agent):
        return spaces.Box(0.0, 10.0, (2,), np.float32)

    def action_space(self, agent):
        return spaces.Discrete(2)

    def _observe(self, agents):
        return {a: np.array([self.steps, self._number(a)], np.float32) for a in agents}

    def _number(self, agent):
        return self.possible_agents.index(agent)

    def reset(self, seed=None, options=None):
        self.agents = [agent for agent in self.possible_agents if agent not in self._late]
        self.steps, self.bonus = 0, seed or 0
        return self._observe(self.agents), {agent: {} for agent in self.agents}

    def step(self, actions):
        assert set(actions) == set(self.agents)
        acted = self.agents
        self.steps += 1
        bonus = self.bonus if self.steps == 1 else 0
        rewards = {a: (self._number(a) + 1) * int(actions[a]) + bonus for a in acted}
        ends = {a: self.steps == self._number(a) + 2 for a in acted}
        self.agents = [agent for agent in acted if not ends[agent]]
        cut = dict.fromkeys(acted, False)
        return self._observe(acted), rewards, ends, cut, {a: {} for a in acted}


def all_ones(logits):
    return torch.ones(len(logits), dtype=torch.int64)


def model(inputs, outputs):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(inputs, 8), nn.Tanh(), nn.Linear(8, outputs))


# --- who plays whom


def test_one_individual_plays_all_agents_and_its_fitness_is_their_mean():
    with interact_with_env([Relay(), Relay()]) as interactor:
        population = interactor.population(pop_size=5)
        played = interactor.rollout(population, action=all_ones, episode_seeds=[0, 9])
    expected = [(2 * 1 + 3 * 2 + 4 * 3) / 3, (2 * 1 + 3 * 2 + 4 * 3) / 3 + 9]
    assert played.returns.tolist() == [pytest.approx(expected)] * 5
    assert played.lengths.tolist() == [[4, 4]] * 5
    assert played.env_steps == 40
    assert played.ends == [["terminated"] * 2] * 5


@pytest.mark.parametrize(("agent", "expected"), [("a", 2.0), ("b", 6.0), ("c", 12.0)])
def test_the_return_of_a_named_agent_is_the_fitness(agent, expected):
    with interact_with_env(ScoredAgent(Relay(), agent)) as interactor:
        played = interactor.rollout(
            interactor.population(pop_size=3), action=all_ones, episode_seeds=[0]
        )
    assert played.returns.tolist() == [[expected]] * 3


def walkers():
    return pettingzoo.make("parallel", "sisl/multiwalker-v9", max_cycles=60)


def by_hand(env, policy, seed, act):
    """Returns of the agents of one episode in which `policy` plays them all, one by one."""
    observations, _ = env.reset(seed=seed)
    returns = dict.fromkeys(env.possible_agents, 0.0)
    length = 0
    while env.agents:
        with torch.inference_mode():
            actions = {
                agent: act(policy(torch.as_tensor(observations[agent], dtype=torch.float32)[None]))
                for agent in env.agents
            }
        observations, rewards, *_ = env.step(actions)
        length += 1
        for agent, reward in rewards.items():
            returns[agent] += float(reward)
    return returns, length


@pytest.mark.filterwarnings("ignore:.*precision lowered by casting")
@pytest.mark.parametrize("num_envs", [1, 2, 3])
def test_walkers_get_what_a_loop_by_hand_gives(num_envs):
    envs = [walkers() for _ in range(num_envs)]
    with interact_with_env(envs) as interactor:
        population = interactor.population(model(31, 4), pop_size=3, low_rank=4, init="random")
        played = interactor.rollout(population, action=torch.sign, episode_seeds=SEEDS)
        merged = [population.merge_(i) for i in range(3)]
    for i, policy in enumerate(merged):
        for episode, seed in enumerate(SEEDS):
            returns, length = by_hand(
                walkers(),
                policy,
                seed,
                lambda output: torch.sign(output)[0].numpy(),
            )
            assert played.returns[i, episode].item() == pytest.approx(
                np.mean(list(returns.values())), abs=1e-6
            )
            assert played.lengths[i, episode] == length


def test_fitness_does_not_depend_on_the_number_of_environments_or_workers():
    def returns(envs, **settings):
        with interact_with_env(envs, **settings) as interactor:
            population = interactor.population(pop_size=5, init="random")
            drawn = interactor.rollout(population, action="categorical", episode_seeds=SEEDS)
        return drawn.returns

    one = returns([Relay()])
    assert len(set(one.flatten().tolist())) > 2
    for count in (2, 7):
        assert torch.equal(one, returns([Relay() for _ in range(count)]))
    assert torch.equal(one, returns(Relay, num_envs=4))
    assert torch.equal(one, returns(Relay, num_envs=4, num_workers=2))
    assert torch.equal(one, returns([Relay() for _ in range(4)], num_workers=2))


def test_agents_of_one_environment_draw_different_noise():
    class Twins(Relay):
        def _number(self, agent):
            return 3  # for the policy and the rewards all are alike

    with interact_with_env(Twins()) as interactor:
        seen = []
        head = lambda logits: seen.append(logits) or all_ones(logits)  # noqa: E731
        interactor.rollout(interactor.population(pop_size=1), action=head, episode_seeds=[0])
        assert torch.equal(seen[0][0], seen[0][1])
        population = interactor.population(pop_size=1)
        run = interactor.rollout(population, action="categorical", episode_seeds=range(40))
    # Equal noise would pay multiples of 4 for all three.
    paid = run.returns[0] - torch.arange(40)
    assert any(round(3 * value) % 12 for value in paid.tolist())


def test_the_statistics_of_observations_count_every_agent():
    def moments(**settings):
        with interact_with_env([Relay(), Relay()], standardize=True, **settings) as interactor:
            population = interactor.population(pop_size=2)
            interactor.rollout(population, action=all_ones, episode_seeds=[0])
            population.generation += 1
            interactor.rollout(population, action=all_ones, episode_seeds=[0])
            normalizer = population.normalizer
        return int(normalizer.count), normalizer.mean.tolist()

    count, mean = moments()
    assert count == 2 * (2 + 3 + 4)
    numbers = [0] * 2 + [1] * 3 + [2] * 4
    assert mean[1] == pytest.approx(np.mean(numbers))
    assert moments(num_workers=2) == (count, mean)


def test_an_agent_that_is_not_there_from_the_start_scores_nothing():
    with interact_with_env(Relay(late="b")) as interactor:
        played = interactor.rollout(
            interactor.population(pop_size=2), action=all_ones, episode_seeds=[0]
        )
    assert played.returns.tolist() == [[pytest.approx((2 + 12) / 3)]] * 2


def test_a_horizon_cuts_all_agents_that_are_left():
    with interact_with_env(Relay()) as interactor:
        played = interactor.rollout(
            interactor.population(pop_size=1), action=all_ones, episode_seeds=[0], horizon=3
        )
    assert played.returns.tolist() == [[pytest.approx((2 + 6 + 9) / 3)]]
    assert played.ends == [["horizon"]]


# --- evolution, ids, checks


def test_two_generations_run_and_the_policy_acts_for_each_agent():
    policy, history = evolve_with_env(
        "pettingzoo/classic/rps-v2",
        num_generations=2,
        pop_size=4,
        num_envs=2,
        seed=0,
        horizon=10,
        return_history=True,
    )
    assert len(history) == 2
    assert policy.act(np.array(3)) in (0, 1, 2)


def test_an_environment_is_made_from_its_id():
    env = make("pettingzoo/sisl/multiwalker-v9")
    assert env.possible_agents == ["walker_0", "walker_1", "walker_2"]
    env.close()


def test_an_unknown_id_lists_near_names():
    with pytest.raises(ValueError, match=r"near names: .*sisl/multiwalker-v9"):
        make("pettingzoo/multiwalker-v9")


def test_a_missing_package_names_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "pettingzoo", None)
    with pytest.raises(ImportError) as raised:
        make("pettingzoo/classic/rps-v2")
    assert any("populora-envs[pettingzoo]" in note for note in raised.value.__notes__)


def test_an_environment_that_misses_a_package_of_its_own_says_which():
    with pytest.raises(ImportError, match=r"pettingzoo/atari/pong-v3 wants .*pettingzoo\[atari\]"):
        make("pettingzoo/atari/pong-v3")


def test_environments_with_turns_are_refused():
    with pytest.raises(TypeError, match=r"agents take turns: pass its parallel_env"):
        interact_with_env(parallel_to_aec(Relay()))


def test_different_agents_in_a_list_are_refused():
    with pytest.raises(ValueError, match=r"environment 1 has the agents \['a', 'b'\]"):
        interact_with_env([Relay(), Relay("ab")])
    with pytest.raises(ValueError, match=r"environment 1 has the agents .* scores b"):
        interact_with_env([Relay(), ScoredAgent(Relay(), "b")])


def test_agents_of_different_spaces_are_refused_by_name():
    class Uneven(Relay):
        def action_space(self, agent):
            return spaces.Discrete(3 if agent == "b" else 2)

    with pytest.raises(ValueError, match="environment 0, agent b has the action space"):
        interact_with_env(Uneven())


def test_an_unknown_agent_is_refused():
    with pytest.raises(ValueError, match="there is no agent 'd': the environment has a, b, c"):
        ScoredAgent(Relay(), "d")


def test_a_scored_environment_can_be_copied():
    assert copy.deepcopy(ScoredAgent(Relay(), "b")).scored_agent == "b"


def test_an_error_names_the_individual_and_the_environment():
    class Broken(Relay):
        def step(self, actions):
            if self.steps == 1:
                message = "the rope broke"
                raise RuntimeError(message)
            return super().step(actions)

    with (
        interact_with_env([Relay(), Broken()]) as interactor,
        pytest.raises(RuntimeError, match="the rope broke") as raised,
    ):
        interactor.rollout(interactor.population(pop_size=2), action=all_ones)
    notes = " ".join(raised.value.__notes__)
    assert "in slot 3 of 6" in notes
    assert "individual 1, episode 0, step 1" in notes


def test_slots_of_a_team_do_not_begin_alone():
    with interact_with_env([Relay(), Relay()]) as interactor:
        interactor.reset()
        mask = np.arange(6) == 1
        with pytest.raises(ValueError, match=r"slots \[1\] cannot begin alone"):
            interactor.reset(slots=mask)
        interactor.reset(slots=np.arange(6) >= 3)


def test_an_adapter_knows_its_time_limit():
    assert ParallelEnvs([walkers()]).time_limit == 60
    endless = Relay()
    del endless.max_cycles
    assert ParallelEnvs([endless]).time_limit is None


def test_no_other_simulator_is_imported():
    code = "from populora_envs.simulators import make; make('pettingzoo/classic/rps-v2')"
    assert imported_by(code) == {"pettingzoo"}
