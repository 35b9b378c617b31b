"""ManiSkill's real tasks and physics on the CPU, with rendering shimmed away (see `maniskill_shim`).

The tests whose names say "without the shim" run in processes of their own. Batches on a GPU cannot be had
here: their code is driven for real with one sub-environment, and with a stand-in for several.
"""

import builtins
import contextlib
import functools
import gc
import itertools
import logging
import subprocess
import sys
import warnings
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import nn

with warnings.catch_warnings():
    # sapien says that it looks for Vulkan's library.
    warnings.simplefilter("ignore")
    pytest.importorskip("mani_skill.envs", reason="ManiSkill is not installed")

from gymnasium.wrappers import RescaleAction, TimeLimit
from gymnasium.wrappers.vector import ClipReward
from mani_skill import ASSET_DIR
from mani_skill.utils import assets
from mani_skill.utils.wrappers.flatten import FlattenActionSpaceWrapper
from mani_skill.utils.wrappers.gymnasium import CPUGymWrapper
from mani_skill.vector.wrappers.gymnasium import ManiSkillVectorEnv

from populora_adapters.maniskill import adapt, make, multiply
from populora_envs import evolve_with_env, interact_with_env
from populora_envs.adapter import Autoreset
from populora_envs.simulators import find_adapter
from populora_envs.testing import check_adapter
from tests.adapters.maniskill_shim import install, make_without_pictures, replacements
from tests.clock import ANYTHING, SHOWN, numbered
from tests.imported import imported_by

PICK, BALANCE, HOP, PUSH = "PickCube-v1", "MS-CartpoleBalance-v1", "MS-HopperHop-v1", "PushCube-v1"
pytestmark = [
    # ManiSkill asks NumPy whether a tensor holds numbers.
    pytest.mark.filterwarnings("ignore:__array_wrap__ must accept context:DeprecationWarning"),
    # Its spaces, and its log of bodies without a pose.
    pytest.mark.filterwarnings("ignore:.*Box (low|high)'s precision lowered by casting"),
    pytest.mark.filterwarnings("ignore:The 'warn' method is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:success ends an episode of this ManiSkill task"),
]
unseeded = pytest.mark.filterwarnings(
    "ignore:these environments cannot be seeded per episode",
    "ignore:the action function, the policy or the environment drew",
)


@pytest.fixture(autouse=True, scope="module")
def no_pictures():
    """Take the looks out of sapien for this file alone."""
    with pytest.MonkeyPatch.context() as patch:
        for place, name, stand_in in replacements():
            patch.setattr(place, name, stand_in)
        yield


def env_of(name=PICK, **settings):
    return make_without_pictures(name, **settings)


def unbatched(name=PICK, **settings):
    return CPUGymWrapper(env_of(name), **settings)


def vector(name=PICK, **settings):
    return ManiSkillVectorEnv(env_of(name), **settings)


def flat_robots():
    return FlattenActionSpaceWrapper(env_of("TwoRobotPickCube-v1"))


# --- the contract, with rendering shimmed away


@pytest.mark.parametrize(
    ("make_env", "steps", "limit"),
    [
        (env_of, 52, 50),
        (unbatched, 10, 50),
        (functools.partial(env_of, BALANCE), 40, 1000),
        (functools.partial(env_of, HOP), 20, 600),
        (functools.partial(env_of, obs_mode="state_dict"), 5, 50),
        (functools.partial(env_of, "TwoRobotPickCube-v1"), 5, 100),
        (functools.partial(env_of, "PegInsertionSide-v1"), 3, 100),
        (flat_robots, 5, 100),
    ],
)
def test_environments_on_the_cpu_keep_the_contract(make_env, steps, limit):
    report = check_adapter(make_env, steps=steps)
    assert report.adapter == "ManiSkillEnvs"
    assert report.num_slots == 2
    assert report.autoreset is Autoreset.CALLER
    assert report.seeds_slots
    assert report.time_limit == limit


