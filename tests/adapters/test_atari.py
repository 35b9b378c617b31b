"""The Atari games of ale-py, for real."""

import sys

import gymnasium
import numpy as np
import pytest
import torch
from torch import nn

from populora_envs import evolve_with_env, interact_with_env
from populora_envs.simulators import make
from populora_envs.testing import check_adapter
from tests.imported import imported_by

ale_py = pytest.importorskip("ale_py", reason="ale-py is not installed")

from ale_py.vector_env import AtariVectorEnv  # noqa: E402 - after the skip
from gymnasium.vector import AutoresetMode  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:AtariVectorEnv clips rewards")

SEEDS = [11, 12, 13]


def games(num_envs, **settings):
    settings = {"reward_clipping": False, "max_num_frames_per_episode": 400, **settings}
    return AtariVectorEnv("breakout", num_envs, **settings)


def small(outputs=4):
    torch.manual_seed(0)
    layer = nn.Linear(4 * 36, outputs)
    with torch.no_grad():
        layer.weight.mul_(0.02)  # frames are 0 to 255
    return nn.Sequential(nn.AdaptiveAvgPool2d(6), nn.Flatten(), layer)


def played(env, action="categorical"):
    with interact_with_env(env) as interactor:
        population = interactor.population(small(), pop_size=3, low_rank=2, init="zero", seed=1)
        return interactor.rollout(population, action, episode_seeds=SEEDS, horizon=100)


@pytest.mark.parametrize("sticky", [0.0, 0.25])
def test_episodes_depend_on_their_seed_alone(sticky):
    """Not on the slot, the number of slots, the autoreset mode, or what was played before."""
    one = played(games(1, repeat_action_probability=sticky))
    assert len(set(one.returns.flatten().tolist())) > 1
    for env in (
        games(4, repeat_action_probability=sticky),
        games(2, repeat_action_probability=sticky, autoreset_mode=AutoresetMode.SAME_STEP),
    ):
        other = played(env)
        assert torch.equal(one.returns, other.returns)
        assert torch.equal(one.lengths, other.lengths)
        assert one.ends == other.ends


def test_returns_are_those_of_a_loop_by_hand():
    env = games(1)
    with interact_with_env(games(3)) as interactor:
        population = interactor.population(small(), pop_size=3, low_rank=2, init="random", seed=1)
        run = interactor.rollout(population, episode_seeds=SEEDS, horizon=100)
        policies = [population.merge_(i) for i in range(3)]
    for i, policy in enumerate(policies):
        for episode, seed in enumerate(SEEDS):
            observation, _ = env.reset(seed=seed)
            total, length, over = 0.0, 0, False
            while not over and length < 100:
                with torch.inference_mode():
                    action = policy(torch.from_numpy(observation).float()).argmax(1).numpy()
                observation, reward, terminated, truncated, _ = env.step(action)
                total, length = total + float(reward[0]), length + 1
                over = bool(terminated[0] or truncated[0])
            assert (run.returns[i, episode], run.lengths[i, episode]) == (total, length)


def test_it_keeps_the_contract():
    report = check_adapter(lambda: games(3))
    assert report.seeds_slots
    assert report.adapter == "AtariVector"


def test_a_vector_environment_from_its_id():
    gymnasium.register_envs(ale_py)
    env = gymnasium.make_vec("ALE/Pong-v5", num_envs=2)
    with interact_with_env(env) as interactor:
        assert interactor.observation_space.shape == (4, 84, 84)
        assert interactor.reset().shape == (2, 4, 84, 84)


def test_clipped_rewards_are_said():
    with pytest.warns(UserWarning, match="AtariVectorEnv clips rewards"):
        interact_with_env(games(1)).close()


def test_some_games_at_a_time_are_refused():
    with pytest.raises(ValueError, match="steps 2 of its 4 games at a time"):
        interact_with_env(games(4, batch_size=2))


def ram_pong():
    return gymnasium.make("ALE/Pong-v5", obs_type="ram", max_episode_steps=50)


def test_an_id_makes_single_games_that_evolve():
    env = make("ALE/Pong-v5")
    assert env.observation_space.shape == (210, 160, 3)
    env.close()
    model = nn.Sequential(nn.Flatten(), nn.Linear(128, 6))
    _, history = evolve_with_env(
        ram_pong,
        model,
        num_generations=2,
        pop_size=4,
        low_rank=1,
        num_envs=2,
        horizon=10,
        return_history=True,
    )
    assert len(history) == 2


def test_the_same_game_gives_the_same_in_workers():
    def fitness(**settings):
        with interact_with_env("ALE/Breakout-v5", num_envs=2, **settings) as interactor:
            torch.manual_seed(0)
            model = nn.Sequential(nn.AdaptiveAvgPool2d((1, 3)), nn.Flatten(), nn.Linear(630, 4))
            population = interactor.population(model, pop_size=2, low_rank=1)
            return interactor.evaluate(population, "categorical", episode_seeds=[1, 2], horizon=30)

    assert torch.equal(fitness(), fitness(num_workers=2))


def test_an_unknown_id_lists_near_names():
    with pytest.raises(ValueError, match=r"near names: .*ALE/Pong-v5"):
        make("ALE/Pongg-v5")


def test_a_missing_package_names_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "ale_py", None)
    with pytest.raises(ImportError) as raised:
        make("ALE/Pong-v5")
    assert any("populora-envs[atari]" in note for note in raised.value.__notes__)


def test_no_other_simulator_is_imported():
    code = "from populora_envs.simulators import make; make('ALE/Pong-v5')"
    assert imported_by(code) == {"ale_py"}


def test_frames_reach_the_policy_as_they_are():
    with interact_with_env(games(1)) as interactor:
        seen = interactor.reset(seeds=[3])
    env = games(1)
    raw, _ = env.reset(seed=np.array([3]))
    assert torch.equal(seen, torch.from_numpy(raw).float())
