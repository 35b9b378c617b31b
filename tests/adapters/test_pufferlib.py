"""PufferLib's emulation, its wrappers, its vector environments and its ids, for real."""

import multiprocessing
import signal
import sys
from importlib.util import find_spec
from pathlib import Path

import gymnasium
import numpy as np
import psutil
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

from populora_adapters.pufferlib import make, make_batch
from populora_envs import evolve_with_env, interact_with_env, simulators
from populora_envs.adapter import Autoreset
from populora_envs.testing import check_adapter
from tests.adapters.puffers import (
    HAS_NATIVE,
    Parts,
    always,
    creator,
    emulated,
    env_creator,
    play,
    serial,
    vector,
)
from tests.clock import anyone
from tests.imported import imported_by
from tests.test_ground_truth import GYMNASIUM, check
from tests.test_ground_truth import play as play_row

pufferlib = sys.modules["pufferlib"]
needs_native = pytest.mark.skipif(
    not HAS_NATIVE, reason="PufferLib was built without its native environments"
)
needs_pettingzoo = pytest.mark.skipif(
    find_spec("pettingzoo") is None, reason="PufferLib's small environments need PettingZoo"
)
needs_processes = pytest.mark.skipif(
    psutil.cpu_count(logical=False) is None,
    reason="PufferLib's Multiprocessing needs to know the number of cores",
)
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*cannot be seeded per episode"),
    pytest.mark.filterwarnings("ignore:PufferLib seeds a native environment"),
    pytest.mark.filterwarnings("ignore:PufferLib's Multiprocessing seeds"),
    pytest.mark.filterwarnings("ignore:Cartpole begins anew"),
    pytest.mark.filterwarnings("ignore:.*precision lowered by casting"),
    pytest.mark.filterwarnings("ignore:the environment names no time limit"),
]
ROWS = [row for row in GYMNASIUM if row.env.startswith(("CartPole", "Pendulum"))]
ONES = [5, 1, 2]


@pytest.fixture(autouse=True)
def nobody_stays():
    """A process of PufferLib's that a failing test leaves would be waited for at the end of all tests."""
    yield
    for process in multiprocessing.active_children():
        process.kill()
        process.join()


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def in_time():
    """End a test that waits for ever."""

    def end(*_):
        message = "PufferLib waits for ever"
        raise TimeoutError(message)

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def processes(make_one, count, *args, workers=1, **settings):
    made = creator(make_one, *args)
    backend = vector.Multiprocessing
    return vector.make(made, num_envs=count, num_workers=workers, backend=backend, **settings)


# --- what episodes give


@pytest.mark.parametrize("row", ROWS, ids=str)
@pytest.mark.parametrize("form", ["env", "list", "serial"])
def test_the_ground_truth(form, row):
    envs, pop_size = emulated(row.env), 1
    if form != "env":
        # The third individual plays in a slot that has been used before.
        envs, pop_size = [envs, emulated(row.env)], 3
    if form == "serial":
        envs = serial(row.env, 2)
    check(play_row(envs, row, pop_size), row, pop_size)


@pytest.mark.parametrize("form", [emulated, creator, serial])
def test_episodes_are_those_of_a_loop_by_hand(form):
    def by_hand(env, seed):
        env.reset(seed=seed)
        rewards = []
        while not env.done:
            _, reward, *_ = env.step(0)
            rewards.append(reward)
        return sum(rewards), len(rewards)

    raw = emulated("CartPole-v1")
    expected = [by_hand(raw, seed) for seed in ONES]
    given = {
        emulated: lambda: [emulated("CartPole-v1"), emulated("CartPole-v1")],
        creator: lambda: creator("CartPole-v1"),
        serial: lambda: serial("CartPole-v1", 4),
    }[form]()
    run = play(given, always(0), pop_size=5, episode_seeds=ONES)
    assert run.returns.tolist() == [[total for total, _ in expected]] * 5
    assert run.lengths.tolist() == [[length for _, length in expected]] * 5
    assert run.env_steps == 5 * sum(length for _, length in expected)


