"""PufferLib's native environments, for real: batches in C that begin episodes by themselves."""

import functools
import sys

import numpy as np
import pytest
import torch

from populora_adapters.puffer_batches import Batch
from populora_adapters.pufferlib import make, make_batch
from populora_envs import evolve_with_env, interact_with_env, simulators
from populora_envs.adapter import Autoreset
from populora_envs.testing import check_adapter
from tests.adapters.puffers import HAS_NATIVE, always, native, play, vector

pufferlib = sys.modules["pufferlib"]
pytestmark = [
    pytest.mark.skipif(not HAS_NATIVE, reason="PufferLib was built without native environments"),
    pytest.mark.filterwarnings("ignore:.*cannot be seeded per episode"),
    pytest.mark.filterwarnings("ignore:PufferLib seeds a native environment"),
    pytest.mark.filterwarnings("ignore:.* does not say"),
    pytest.mark.filterwarnings("ignore:the environment names no time limit"),
]
TELLING = {
    "breakout": 1500,
    "drone": 600,
    "freeway": 2100,
    "pacman": 600,
    "pong": 3000,
    "squared": 200,
    "template": 200,
    "tetris": 600,
}
"""Environments that say of every end that it is one, and steps after which some episodes have ended."""
SILENT = {"checkers": 1500, "enduro": 9000, "go": 300, "grid": 1000, "tower_climb": 300}
SHARED = ["target", "rware", "trash_pickup", "terraform"]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def logged(name, count):
    """An environment that tells at every step which episodes have ended, whatever its flags say."""
    try:
        return native(name, count, log_interval=1)
    except TypeError:
        return native(name, count, report_interval=1)


def drive(name, count, steps):
    """Return what a raw environment says of its ends, and what its log says, under random actions."""
    env = logged(name, count)
    env.action_space.seed(1)
    env.reset(seed=5)
    flags, ends, lengths = 0, 0.0, []
    for _ in range(steps):
        *_, terminals, truncations, infos = env.step(env.action_space.sample())
        flags += int(terminals.sum())
        assert not truncations.any()
        for info in infos:
            ends += info.get("n", 0.0)
            lengths.append(info.get("episode_length"))
    env.close()
    return flags, ends, lengths


def by_hand(env, act, seed, late=False):
    """Returns and lengths of the first episodes of all lanes, and of the second ones."""
    count = env.num_agents
    observation, _ = env.reset(seed=seed)
    done = [[] for _ in range(count)]
    total, length, resets = np.zeros(count), np.zeros(count, int), np.zeros(count, bool)
    while min(map(len, done)) < 2:
        observation, reward, terminals, *_ = env.step(act(observation))
        played = ~resets
        total[played] += reward[played]
        length[played] += 1
        ends = terminals.astype(bool) & played
        for i in np.flatnonzero(ends):
            done[i].append((float(total[i]), int(length[i])))
        total[ends] = length[ends] = 0
        resets = ends if late else np.zeros(count, bool)
    return [lane[:2] for lane in done]


# --- what episodes give


def test_the_ground_truth_of_cartpole():
    run = play(native("cartpole", 1), always(1), pop_size=1, episode_seeds=[0])
    assert run.returns.tolist() == [[9.0]]  # its last step pays nothing
    assert run.lengths.tolist() == [[10]]
    assert run.ends == [["terminated"]]


@pytest.mark.parametrize(("name", "action"), [("cartpole", 1), ("squared", 2), ("connect4", 3)])
@pytest.mark.parametrize("form", ["one", "serial"])
def test_first_episodes_are_those_of_a_loop_by_hand(name, action, form):
    def made():
        if form == "one":
            return native(name, 6)
        settings = {"num_envs": 3}
        creator = pufferlib.ocean.env_creator(f"puffer_{name}")
        backend = vector.Serial
        return vector.make(creator, env_kwargs=settings, num_envs=2, backend=backend)

    hand = by_hand(made(), lambda o: np.full(6, action), seed=11, late=name == "connect4")
    run = play(made(), always(action), pop_size=6, episode_seeds=[11])
    assert run.returns[:, 0].tolist() == [lane[0][0] for lane in hand]
    assert run.lengths[:, 0].tolist() == [lane[0][1] for lane in hand]
    assert run.env_steps == sum(lane[0][1] for lane in hand)


@pytest.mark.parametrize(("name", "action"), [("cartpole", 0), ("connect4", 3)])
def test_second_episodes_in_a_wave_are_whole(name, action):
    """A slot that is played on, without a reset of all, begins where the simulator has begun anew."""
    env = native(name, 1)
    hand = by_hand(env, lambda o: np.full(1, action), seed=11, late=name == "connect4")[0]
    adapter = simulators.adapt([native(name, 1)])
    adapter.reset([11])
    played, total, length, skip = [], 0.0, 0, False
    while len(played) < 2:
        step = adapter.step(np.array([action]))
        if not skip:
            total, length = total + step.reward[0], length + 1
        if step.terminated[0]:
            played.append((total, length))
            total, length = 0.0, 0
        skip = bool(step.terminated[0]) and adapter.autoreset is Autoreset.NEXT_STEP
    assert played == hand


