"""MiniGrid, for real."""

import sys

import gymnasium
import pytest
import torch
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from torch import nn

from populora_envs import evolve_with_env, interact_with_env
from populora_envs.simulators import make
from populora_envs.testing import check_adapter
from tests.imported import imported_by

minigrid = pytest.importorskip("minigrid", reason="minigrid is not installed")

from minigrid import wrappers  # noqa: E402 - after the skip
from minigrid.wrappers import FlatObsWrapper, FullyObsWrapper, ImgObsWrapper  # noqa: E402 - after the skip

ID = "MiniGrid-Empty-5x5-v0"
TO_GOAL = [2, 2, 1, 2, 2]
WIDTH = 4 + 7 * 7 * 3

pytestmark = pytest.mark.filterwarnings("ignore:text observations are left out")


class Script:
    """An action function that goes through a list, for all rows alike."""

    def __init__(self, actions):
        self.actions, self.time = actions, 0

    def __call__(self, outputs):
        action = self.actions[self.time % len(self.actions)]
        self.time += 1
        return torch.full((len(outputs),), action)


def reach(envs, **settings):
    with interact_with_env(envs, **settings) as interactor:
        population = interactor.population(nn.Linear(WIDTH, 7), pop_size=1, low_rank=1)
        return interactor.rollout(population, action=Script(TO_GOAL), episode_seeds=[0])


def vector(mode):
    return SyncVectorEnv([lambda: make(ID)] * 2, autoreset_mode=mode)


@pytest.mark.parametrize(
    "envs",
    [
        lambda: ID,
        lambda: make(ID),
        lambda: [make(ID), make(ID)],
        *(lambda mode=mode: vector(mode) for mode in AutoresetMode),
    ],
    ids=["id", "env", "list", *(mode.name for mode in AutoresetMode)],
)
def test_the_goal_pays_as_measured(envs):
    run = reach(envs())
    assert run.returns.tolist() == [[pytest.approx(0.955, abs=1e-6)]]
    assert run.lengths.tolist() == [[5]]
    assert run.ends == [["terminated"]]


def test_its_own_step_limit_is_known_and_a_truncation():
    with interact_with_env([make(ID), make(ID)]) as interactor:
        assert interactor.players.entries[0].adapter.time_limit == 100
        population = interactor.population(nn.Linear(WIDTH, 7), pop_size=1, low_rank=1)
        run = interactor.rollout(population, action=Script([0]))
    assert run.lengths.tolist() == [[100]]
    assert run.ends == [["truncated"]]
    with interact_with_env(vector(AutoresetMode.NEXT_STEP)) as interactor:
        assert interactor.players.entries[0].adapter.time_limit == 100


def test_the_mission_is_left_out_with_a_note_and_the_rest_is_numbers():
    with pytest.warns(UserWarning, match="text observations are left out: mission") as said:
        interactor = interact_with_env([make(ID), make(ID)])
    assert len(said) == 1
    with interactor:
        seen = interactor.reset(seeds=[0, 1])
    raw, _ = make(ID).reset(seed=0)
    assert seen.shape == (2, WIDTH)
    assert seen[0, :4].tolist() == [float(i == raw["direction"]) for i in range(4)]
    assert torch.equal(seen[0, 4:], torch.from_numpy(raw["image"]).flatten().float())


@pytest.mark.parametrize("form", [list, lambda envs: dict(enumerate(envs))], ids=["list", "dict"])
def test_tasks_whose_missions_differ_may_be_played_together(form):
    """Their observations differ in text alone, which is left out."""
    tasks = [make(ID), make("MiniGrid-DoorKey-5x5-v0"), make("MiniGrid-GoToDoor-5x5-v0")]
    with interact_with_env(form(tasks)) as interactor:
        population = interactor.population(nn.Linear(WIDTH, 7), pop_size=2, low_rank=1)
        assert interactor.evaluate(population, action=Script([0])).tolist() == [0.0, 0.0]
    with pytest.raises(ValueError, match="has the observation space"):
        interact_with_env(form([make(ID), FullyObsWrapper(make(ID))]))