@pytest.mark.parametrize(
    ("settings", "autoreset"), [({}, "SAME_STEP"), ({"auto_reset": False}, "CALLER")]
)
def test_its_vector_environment_keeps_the_contract(settings, autoreset):
    report = check_adapter(lambda: vector(**settings), steps=60)
    assert report.autoreset is Autoreset[autoreset]
    assert report.num_ends >= 1
    assert not report.seeds_slots
    assert report.time_limit == 50
    assert report.observation_space.shape == (42,)


# --- known returns, with rendering shimmed away

ROWS = [
    pytest.param(PICK, 8, 3.265059471130371, 50, "truncated", id="PickCube"),
    pytest.param(BALANCE, 1, 24.51613086462021, 29, "terminated", id="CartpoleBalance"),
]


class Through(nn.Module):
    """Gives the observation back; the layer is there to be adapted and adds nothing."""

    def __init__(self, size):
        super().__init__()
        self.nothing = nn.Linear(size, 1)

    def forward(self, observation):
        return observation + 0.0 * self.nothing(observation)


def play(envs, act, pop_size=1, seed=0, **settings):
    """All individuals act alike: `act` gives their actions for observations and the time."""
    clock = itertools.count()
    with interact_with_env(envs, from_range=None, **settings) as interactor:
        model = Through(interactor.encoder.shape[0])
        population = interactor.population(model, pop_size=pop_size, low_rank=1, init="zero")
        return interactor.rollout(
            population, lambda seen: act(seen.numpy(), next(clock)), episode_seeds=[seed]
        )


def zeros(size):
    return lambda seen, t: np.zeros((len(seen), size), np.float32)


def check(played, pop_size, expected, length, end):
    wanted = torch.full((pop_size, 1), expected, dtype=torch.float64)
    torch.testing.assert_close(played.returns, wanted, rtol=1e-6, atol=1e-6)
    assert played.lengths.tolist() == [[length]] * pop_size
    assert played.ends == [[end]] * pop_size


@pytest.mark.parametrize(("name", "size", "expected", "length", "end"), ROWS)
@pytest.mark.parametrize("kind", [env_of, unbatched])
def test_known_returns_of_single_environments_and_of_lists(kind, name, size, expected, length, end):
    check(play(kind(name), zeros(size)), 1, expected, length, end)
    # The third individual plays in a slot that has been used before.
    check(play([kind(name), kind(name)], zeros(size), 3), 3, expected, length, end)


@pytest.mark.parametrize(("name", "size", "expected", "length", "end"), ROWS)
@pytest.mark.parametrize("settings", [{}, {"auto_reset": False}], ids=str)
@unseeded
def test_known_returns_of_its_vector_environment(settings, name, size, expected, length, end):
    envs = vector(name, **settings)
    assert envs.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP  # whatever it does
    with contextlib.closing(envs):
        check(play(envs, zeros(size)), 1, expected, length, end)


@pytest.mark.parametrize(("name", "size", "expected", "length", "end"), ROWS)
@pytest.mark.parametrize("kind", [env_of, unbatched])
def test_known_returns_of_gymnasiums_vector_environment(kind, name, size, expected, length, end):
    envs = SyncVectorEnv([functools.partial(kind, name)] * 2)
    check(play(envs, zeros(size), 3), 3, expected, length, end)
    with pytest.raises(ValueError, match="in a SyncVectorEnv as a list, or it alone"):
        adapt([ClipReward(envs, 0.0, 1.0)])


# --- episodes against a loop by hand, with rendering shimmed away


def by_hand(name, policy, seed, horizon):
    """Return and length of an episode in an environment that nobody has used, by its bare interface."""
    env = env_of(name)
    observation, _ = env.reset(seed=seed)
    total, length = 0.0, 0
    while length < horizon:
        with torch.inference_mode():
            action = torch.sign(policy(observation))
        observation, reward, terminated, truncated, _ = env.step(action)
        total += float(reward)
        length += 1
        if bool(terminated | truncated):
            break
    env.close()
    return total, length