def test_all_episodes_of_many_individuals_are_whole_ones():
    """In each the last step alone pays nothing: a step too many or too few would show."""
    run = play(native("cartpole", 8), always(1), pop_size=30, num_episodes=4)
    assert torch.equal(run.returns, run.lengths.double() - 1.0)
    assert run.lengths.min() >= 8
    assert run.lengths.max() <= 13


def balance(observations):
    return (observations[:, 2] + 0.5 * observations[:, 3] > 0).long()


def test_cartpole_is_cut_where_it_begins_anew_without_a_word():
    run = play(native("cartpole", 4), balance, pop_size=4)
    assert run.lengths.tolist() == [[200]] * 4
    assert run.returns.tolist() == [[199.0]] * 4
    assert run.ends == [["horizon"]] * 4
    with pytest.warns(
        UserWarning, match="Cartpole begins anew after 200 steps and does not say so"
    ):
        interact_with_env(native("cartpole", 1)).close()


def test_actions_of_many_kinds_arrive():
    with interact_with_env(make_batch("pufferlib/drone", 2)) as interactor:
        fall = lambda outputs: -torch.ones(len(outputs), 4)  # noqa: E731
        run = interactor.rollout(interactor.population(pop_size=2), fall, episode_seeds=[3])
    assert run.returns.tolist() == [[-1.0]] * 2
    hand = native("drone", 2)
    hand.reset(seed=3)
    expected = [0, 0]
    for t in range(1, 500):
        *_, terminals, _, _ = hand.step(-np.ones((2, 4), np.float32))
        expected = [e or t * bool(end) for e, end in zip(expected, terminals, strict=True)]
    assert run.lengths[:, 0].tolist() == expected


# --- what the table of habits says is so


@pytest.mark.parametrize("name", TELLING)
def test_ends_are_flagged_when_they_are_logged(name):
    flags, ends, _ = drive(name, 8, TELLING[name])
    assert flags == ends
    assert flags >= 4
    adapter = simulators.adapt([native(name, 2)])
    assert adapter.autoreset is Autoreset.SAME_STEP
    assert len(adapter.notes) == 1
    adapter.close()


@pytest.mark.parametrize("name", SILENT)
def test_environments_that_do_not_flag_every_end_say_so(name):
    flags, ends, _ = drive(name, 4, SILENT[name])
    assert flags < ends
    with pytest.warns(UserWarning, match="does not say of every end that it is one"):
        interact_with_env(native(name, 2)).close()


def test_tripletriad_keeps_to_a_limit_of_30_steps_and_flags_a_win_a_step_early():
    flags, ends, lengths = drive("tripletriad", 4, 400)
    assert flags < ends
    assert max(length for length in lengths if length is not None) == 30
    adapter = simulators.adapt([native("tripletriad", 4)])
    assert (adapter.autoreset, adapter.time_limit) == (Autoreset.NEXT_STEP, 30)
    adapter.close()


@pytest.mark.parametrize("name", SHARED)
def test_agents_of_one_world_are_played_by_different_individuals_and_that_is_said(name):
    made = make(f"pufferlib/{name}")
    assert made.num_agents > 1
    with pytest.warns(UserWarning, match="another individual plays each"):
        interactor = interact_with_env(made)
    run = interactor.rollout(interactor.population(pop_size=2), horizon=5)
    assert run.lengths.tolist() == [[5], [5]]
    made.close()


@pytest.mark.parametrize(("name", "kind"), [("blastar", "Blastar"), ("cpr", "PyCPR")])
def test_environments_that_do_not_take_back_their_ends_are_refused(name, kind):
    with pytest.raises(ValueError, match=f"PufferLib's {kind} has no adapter"):
        interact_with_env(native(name, 2))


def test_dead_agents_of_cpr_end_at_every_step():
    env = native("cpr", 1)
    env.reset(seed=5)
    ends = [env.step(np.zeros(8, np.int32))[2].copy() for _ in range(100)]
    assert (np.stack(ends).sum(axis=0) > 10).any()


# --- the contract, seeds, batches


@pytest.mark.parametrize(
    ("name", "autoreset", "steps"),
    [
        ("cartpole", Autoreset.SAME_STEP, 100),
        ("squared", Autoreset.SAME_STEP, 100),
        ("tetris", Autoreset.SAME_STEP, 200),
        ("drone", Autoreset.SAME_STEP, 200),
        ("connect4", Autoreset.NEXT_STEP, 100),
        ("target", Autoreset.SAME_STEP, 20),
    ],
)
def test_it_keeps_the_contract(name, autoreset, steps):
    def made():
        return native(name, 3, **({"report_interval": 10**6} if name == "connect4" else {}))

    report = check_adapter(made, steps=steps)
    assert report.autoreset is autoreset
    assert not report.seeds_slots
    assert report.num_slots == (24 if name == "target" else 3)
    assert report.num_ends > 0 or name == "target"