def test_workers_give_the_same_numbers():
    def returns(num_workers):
        with interact_with_env(creator("CartPole-v1"), num_workers=num_workers) as interactor:
            population = interactor.population(pop_size=6, init="random")
            return interactor.rollout(population, episode_seeds=ONES).returns

    alone = returns(0)
    assert len(set(alone.flatten().tolist())) > 3
    assert torch.equal(alone, returns(2))


# --- observations and actions that PufferLib packs


def seen_by(envs, **settings):
    """What the policy of one individual sees, and what it earns with the actions (2, 3)."""
    seen = []

    def act(observations):
        seen.append(observations[0].tolist())
        actions = torch.tensor([[2, 3]] * len(observations))
        return tuple(actions.T) if isinstance(envs, Parts) else actions

    run = play(envs, act, pop_size=1, **settings)
    return seen, run


@pytest.mark.parametrize("form", ["env", "list", "serial"])
def test_policies_see_the_numbers_of_the_environment_inside_not_bytes(form):
    packed = {
        "env": lambda: emulated(Parts),
        "list": lambda: [emulated(Parts)],
        "serial": lambda: serial(Parts, 1),
    }[form]()
    bare, _ = seen_by(Parts(), episode_seeds=[7])
    seen, run = seen_by(packed, episode_seeds=[7])
    assert seen == bare
    # choice one-hot, picture, speeds
    assert seen[2] == [0, 0, 0, 1, 0, 7, 8, 9, 10, 11, 12, 2, -2, 0.25, 0, 1]
    assert run.returns.tolist() == [[3 * 23.0]]
    assert run.lengths.tolist() == [[3]]


def test_packed_actions_reach_the_environment_whatever_their_type():
    raw = emulated(Parts)
    raw.reset(seed=0)
    # PufferLib takes the halves of a 64-bit number for two choices.
    assert raw.step(np.array([2, 3], np.int64))[1] == 20.0
    env = emulated(Parts)
    seen_by(env, episode_seeds=[0])
    assert env.env.taken == [(2, 3)] * 3


def test_a_dict_of_actions_is_packed_too():
    class Named(Parts):
        def step(self, action):
            return super().step((action["a"], action["b"]))

    actions = spaces.Dict(a=spaces.Discrete(3), b=spaces.Discrete(4))
    _, run = seen_by(emulated(Named, actions), episode_seeds=[0])
    assert run.returns.tolist() == [[69.0]]


@pytest.mark.parametrize(
    ("clipped", "count"),
    [
        (lambda: emulated(lambda: pufferlib.ClipAction(gymnasium.make("Pendulum-v1"))), 1),
        (lambda: pufferlib.ClipAction(gymnasium.make("Pendulum-v1")), 1),
        (lambda: serial(lambda: pufferlib.ClipAction(gymnasium.make("Pendulum-v1")), 2), 2),
    ],
)
def test_actions_are_mapped_onto_the_bounds_that_a_wrapper_clips_to(clipped, count):
    """`ClipAction` shows bounds of 3.4e38; mapped onto these every action would be -2 or 2."""

    def returns(envs):
        with interact_with_env(envs) as interactor:
            assert interactor.action_space == spaces.Box(-2.0, 2.0, (1,), np.float32)
            population = interactor.population(pop_size=3, init="random", seed=1)
            return interactor.rollout(population, episode_seeds=[4]).returns

    env = clipped()
    plain = returns([gymnasium.make("Pendulum-v1") for _ in range(count)])
    assert torch.equal(plain, returns(env))


def test_environments_in_wrappers_of_pufferlib_are_gymnasiums():
    row = GYMNASIUM[5]
    check(play_row(pufferlib.EpisodeStats(row.make()), row, 1), row, 1)
    check(play_row([pufferlib.EpisodeStats(row.make()) for _ in range(2)], row, 3), row, 3)


def test_an_environment_without_seeds_says_so():
    class Blind:
        observation_space, action_space = spaces.Box(0, 9, (1,)), spaces.Discrete(2)
        render_mode = None

        def reset(self):
            return np.zeros(1, np.float32), {}

        def step(self, action):
            return np.zeros(1, np.float32), 1.0, True, False, {}

        def close(self):
            pass

    with pytest.warns(UserWarning, match="cannot be seeded per episode"):
        run = play(emulated(Blind), always(0), episode_seeds=[0])
    assert run.returns.tolist() == [[1.0]] * 3