@pytest.mark.parametrize(
    ("name", "horizon"), [(HOP, 40), ("RotateSingleObjectInHandLevel0-v1", 20)]
)
def test_an_episode_does_not_depend_on_what_was_played_before(name, horizon):
    seeds, pop_size = [4, 5], 3
    with interact_with_env([env_of(name), env_of(name)]) as interactor:
        size = interactor.action_space.shape[0]
        torch.manual_seed(0)
        model = nn.Linear(interactor.encoder.shape[0], size)
        population = interactor.population(model, pop_size=pop_size, low_rank=2, init="random")
        played = interactor.rollout(population, torch.sign, horizon, episode_seeds=seeds)
        merged = [population.merge_(i) for i in range(pop_size)]
    for i, policy in enumerate(merged):
        for episode, seed in enumerate(seeds):
            total, length = by_hand(name, policy, seed, horizon)
            assert played.lengths[i, episode] == length
            assert played.returns[i, episode].item() == pytest.approx(total, abs=1e-6)


def test_a_reset_of_one_slot_leaves_the_other_where_it_is():
    adapter = adapt([env_of(), env_of()])
    adapter.reset([0, 1])
    before = adapter.step(np.full((2, 8), 0.3, np.float32)).observation.copy()
    after = adapter.reset([5, 6], np.array([True, False]))
    assert not np.array_equal(after[0], before[0])
    assert np.array_equal(after[1], before[1])
    assert adapter._envs[1].unwrapped.elapsed_steps.item() == 1


def test_a_scene_that_its_environment_rebuilds_by_itself_is_not_built_twice():
    env = env_of("PegInsertionSide-v1")
    built = []
    env.unwrapped._after_reconfigure = built.append
    adapter = adapt([env])
    adapter.reset([3])
    assert len(built) == 1
    adapter.reset([3])
    assert len(built) == 2


def test_scenes_are_rebuilt_without_a_word_and_leave_the_garbage_collector_as_it_was():
    heard, log = [], logging.getLogger("mani_skill")
    adapter = adapt([env_of(BALANCE)])
    level, handler = log.level, logging.Handler()
    handler.emit = heard.append
    log.addHandler(handler)
    adapter.reset([0])
    assert not heard
    assert log.level == level
    assert gc.get_freeze_count() == 0
    gc.freeze()
    frozen = gc.get_freeze_count()
    adapter.reset([0])
    assert gc.get_freeze_count() >= 0.9 * frozen
    gc.unfreeze()
    log.removeHandler(handler)


# --- success, with rendering shimmed away


def push(seen, t):
    """Go behind the cube, then push it."""
    tool, cube = seen[:, 18:21], seen[:, 28:31]
    ahead = np.array([-0.1 if t < 12 else 0.1, 0, 0])
    move = np.clip(10 * (cube + ahead - tool), -1, 1)
    return np.concatenate([move, -np.ones((len(seen), 1))], axis=1).astype(np.float32)


def hover(seen, t):
    """Go behind the cube and stay there."""
    return push(seen, 0)


def pusher():
    return env_of(PUSH, control_mode="pd_ee_delta_pos")


def test_success_terminates_an_episode():
    played = play(pusher(), push)
    assert played.ends == [["terminated"]]
    assert played.lengths.tolist() == [[17]]
    env = pusher()
    seen, _ = env.reset(seed=0)
    total = 0.0
    for t in range(17):
        seen, reward, _, _, info = env.step(push(seen.numpy(), t))
        total += float(reward)
    assert info["success"].item()
    assert played.returns.item() == pytest.approx(total, abs=1e-6)


def test_success_that_ends_episodes_can_earn_less_than_staying_near_which_is_said():
    with pytest.warns(UserWarning, match=r"success ends an episode.*ignore_terminations=True"):
        fast = play(pusher(), push)
    slow = play(pusher(), hover)
    assert slow.ends == [["truncated"]]
    assert slow.returns.item() > fast.returns.item()


def sparse():
    return env_of(PUSH, reward_mode="sparse")


