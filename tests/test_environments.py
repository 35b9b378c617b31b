import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from populora_envs import interact_with_env
from populora_envs.seeds import Purpose, job_seed
from tests.clock import MODES, Clock, ClockVector, DuckClock, anyone, echo

NEXT, SAME = AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP
unseeded = pytest.mark.filterwarnings("ignore:these environments cannot be seeded per episode")


class Reused(Clock):
    """Writes every observation into the same array (D-19)."""

    def __init__(self):
        super().__init__()
        self.buffer = np.zeros(1, np.float32)

    def shown(self):
        self.buffer[0] = self.time
        return self.buffer


@unseeded
@pytest.mark.parametrize(
    "envs",
    [
        lambda: Reused(),
        lambda: [Reused(), Reused()],
        lambda: SyncVectorEnv([Reused, Reused], copy=False),
        lambda: ClockVector([9, 9], SAME),
    ],
    ids=["single", "list", "vector without copies", "vector of its own kind"],
)
def test_kept_tensors_do_not_change_under_the_users_hands(envs):
    with interact_with_env(envs()) as interactor:
        kept = [interactor.reset()]
        rewards, flags = [], []
        for _ in range(2):
            observation, reward, terminated, _ = interactor.step([0] * interactor.num_envs)
            kept.append(observation)
            rewards.append(reward)
            flags.append(terminated)
        interactor.step([0] * interactor.num_envs)
    assert [tensor[-1].item() for tensor in kept] == [0.0, 1.0, 2.0]
    assert [tensor[-1].item() for tensor in rewards] == [1.0, 2.0]
    assert [tensor[-1].item() for tensor in flags] == [False, False]


def test_steps_give_tensors_of_known_types():
    with interact_with_env([Clock(2), Clock(3)]) as interactor:
        observation = interactor.reset(seeds=[5, 6])
        assert (observation.dtype, observation.shape) == (torch.float32, (2, 1))
        interactor.step([0, 1])
        observation, reward, terminated, truncated = interactor.step(torch.tensor([0, 1]))
    assert observation.tolist() == [[2.0], [2.0]]
    assert (reward.dtype, reward.tolist()) == (torch.float64, [2.0, 2.0])
    assert (terminated.dtype, terminated.tolist()) == (torch.bool, [True, False])
    assert truncated.tolist() == [False, False]


def test_ended_slots_rest_until_they_are_reset():
    envs = [Clock(1), Clock(9)]
    with interact_with_env(envs) as interactor:
        interactor.reset(seeds=[5, 6])
        interactor.step([0, 0])
        observation, reward, terminated, _ = interactor.step([0, 0])
        assert reward.tolist() == [0.0, 2.0]
        assert terminated.tolist() == [False, False]
        assert len(envs[0].actions) == 1
        observation = interactor.reset(seeds=[7, 8], slots=[True, False])
        assert observation.tolist() == [[0.0], [2.0]]
        assert [env.seeds for env in envs] == [[5, 7], [6]]
        assert interactor.step([0, 0])[1].tolist() == [1.0, 3.0]


@unseeded
def test_a_slot_that_begins_again_by_itself_can_be_reset_alone_once_it_has():
    env = ClockVector([2, 9], NEXT)
    with interact_with_env(env) as interactor:
        interactor.reset()
        with pytest.raises(ValueError, match="slots \\[0\\] cannot begin alone"):
            interactor.reset(slots=[True, False])
        interactor.step([0, 0])
        assert interactor.step([0, 0])[2].tolist() == [True, False]
        with pytest.raises(ValueError, match="slots \\[0\\] cannot begin alone"):
            interactor.reset(slots=[True, False])
        assert interactor.step([0, 0])[1].tolist() == [0.0, 3.0]
        assert interactor.reset(slots=[True, False]).tolist() == [[0.0], [3.0]]
        assert interactor.step([0, 0])[1].tolist() == [1.0, 4.0]
        interactor.reset()
    assert len(env.resets) == 2