@needs_pettingzoo
def test_agents_of_an_emulated_parallel_environment_are_a_team():
    with interact_with_env(make("pufferlib/multiagent")) as interactor:
        run = interactor.rollout(anyone(interactor, 3), always(1), episode_seeds=[0])
    # Only the second agent is paid for the action 1.
    assert run.returns.tolist() == [[0.5]] * 3


# --- what keeps the contract, and what is refused


@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1"])
def test_emulated_environments_keep_the_contract(name):
    report = check_adapter(lambda: emulated(name))
    assert report.seeds_slots
    assert report.autoreset is Autoreset.CALLER
    assert report.time_limit == (500 if name == "CartPole-v1" else 200)
    assert check_adapter(lambda: serial(name, 3)).seeds_slots
    assert check_adapter(lambda: emulated(Parts)).num_ends > 10


def bad(observations=None, actions=None):
    env = Parts(actions)
    env.observation_space = observations or env.observation_space
    return emulated(lambda: env)


@pytest.mark.parametrize(
    ("make_env", "message"),
    [
        (lambda: emulated("FrozenLake-v1"), r"PufferLib loses observations of Discrete\(16\)"),
        (lambda: serial("FrozenLake-v1", 2), "put its observations in a Dict"),
        (
            lambda: bad(actions=spaces.Tuple([spaces.Discrete(3, start=1), spaces.Discrete(4)])),
            r"reads actions of Tuple.* wrongly",
        ),
        (lambda: bad(actions=spaces.MultiBinary(2)), "MultiBinary.2. is no choice from 0 on"),
        (
            lambda: [emulated("CartPole-v1"), emulated("Pendulum-v1")],
            "has the observation space",
        ),
        (
            lambda: [emulated("CartPole-v1"), serial("CartPole-v1", 2)],
            "environment 1 is a Serial, environment 0 a GymnasiumPufferEnv",
        ),
        (
            lambda: gymnasium.Wrapper(emulated("CartPole-v1")),
            "wraps an environment that PufferLib emulates: wrap it before",
        ),
        (lambda: SyncVectorEnv([lambda: emulated("CartPole-v1")]), "wrap it before that"),
    ],
)
def test_what_would_give_wrong_numbers_is_refused(make_env, message):
    env = make_env()
    with pytest.raises(ValueError, match=message):
        interact_with_env(env)


# --- vector environments that are stepped as a whole


class Twice(vector.Serial):
    def __init__(self, make_one, count):
        super().__init__([creator(make_one)] * count, [[]] * count, [{}] * count, count)

    def step(self, actions):
        observations, rewards, *rest = super().step(actions)
        return observations, 2.0 * rewards, *rest


def test_a_serial_with_a_step_of_its_own_is_stepped_by_that():
    envs = Twice("CartPole-v1", 2)
    assert simulators.adapt([envs]).autoreset is Autoreset.NEXT_STEP
    run = play(envs, always(1), pop_size=5, num_episodes=4)
    # The step in which a slot is only reset pays nothing and is not counted.
    assert torch.equal(run.returns, 2.0 * run.lengths)
    assert run.lengths.min() >= 8
    assert run.lengths.max() <= 11


def test_packed_actions_reach_it_too():
    bare, _ = seen_by(Parts(), episode_seeds=[7])
    seen, run = seen_by(Twice(Parts, 1), episode_seeds=[7])
    assert seen == bare
    assert run.returns.tolist() == [[2.0 * 69.0]]


@needs_processes
def test_processes_give_the_episodes_of_their_seeds(in_time):
    envs = processes("CartPole-v1", 3)
    run = play(envs, always(1), episode_seeds=[0])
    # Slots have the seeds 0, 1 and 2, see the ground truth of CartPole.
    assert run.returns.tolist() == [[8.0], [9.0], [10.0]]
    assert run.lengths.tolist() == [[8], [9], [10]]
    more = play(envs, always(1), episode_seeds=[0], num_episodes=1)
    assert torch.equal(more.returns, run.returns)
    envs.close()