@pytest.mark.parametrize(
    "make_env",
    [
        lambda: CPUGymWrapper(pusher(), ignore_terminations=True),
        lambda: ManiSkillVectorEnv(pusher(), ignore_terminations=True),
        sparse,
        functools.partial(env_of, BALANCE),
    ],
    ids=["unbatched", "vector", "sparse", "without success"],
)
def test_nothing_is_said_of_success_where_it_costs_nothing(make_env):
    assert adapt([make_env()]).notes == ()


def test_a_task_that_pays_nothing_is_a_warning():
    with pytest.warns(UserWarning, match=r"pays nothing.*choose another \(sparse\)"):
        interact_with_env("maniskill/StackPyramid-v1")


@pytest.mark.parametrize("kind", [CPUGymWrapper, ManiSkillVectorEnv])
@unseeded
def test_success_pays_most_where_episodes_go_on_to_their_limit(kind):
    fast, slow = (play(kind(pusher(), ignore_terminations=True), act) for act in (push, hover))
    assert fast.ends == slow.ends == [["truncated"]]
    assert fast.lengths.tolist() == [[50]]
    assert fast.returns.item() > slow.returns.item()


# --- wrappers and settings, with rendering shimmed away


def test_a_time_limit_given_to_make_counts():
    envs = [env_of(max_episode_steps=7), env_of(max_episode_steps=7)]
    assert adapt(envs).time_limit == 7
    played = play(envs, zeros(8), 2)
    assert played.lengths.tolist() == [[7]] * 2
    assert played.ends == [["truncated"]] * 2


def test_a_bare_task_has_no_time_limit():
    with pytest.warns(UserWarning, match="names no time limit"):
        played = play(env_of(BALANCE).unwrapped, zeros(1))
    check(played, 1, 24.51613086462021, 29, "terminated")


def test_wrappers_that_change_the_actions_count():
    wide = RescaleAction(env_of(), -4.0, 4.0)
    assert adapt([wide]).action_space == spaces.Box(-4.0, 4.0, (8,), np.float32)
    assert adapt([flat_robots()]).action_space.shape == (16,)
    plain = adapt([env_of()])
    moved = [
        a.step(np.full((1, 8), v, np.float32))
        for a, v in reset_all((plain, 0.5), (adapt([wide]), 2.0))
    ]
    np.testing.assert_array_equal(moved[0].observation, moved[1].observation)
    assert moved[0].reward == moved[1].reward


def reset_all(*pairs):
    for adapter, _ in pairs:
        adapter.reset([0])
    return pairs


def test_observations_of_named_parts_are_one_vector_sorted_by_name():
    with interact_with_env(env_of(obs_mode="state_dict")) as interactor:
        shown = interactor.reset(seeds=[0])
        assert interactor.encoder.shape == (42,)
    env = env_of(obs_mode="state_dict")
    parts, _ = env.reset(seed=0)
    extra = [parts["extra"][key].reshape(-1).float() for key in sorted(parts["extra"])]
    by_hand = torch.cat([parts["agent"]["qpos"][0], parts["agent"]["qvel"][0], *extra])
    assert torch.equal(shown[0], by_hand)


def test_two_robots_are_one_individual_with_a_dict_of_actions():
    with interact_with_env(env_of("TwoRobotPickCube-v1")) as interactor:
        population = interactor.population(pop_size=2, init="random")
        played = interactor.rollout(population, horizon=3)
    assert played.lengths.tolist() == [[3], [3]]
    assert played.returns[0] != played.returns[1]


# --- evolution, ids and workers, with rendering shimmed away


def short_pick():
    """For workers, which may be fresh interpreters."""
    install()
    return make_without_pictures(PICK, max_episode_steps=12)


@pytest.mark.parametrize(
    "envs",
    [f"maniskill/{BALANCE}", lambda: [env_of(BALANCE), unbatched(BALANCE)]],
    ids=["id", "list"],
)
def test_two_generations_run(envs):
    num_envs = 2 if isinstance(envs, str) else None
    _, history = evolve_with_env(
        envs,
        num_generations=2,
        pop_size=4,
        num_envs=num_envs,
        seed=0,
        horizon=4,
        return_history=True,
    )
    assert len(history) == 2
    assert history[-1]["best_fitness"] > 0