def test_a_batch_of_the_same_size_repeats_its_episodes():
    def returns(count):
        with interact_with_env("pufferlib/cartpole", num_envs=count) as interactor:
            population = interactor.population(pop_size=6, init="random")
            return interactor.rollout(population, num_episodes=2).returns

    assert torch.equal(returns(3), returns(3))
    with pytest.warns(UserWarning, match="PufferLib seeds a native environment as a whole"):
        interact_with_env("pufferlib/cartpole").close()


def test_seeds_up_to_the_largest_give_different_episodes_in_every_slot():
    adapter = simulators.adapt([native("cartpole", 4)])
    begun = [adapter.reset([seed] * 4).copy() for seed in (7, 8, 2**30, 2**31 - 1, 7)]
    assert np.array_equal(begun[0], begun[-1])
    assert not any(np.array_equal(begun[0], other) for other in begun[1:4])
    assert len(np.unique(begun[0], axis=0)) == 4
    adapter.close()
    adapter.close()  # PufferLib itself would free its memory a second time


def test_what_a_step_gave_is_not_changed_by_the_next():
    adapter = simulators.adapt([native("cartpole", 2)])
    adapter.reset([3, 3])
    steps = [adapter.step(np.array([1, 1])) for _ in range(12)]
    assert isinstance(adapter, Batch)
    assert [step.terminated.any() for step in steps].count(True) == 2
    assert {float(reward) for step in steps for reward in step.reward} == {0.0, 1.0}
    adapter.close()


def test_an_id_of_connect4_plays_on_where_there_is_nothing_to_report():
    """By itself it raises a KeyError at step 128, unless a game ends just then."""
    env = native("connect4", 1)
    env.reset(seed=0)
    for _ in range(127):
        env.step(np.array([3]))
    with pytest.raises(KeyError, match="episode_length"):
        env.step(np.array([3]))
    made = make("pufferlib/connect4")
    made.reset(seed=0)
    ends = [bool(made.step(np.array([3]))[2][0]) for _ in range(300)]
    assert sum(ends) > 10
    made.close()


def test_a_factory_makes_one_batch():
    made = []

    def factory():
        made.append(native("cartpole", 5))
        return made[-1]

    with interact_with_env(factory) as interactor:
        interactor.evaluate(interactor.population(pop_size=7))
        assert interactor.num_envs == 5
    assert len(made) == 1


@pytest.mark.parametrize("form", ["id", "factory"])
def test_workers_make_batches_of_their_own(form):
    envs, settings = "pufferlib/cartpole", {"num_envs": 4}
    if form == "factory":
        envs, settings = functools.partial(native, "cartpole", 2), {}
    with interact_with_env(envs, num_workers=2, **settings) as interactor:
        population = interactor.population(pop_size=6, init="random")
        run = interactor.rollout(population, always(1), num_episodes=2)
    assert torch.equal(run.returns, run.lengths.double() - 1.0)


def test_evolution_runs_on_a_batch_that_is_passed():
    env = native("cartpole", 8)
    _, history = evolve_with_env(env, num_generations=2, pop_size=4, seed=0, return_history=True)
    assert len(history) == 2
    observation, _ = env.reset(seed=1)  # it is still open
    assert observation.shape == (8, 4)
    env.close()


def test_several_batches_and_copies_of_one_are_refused():
    with pytest.raises(ValueError, match="a Cartpole of PufferLib is a batch already"):
        interact_with_env([native("cartpole", 2), native("cartpole", 2)])
    with pytest.raises(ValueError, match="these environments exist already"):
        interact_with_env(native("cartpole", 2), num_envs=3)


def test_an_environment_of_ones_own_is_taken_for_one_that_resets_in_the_same_step():
    class Counting(pufferlib.PufferEnv):
        def __init__(self, num_agents):
            box = pufferlib.spaces.gymnasium.spaces
            self.single_observation_space = box.Box(0.0, 9.0, (1,), np.float32)
            self.single_action_space = box.Discrete(2)
            self.num_agents = num_agents
            super().__init__()

        def reset(self, seed=None):
            self.observations[:, 0] = 0.0
            return self.observations, []

        def step(self, actions):
            self.rewards[:] = actions
            self.observations += 1.0
            self.terminals[:] = self.observations[:, 0] == 3.0
            self.observations[self.terminals] = 0.0
            return self.observations, self.rewards, self.terminals, self.truncations, []

    run = play(Counting(3), always(1), pop_size=7)
    assert run.returns.tolist() == [[3.0]] * 7
    assert run.lengths.tolist() == [[3]] * 7