@needs_processes
def test_the_steps_in_which_processes_reset_are_not_counted(in_time):
    envs = processes("CartPole-v1", 2)
    run = play(envs, always(1), pop_size=3, num_episodes=5)
    assert torch.equal(run.returns, run.lengths.double())  # every step pays 1
    assert run.lengths.min() >= 8
    assert run.lengths.max() <= 11
    envs.close()


@needs_native
@needs_processes
def test_processes_of_native_environments_are_batches_of_batches(in_time):
    def made():
        settings = {"env_kwargs": {"num_envs": 3}, "num_envs": 2, "num_workers": 1}
        made_by = env_creator("puffer_cartpole")
        return vector.make(made_by, backend=vector.Multiprocessing, **settings)

    hand = made()
    hand.reset(seed=4)
    lengths = np.zeros(6, int)
    for t in range(1, 40):
        ends = hand.step(np.ones(6, np.int32))[2]
        lengths[ends & (lengths == 0)] = t
    hand.close()
    envs = made()
    run = play(envs, always(1), pop_size=6, episode_seeds=[4])
    assert run.lengths[:, 0].tolist() == lengths.tolist()
    assert torch.equal(run.returns, run.lengths.double() - 1.0)
    envs.close()


@needs_processes
def test_two_resets_in_a_row_do_not_wait_for_ever(in_time):
    """By itself PufferLib would, for a reset tells an info and the next waits for another."""
    envs = processes("CartPole-v1", 2)
    envs.reset(seed=3)
    with interact_with_env(envs) as interactor:
        first = interactor.reset(seeds=[5, 5])
        assert torch.equal(first, interactor.reset(seeds=[5, 5]))
        interactor.step([0, 0])
        assert torch.equal(first, interactor.reset(seeds=[5, 5]))
    envs.close()


@needs_processes
def test_processes_that_tell_infos_can_be_reset_at_any_time(in_time):
    envs = processes(Parts, 2)
    bare, _ = seen_by(Parts(), episode_seeds=[7])
    for _ in range(3):
        seen, run = seen_by(envs, episode_seeds=[7])
        assert seen == bare
        assert run.returns.tolist() == [[69.0]]
    envs.close()


class Failing(Parts):
    def step(self, action):
        message = "the environment fails"
        raise RuntimeError(message)


@needs_processes
def test_a_process_that_dies_ends_the_run(in_time, capfd):
    envs = processes(Failing, 2)
    with pytest.raises(RuntimeError, match="process 0 of PufferLib's Multiprocessing has died"):
        seen_by(envs, episode_seeds=[7])
    assert "the environment fails" in capfd.readouterr().err
    with pytest.raises(RuntimeError, match="has died"):
        seen_by(envs, episode_seeds=[7])
    envs.close()


@needs_processes
def test_processes_keep_the_contract_and_say_what_is_not_so(in_time):
    report = check_adapter(lambda: processes("CartPole-v1", 2))
    assert report.autoreset is Autoreset.NEXT_STEP
    assert report.time_limit == 500
    assert report.num_ends >= 4
    envs = processes(lambda: pufferlib.ClipAction(gymnasium.make("Pendulum-v1")), 2)
    with pytest.warns(UserWarning, match="seeds its processes so that their slots overlap"):
        interactor = interact_with_env(envs)
    assert interactor.action_space == spaces.Box(-2.0, 2.0, (1,), np.float32)
    envs.close()


@needs_processes
def test_processes_that_step_in_turns_or_lose_the_start_of_choices_are_refused():
    partial = processes("CartPole-v1", 2, workers=2, batch_size=1, overwork=True)
    with pytest.raises(ValueError, match="steps 1 of its 2 agents at a time"):
        interact_with_env(partial)
    partial.close()

    envs = processes(Parts, 1, spaces.Discrete(3, start=-1))
    with pytest.raises(ValueError, match="choices from 0 on"):
        interact_with_env(envs)
    envs.close()


# --- ids, folders