@unseeded
def test_two_generations_run_on_its_vector_environment():
    _, history = evolve_with_env(
        vector(BALANCE), num_generations=2, pop_size=3, seed=0, horizon=4, return_history=True
    )
    assert len(history) == 2


def fitness(envs, **settings):
    with interact_with_env(envs, seed=3, **settings) as interactor:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(42, 8), nn.Tanh())
        population = interactor.population(model, pop_size=4, low_rank=2, init="random")
        return interactor.rollout(population, num_episodes=2).returns


def test_fitness_does_not_depend_on_the_number_of_environments_or_workers():
    one = fitness(short_pick)
    assert len(set(one.flatten().tolist())) == 8
    assert torch.equal(one, fitness(short_pick, num_envs=2, num_workers=2))
    assert torch.equal(one, fitness([short_pick(), short_pick()], num_workers=2))


def test_an_environment_that_exists_is_copied_with_its_settings():
    env = env_of(max_episode_steps=9, reward_mode="sparse", obs_mode="state_dict")
    copies = multiply(env, 3)
    assert copies[0] is env
    assert len({id(copy.unwrapped) for copy in copies}) == 3
    for copy in copies[1:]:
        assert adapt([copy]).time_limit == 9
        assert copy.unwrapped.reward_mode == "sparse"
        assert copy.unwrapped.obs_mode == "state_dict"
    played = play(env_of(BALANCE), zeros(1), 3, num_envs=3)
    check(played, 3, 24.51613086462021, 29, "terminated")


@pytest.mark.parametrize("make_env", [unbatched, vector, lambda: env_of().unwrapped])
def test_what_cannot_be_copied_exactly_is_refused(make_env):
    with pytest.raises(ValueError, match=r"cannot be copied, .*pass a factory"):
        multiply(make_env(), 2)


def test_an_id_makes_a_task_on_the_cpu():
    env = make(f"maniskill/{PICK}")
    assert env.unwrapped.obs_mode == "state"
    assert not env.unwrapped.gpu_sim_enabled
    assert find_adapter(env) is adapt
    with interact_with_env(f"maniskill/{BALANCE}", num_envs=3) as interactor:
        assert interactor.reset(seeds=[0, 1, 0]).shape == (3, 10)


def test_a_name_alone_is_an_id_of_gymnasium_once_maniskill_is_imported(monkeypatch):
    with interact_with_env([lambda: gymnasium.make(BALANCE, render_backend="none")]) as interactor:
        assert interactor.encoder.shape == (10,)
    monkeypatch.delitem(gymnasium.registry, BALANCE)
    with pytest.raises(ValueError, match=f"there is no environment '{BALANCE}'"):
        interact_with_env(BALANCE)


def test_an_unknown_id_lists_near_names():
    with pytest.raises(ValueError, match="no task 'PickCub-v1'; near names: PickCube-v1"):
        interact_with_env("maniskill/PickCub-v1")


def test_a_missing_simulator_names_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "mani_skill", None)
    monkeypatch.setitem(sys.modules, "mani_skill.envs", None)
    with pytest.raises(ImportError) as raised:
        interact_with_env(f"maniskill/{PICK}")
    assert 'pip install "populora-envs[maniskill]"' in "".join(raised.value.__notes__)


def test_missing_files_are_named_in_place_of_a_question(monkeypatch):
    monkeypatch.setattr(assets, "is_data_source_downloaded", lambda name: False)
    with pytest.raises(FileNotFoundError, match=r"\(ycb\).*download_asset PickSingleYCB-v1"):
        interact_with_env("maniskill/PickSingleYCB-v1")


@pytest.mark.skipif((ASSET_DIR / "robots/anymal_c").exists(), reason="the robot is there")
def test_a_question_that_nobody_answers_is_an_error_that_says_so(monkeypatch):
    def nobody(question):
        raise EOFError

    monkeypatch.setattr(builtins, "input", nobody)
    with pytest.raises(FileNotFoundError, match="MS_SKIP_ASSET_DOWNLOAD_PROMPT=1"):
        make("maniskill/AnymalC-Reach-v1")