@pytest.mark.parametrize(
    "arguments",
    [{"seeds": [1]}, {"seeds": [1, 2, 3]}, {"slots": [True]}, {"slots": [[True, False]]}],
    ids=str,
)
def test_seeds_and_masks_of_another_size_are_an_error(arguments):
    words = "for 2 slots: give one of each"
    with (
        interact_with_env([Clock(), Clock()]) as interactor,
        pytest.raises(ValueError, match=words),
    ):
        interactor.reset(**arguments)


def test_stepping_before_a_reset_is_an_error():
    with interact_with_env(Clock()) as interactor, pytest.raises(RuntimeError, match="reset first"):
        interactor.step([0])


def test_stepping_a_dict_is_an_error():
    with interact_with_env({"a": Clock, "b": Clock}) as interactor:
        with pytest.raises(ValueError, match="not a dict: use evaluate"):
            interactor.reset()
        with pytest.raises(ValueError, match="not a dict: use evaluate"):
            interactor.step([0])


def test_an_error_in_a_loop_of_ones_own_names_the_slot():
    def fail(time, action):
        message = "no licence"
        raise LookupError(message)

    with interact_with_env([Clock(), Clock(pay=fail)]) as interactor:
        interactor.reset()
        with pytest.raises(LookupError, match="no licence") as raised:
            interactor.step([0, 0])
    assert raised.value.__notes__ == ["in slot 1 of 2"]


def test_actions_are_in_from_range():
    env = Clock(action_space=spaces.Box(0.0, 10.0, (1,), np.float32))
    with interact_with_env(env) as interactor:
        interactor.reset()
        interactor.step([[0.5]])
    with interact_with_env(env, from_range=None) as interactor:
        interactor.reset()
        interactor.step([[0.5]])
    assert [action.tolist() for action in env.actions] == [[7.5], [0.5]]


# --- seeds


@pytest.mark.parametrize("kind", ["list", *MODES])
def test_everyone_faces_the_same_start_states_whatever_the_slots(kind):
    envs = [Clock(), Clock()]
    makers = [lambda env=env: env for env in envs]
    given = envs if kind == "list" else SyncVectorEnv(makers, autoreset_mode=kind)
    with interact_with_env(given, seed=3) as interactor:
        population = anyone(interactor, 4)
        population.generation = 2
        interactor.evaluate(population, num_episodes=2)
    seeds = sorted(seed for env in envs for seed in env.seeds if seed is not None)
    expected = [job_seed(3, Purpose.SELECTION, 2, episode) for episode in (0, 1)]
    assert seeds == sorted(expected * 4)
    assert all(type(seed) is int for seed in seeds)


def test_seeds_of_neighbouring_runs_are_disjoint():
    used = []
    for seed in (0, 1):
        envs = [Clock() for _ in range(4)]
        with interact_with_env(envs, seed=seed) as interactor:
            interactor.reset()
            interactor.evaluate(anyone(interactor, 4), num_episodes=4)
        used.append({seed for env in envs for seed in env.seeds})
    assert not used[0] & used[1]
    assert all(type(seed) is int and 0 <= seed < 2**31 for seed in used[0] | used[1])


def test_what_cannot_be_seeded_is_said_once(recwarn):
    with interact_with_env({"a": DuckClock(), "b": DuckClock()}) as interactor:
        interactor.evaluate(anyone(interactor, 2))
        interactor.evaluate(anyone(interactor, 2))
    assert len(recwarn) == 1
    assert "cannot be seeded" in str(recwarn[0].message)


# --- closing


def test_an_interactor_closes_what_it_opened_when_a_loop_fails():
    opened = []

    def make():
        opened.append(Clock())
        return opened[-1]

    def fail_in_a_loop():
        with interact_with_env(make) as interactor:
            interactor.reset()
            message = "mine"
            raise LookupError(message)

    with pytest.raises(LookupError, match="mine"):
        fail_in_a_loop()
    assert [env.closes for env in opened] == [1]


def test_the_interactor_names_its_spaces_and_slots():
    with interact_with_env([Clock(pay=echo), Clock(pay=echo)]) as interactor:
        assert interactor.num_envs == 2
        assert interactor.observation_space.shape == (1,)
        assert interactor.action_space.shape == (1,)
