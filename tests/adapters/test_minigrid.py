"""MiniGrid, for real."""

import sys

import gymnasium
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import nn

from populora_envs import evolve_with_env, interact_with_env
from populora_envs.simulators import make
from populora_envs.testing import check_adapter
from tests.imported import imported_by

minigrid = pytest.importorskip("minigrid", reason="minigrid is not installed")

from minigrid.wrappers import FlatObsWrapper, ImgObsWrapper  # noqa: E402 - after the skip

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