def test_without_flattening_direction_and_image_stay_apart():
    with interact_with_env(ID, flatten=False) as interactor:
        seen = interactor.reset()
    assert set(seen) == {"direction", "image"}
    assert seen["image"].shape == (1, 7, 7, 3)


@pytest.mark.parametrize(("wrap", "shape"), [(FlatObsWrapper, (2835,)), (ImgObsWrapper, (7, 7, 3))])
def test_its_wrappers(wrap, shape):
    env = wrap(gymnasium.make(ID))
    with interact_with_env(env) as interactor:
        assert interactor.reset().shape == (1, *shape)
        assert interactor.players.entries[0].adapter.time_limit == 100


def pictures(env):
    return ImgObsWrapper(wrappers.RGBImgPartialObsWrapper(env))


@pytest.mark.parametrize(
    ("wrap", "shape"),
    [
        (pictures, (56, 56, 3)),
        (wrappers.RGBImgPartialObsWrapper, (4 + 56 * 56 * 3,)),
        (wrappers.OneHotPartialObsWrapper, (4 + 7 * 7 * 20,)),
        (wrappers.FullyObsWrapper, (4 + 5 * 5 * 3,)),
        (wrappers.StochasticActionWrapper, (WIDTH,)),
    ],
)
def test_more_of_its_wrappers_keep_the_contract(wrap, shape):
    assert check_adapter(lambda: wrap(make(ID))).seeds_slots
    with interact_with_env([wrap(make(ID)), wrap(make(ID))]) as interactor:
        assert interactor.reset().shape == (2, *shape)


@pytest.mark.parametrize("flatten", [True, False])
@pytest.mark.parametrize("mode", AutoresetMode)
def test_a_vector_environment_leaves_the_mission_out_with_one_note(mode, flatten):
    with pytest.warns(UserWarning, match="text observations are left out: mission") as said:
        interactor = interact_with_env(vector(mode), flatten=flatten)
    assert len(said) == 1
    with interactor:
        seen = interactor.reset()
    if flatten:
        assert seen.shape == (2, WIDTH)
    else:
        assert {name: tuple(part.shape) for name, part in seen.items()} == {
            "direction": (2,),
            "image": (2, 7, 7, 3),
        }


def test_worker_processes_of_gymnasium_want_no_shared_memory():
    """gymnasium cannot put a mission into shared memory."""
    makers = [lambda: make(ID)] * 2
    with pytest.raises(ValueError, match="shared_memory=True"):
        AsyncVectorEnv(makers)
    envs = AsyncVectorEnv(makers, shared_memory=False, autoreset_mode=AutoresetMode.SAME_STEP)
    with pytest.warns(UserWarning, match="names no time limit"):
        run = reach(envs)
    envs.close()
    assert run.returns.tolist() == [[pytest.approx(0.955, abs=1e-6)]]
    assert run.ends == [["terminated"]]


def by_hand(env, actions, seed):
    env.reset(seed=seed)
    total, length, terminated, truncated = 0.0, 0, False, False
    while not terminated and not truncated:
        _, reward, terminated, truncated, _ = env.step(actions[length % len(actions)])
        total, length = total + float(reward), length + 1
    return total, length, "terminated" if terminated else "truncated"


@pytest.mark.parametrize(
    ("env_id", "actions"),
    [
        ("MiniGrid-DoorKey-5x5-v0", [2, 3, 5, 1]),
        ("MiniGrid-LavaGapS5-v0", [2]),
        ("MiniGrid-Dynamic-Obstacles-5x5-v0", [0, 2, 2]),
        ("BabyAI-GoToRedBallGrey-v0", [2, 1, 2]),
    ],
)
@pytest.mark.filterwarnings("ignore:the environment names no time limit")
def test_episodes_are_those_of_a_loop_by_hand(env_id, actions):
    expected = [by_hand(make(env_id), actions, seed) for seed in (3, 4)]
    with interact_with_env([make(env_id), make(env_id)]) as interactor:
        outputs = int(interactor.action_space.n)
        population = interactor.population(nn.Linear(WIDTH, outputs), pop_size=1, low_rank=1)
        for seed, (total, length, end) in zip((3, 4), expected, strict=True):
            run = interactor.rollout(population, action=Script(actions), episode_seeds=[seed])
            assert run.returns.tolist() == [[pytest.approx(total, abs=1e-6)]]
            assert (run.lengths.item(), run.ends) == (length, [[end]])