@needs_native
def test_an_id_evolves():
    _, history = evolve_with_env(
        "pufferlib/squared",
        num_generations=2,
        pop_size=4,
        num_envs=3,
        horizon=40,
        return_history=True,
    )
    assert len(history) == 2


def test_emulated_environments_evolve():
    policy, history = evolve_with_env(
        creator("CartPole-v1"), num_generations=2, pop_size=4, seed=0, return_history=True
    )
    assert len(history) == 2
    env = emulated("CartPole-v1")
    observation, _ = env.reset(seed=0)
    assert policy.act(observation).shape == (1,)


@needs_native
@pytest.mark.parametrize(
    ("name", "num_envs", "slots"),
    [("cartpole", 5, 5), ("puffer_cartpole", 2, 2), ("target", 5, 8), ("target", 9, 16)],
)
def test_ids_make_as_many_slots_as_are_wanted_in_whole_worlds(name, num_envs, slots):
    made = make_batch(f"pufferlib/{name}", num_envs)
    assert made.num_agents == slots
    made.close()


@needs_pettingzoo
@pytest.mark.parametrize("name", ["spaces", "multiagent", "pysquared"])
def test_ids_of_what_is_no_batch_make_one_environment_or_several(name):
    assert make(f"pufferlib/{name}").num_agents == (2 if name == "multiagent" else 1)
    many = make_batch(f"pufferlib/{name}", 3)
    assert simulators.adapt([many]).num_slots == (6 if name == "multiagent" else 3)


@pytest.mark.parametrize(("name", "near"), [("cartpol", "cartpole"), ("gpudrive", "grid")])
def test_an_unknown_id_lists_near_names(name, near):
    with pytest.raises(ValueError, match=f"no native environment '{name}' for an id; .*{near}"):
        interact_with_env(f"pufferlib/{name}")


@pytest.mark.parametrize("missing", ["pufferlib", "pufferlib.ocean.cartpole.binding"])
def test_a_missing_package_names_what_installs_it(monkeypatch, missing):
    for name in [name for name in sys.modules if name.startswith("pufferlib.ocean.cartpole")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ImportError) as raised:
        interact_with_env("pufferlib/cartpole")
    note = "\n".join(raised.value.__notes__)
    assert "bash .ci/build_pufferlib.sh" in note
    assert "pip install --no-deps gym==0.26.2 gym_notices psutil" in note
    script = Path(__file__).parents[2] / ".ci" / "build_pufferlib.sh"
    assert script.exists()


CLEAN = "\n".join(
    [
        "import os, warnings",
        "from populora_adapters import pufferlib",
        "from populora_envs.simulators import adapt, make",
        "before = list(warnings.filters)",
        "adapt([make('pufferlib/{name}')])",
        "adapt([make('pufferlib/{name}')])",
        "assert warnings.filters == before, warnings.filters",
        "assert os.listdir() == [], os.listdir()",
    ]
)


@needs_native
def test_an_import_leaves_nothing_behind_and_imports_no_other_simulator(tmp_path):
    assert imported_by(CLEAN.format(name="cartpole"), tmp_path) == {"gym", "pufferlib"}


@needs_native
@needs_pettingzoo
def test_environments_find_the_files_that_they_read_when_they_are_made(tmp_path):
    imported_by(CLEAN.format(name="moba"), tmp_path)


def test_resources_of_the_user_stay(tmp_path):
    (tmp_path / "resources").mkdir()
    (tmp_path / "resources" / "mine").touch()
    make("pufferlib/pysquared")
    assert [path.name for path in Path("resources").iterdir()] == ["mine"]
    assert Path.cwd() == tmp_path


def test_other_environments_do_not_import_it():
    code = "from populora_envs.simulators import adapt, make; adapt([make('CartPole-v1')])"
    assert imported_by(code) == set()


@needs_pettingzoo
@pytest.mark.filterwarnings("ignore:.*drew from a global generator")
def test_creators_of_pufferlib_itself_are_factories():
    run = play(env_creator("puffer_spaces"), lambda o: torch.ones(len(o), 2, dtype=int), 4)
    assert set(run.returns.flatten().tolist()) <= {0.0, 0.5, 1.0}
    assert run.lengths.tolist() == [[1]] * 4