# --- without the shim


def run(code):
    lines = [
        "import sys, warnings",
        "warnings.simplefilter('ignore')",
        f"sys.path[:0] = {sys.path!r}",
    ]
    return subprocess.run(
        [sys.executable, "-c", "\n".join([*lines, code])],
        capture_output=True,
        text=True,
        check=False,
    )


def test_without_the_shim_a_task_plays_whose_bodies_have_no_looks():
    done = run(
        "from populora_envs import interact_with_env\n"
        "with interact_with_env('maniskill/FMBAssembly1Easy-v1', num_envs=2) as interactor:\n"
        "    played = interactor.rollout(interactor.population(pop_size=3), horizon=5)\n"
        "print(interactor.num_envs, played.env_steps, played.ends[2])"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "2 15 ['horizon']"


@pytest.mark.skipif(
    any(Path("/usr/share/vulkan/icd.d").glob("*")) or any(Path("/etc/vulkan/icd.d").glob("*")),
    reason="this machine may have a Vulkan driver",
)
def test_without_the_shim_and_a_driver_the_error_names_vulkan():
    done = run(
        f"from populora_envs import interact_with_env; interact_with_env('maniskill/{PICK}')"
    )
    assert done.returncode == 1
    assert "RuntimeError: ManiSkill could not make PickCube-v1" in done.stderr
    assert "need a Vulkan driver" in done.stderr
    assert "direct cause of the following exception" in done.stderr
    assert "failed to find a rendering device" in done.stderr


def test_without_the_shim_no_other_simulator_is_imported():
    code = (
        "from populora_envs.simulators import make; make('maniskill/FMBAssembly1Easy-v1').close()"
    )
    assert imported_by(code) <= {"mani_skill", "sapien", "mujoco"}


# --- batches: for real with one sub-environment, with a stand-in for several


def test_the_vector_environment_that_does_not_reset_is_reset_by_slots():
    env = vector(BALANCE, auto_reset=False)
    adapter = adapt([env])
    adapter.reset([0])
    lengths = []
    for _ in range(2):
        length, over = 0, False
        while not over:
            moment = adapter.step(np.zeros((1, 1), np.float32))
            length, over = length + 1, bool(moment.terminated[0])
        lengths.append(length)
        adapter.reset([0], np.array([True]))
        assert env.unwrapped.elapsed_steps.item() == 0
    assert lengths == [29, 29]


class StandIn(gymnasium.Env):
    """Sub-environments that count their steps and pay the action, with ManiSkill's resets of a part."""

    def __init__(self, lengths, control_mode="pd_joint_delta_pos", freq=0):
        self.num_envs, self.device = len(lengths), torch.device("cpu")
        self.single_observation_space, self.single_action_space = SHOWN, ANYTHING
        self.observation_space = spaces.Box(0.0, np.inf, (self.num_envs, 1), np.float32)
        self.action_space = spaces.Box(-np.inf, np.inf, (self.num_envs, 1), np.float32)
        self.lengths, self.elapsed = torch.tensor(lengths), torch.zeros(len(lengths))
        self.gpu_sim_enabled, self.reward_mode = True, "sparse"
        self.control_mode, self.reconfiguration_freq = control_mode, freq
        self.resets, self.closes = [], 0

    def get_info(self):
        return {}

    def reset(self, seed=None, options=None):
        chosen = (options or {}).get("env_idx", torch.arange(self.num_envs))
        assert torch.is_tensor(chosen)
        self.resets.append((seed, chosen.tolist()))
        self.elapsed[chosen] = 0
        return self.elapsed[:, None], {}

    def step(self, action):
        assert action.shape == (self.num_envs, 1)
        self.elapsed += 1
        ended = self.elapsed >= self.lengths
        flags = ended, torch.zeros(self.num_envs, dtype=torch.bool)
        return self.elapsed[:, None], torch.as_tensor(action)[:, 0], *flags, {}

    def close(self):
        self.closes += 1


StandIn.__module__ = "mani_skill.envs.stand_in"


@unseeded
@pytest.mark.parametrize("pop_size", [1, 3, 8])
def test_a_stand_in_for_a_batch_pays_each_individual_its_own_returns(pop_size):
    env = StandIn((3, 3, 3))
    assert find_adapter(env) is adapt
    with (
        pytest.warns(UserWarning, match="names no time limit"),
        interact_with_env(env) as interactor,
    ):
        played = interactor.rollout(numbered(interactor, pop_size), num_episodes=2)
    assert played.returns.tolist() == [[i * (0 + 1 + 2)] * 2 for i in range(pop_size)]
    assert played.ends == [["terminated"] * 2] * pop_size
    assert env.closes == 0


def test_a_stand_in_for_a_batch_keeps_the_contract():
    report = check_adapter(lambda: StandIn((2, 5, 9)))
    assert report.autoreset is Autoreset.CALLER
    assert not report.seeds_slots
    assert report.num_ends == 25 + 10 + 5


def test_a_reset_of_one_slot_of_a_stand_in_for_a_batch_has_a_seed_of_its_own():
    env = StandIn((9, 9, 9))
    adapter = adapt([env])
    adapter.reset([4, 5, 6])
    adapter.step(np.zeros((3, 1), np.float32))
    shown = adapter.reset([7, 8, 9], np.array([False, True, True]))
    assert shown[:, 0].tolist() == [1, 0, 0]
    assert env.resets == [(4, [0, 1, 2]), (8, [1, 2])]


def test_a_batch_among_others_is_refused():
    with pytest.raises(ValueError, match=r"ManiSkill environments on the CPU, not batches"):
        interact_with_env([StandIn((3, 3)), StandIn((3, 3))])
    with pytest.raises(ValueError, match=r"ManiSkill environments on the CPU, not batches"):
        interact_with_env([env_of(), vector()])


def test_a_batch_whose_scene_is_rebuilt_is_refused():
    with pytest.raises(ValueError, match="reconfiguration_freq=0"):
        interact_with_env(StandIn((3, 3), freq=2))


def test_a_time_limit_of_gymnasium_around_a_batch_is_refused():
    with pytest.raises(ValueError, match=r"gymnasium's TimeLimit around a batch"):
        interact_with_env(TimeLimit(StandIn((3, 3)), 5))


def test_controllers_with_targets_in_a_batch_are_a_warning():
    (note,) = adapt([StandIn((3, 3), control_mode="pd_ee_target_delta_pose")]).notes
    assert "pd_ee_target_delta_pose" in note


# --- bad inputs, with rendering shimmed away


def test_an_action_that_is_not_finite_makes_its_individual_the_worst():
    with interact_with_env(env_of(BALANCE)) as interactor:
        population = interactor.population(nn.Linear(10, 1), pop_size=2, low_rank=1, init="zero")
        next(iter(population.individuals.values())).up[1] = np.nan
        with pytest.warns(UserWarning, match=r"individuals \[1\]"):
            fitnesses = interactor.evaluate(population, horizon=5)
    assert fitnesses[0] > 0
    assert fitnesses[1] == -np.inf


def test_an_error_in_a_task_names_its_slot():
    class Broken(gymnasium.Wrapper):
        def step(self, action):
            message = "the arm broke"
            raise RuntimeError(message)

    with (
        interact_with_env([env_of(), Broken(env_of())]) as interactor,
        pytest.raises(RuntimeError, match="the arm broke") as raised,
    ):
        interactor.rollout(interactor.population(pop_size=2))
    assert "in slot 1 of 2" in raised.value.__notes__


def test_a_mode_without_observations_is_refused():
    with pytest.raises(ValueError, match="holds no numbers"):
        interact_with_env(env_of(obs_mode="none"))


def test_what_the_user_opened_stays_open():
    env = env_of(BALANCE)
    play(env, zeros(1))
    assert env.unwrapped.scene is not None
    adapter = adapt([env])
    adapter.close()
    adapter.close()
    assert env.unwrapped.scene is None