def test_no_limit_is_told_of_levels_that_choose_theirs_at_each_reset():
    """The longest mission of BossLevel takes 2880 steps, the one of seed 1 takes 1152."""
    env = make("BabyAI-BossLevel-v0")
    env.reset(seed=1)
    assert env.unwrapped.max_steps == 1152
    with pytest.warns(UserWarning, match="the environment names no time limit"):
        run = still(env, 0, horizon=None)
    assert run.ends == [["horizon"]]
    assert still(env, 0, horizon=5000).lengths.tolist() == [[2880]]
    fixed = gymnasium.make("BabyAI-BossLevel-v0", max_steps=7)
    assert still(fixed, 0, horizon=None).lengths.tolist() == [[7]]


def still(env, seed, **settings):
    """Turn about."""
    with interact_with_env(env) as interactor:
        population = interactor.population(nn.Linear(WIDTH, 7), pop_size=1, low_rank=1)
        return interactor.rollout(population, action=Script([0]), episode_seeds=[seed], **settings)


@pytest.mark.parametrize("wrap", [wrappers.ActionBonus, wrappers.PositionBonus])
@pytest.mark.filterwarnings("ignore:these environments cannot be seeded per episode")
def test_a_bonus_that_counts_on_over_episodes_is_told(wrap):
    """The same steps pay less in every later episode."""
    first, second = (by_hand(env, [0], 0)[0] for env in [wrap(make(ID))] * 2)
    assert second < first
    with pytest.warns(UserWarning, match=f"{wrap.__name__} pays less for what earlier episodes"):
        interactor = interact_with_env([make(ID), wrap(make(ID))])
    with interactor:
        assert not interactor.players.entries[0].adapter.seeds_slots


@pytest.mark.filterwarnings("ignore:these environments cannot be seeded per episode")
@pytest.mark.filterwarnings("ignore:.*A seed has been passed to `ReseedWrapper.reset`")
def test_seeds_of_its_own_wrapper_are_told():
    env = wrappers.ReseedWrapper(make(ID), seeds=[0, 1])
    with pytest.warns(UserWarning, match="ReseedWrapper begins its own seeds in turn"):
        run = reach(SyncVectorEnv([lambda: env]))
    assert run.lengths.tolist() == [[5]]


@pytest.mark.parametrize("env_id", [ID, "BabyAI-GoToRedBallGrey-v0"])
def test_it_keeps_the_contract(env_id):
    assert check_adapter(env_id).seeds_slots


def test_two_generations_run_and_workers_give_the_same():
    settings = {"num_generations": 2, "pop_size": 4, "num_envs": 2, "return_history": True}
    here, there = (evolve_with_env(ID, num_workers=count, **settings)[1] for count in (0, 2))
    assert [entry["mean_fitness"] for entry in here] == [entry["mean_fitness"] for entry in there]


def test_an_unknown_id_lists_near_names():
    with pytest.raises(ValueError, match=r"near names: .*MiniGrid-Empty-5x5-v0"):
        make("MiniGrid-Empty-5x6-v0")


def test_a_missing_package_names_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "minigrid", None)
    with pytest.raises(ImportError) as raised:
        make(ID)
    assert any("populora-envs[minigrid]" in note for note in raised.value.__notes__)


def test_no_other_simulator_is_imported():
    code = f"from populora_envs.simulators import make; make({ID!r})"
    assert imported_by(code) == {"minigrid"}
