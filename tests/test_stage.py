"""A stage plays its share of jobs, entry by entry, and leaves the process as it was."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from populora_envs.actor import Actor
from populora_envs.jobs import Job, JobQueue, make_jobs
from populora_envs.normalizer import Normalizer
from populora_envs.simulators import find_adapter
from populora_envs.slots import Slots
from populora_envs.spaces import Encoder
from populora_envs.stage import Stage, Task
from tests.clock import ANYTHING, MODES, Clock, ClockVector, echo
from tests.populations import population

CPU = torch.device("cpu")


def task(pop_size=2, seeds=(7, 9), horizons=(20,), *, draws=False, with_moments=False):
    return Task(pop_size, tuple(seeds), tuple(horizons), draws, with_moments)


def slots_of(*envs):
    adapter = find_adapter(envs[0])(list(envs))
    return Slots(adapter, Encoder(adapter.observation_space), CPU)


def stage_of(*entries, action=None):
    space = entries[0][0].action_space
    return Stage([slots_of(*envs) for envs in entries], Actor(action, space, None, None))


def by_number(batch, ids):
    """Individual i acts i times the clock."""
    return batch * ids[:, None]


def two_logits(batch, ids):
    return torch.zeros(len(batch), 2)


def queues(jobs):
    return lambda entry: JobQueue(jobs).take


def play(stage, the_task, forward=two_logits, seed=0, **options):
    return stage.play(forward, the_task, queues(the_task.jobs()), seed, **options)


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


# --- tasks


def test_a_task_gives_every_individual_every_seed():
    assert task(2, (7, 9)).jobs() == [Job(0, 0, 7), Job(1, 0, 7), Job(0, 1, 9), Job(1, 1, 9)]
    assert task(3, ()).jobs() == []


def test_the_seed_of_the_global_generators_depends_on_the_episodes_and_on_who_plays():
    seeds = [
        task(seeds=(7, 9)).global_seed(),
        task(seeds=(9, 7)).global_seed(),
        task(seeds=(7,)).global_seed(),
        task(seeds=(7, 9)).global_seed(0),
        task(seeds=(7, 9)).global_seed(1),
    ]
    assert len(set(seeds)) == 5
    assert all(type(seed) is int and 0 <= seed < 2**31 for seed in seeds)
    assert task(5, (7, 9), (3, 4), draws=True).global_seed(1) == seeds[4]


# --- playing


def test_every_entry_is_played_up_to_its_own_horizon():
    stage = stage_of([Clock(3), Clock(3)], [Clock(5)])
    shown = play(stage, task(2, (7, 9), (20, 4)))
    assert [len(entry) for entry in shown.results] == [4, 4]
    assert {(r.episode_return, r.length, r.end) for r in shown.results[0]} == {
        (6.0, 3, "terminated")
    }
    assert {(r.episode_return, r.length, r.end) for r in shown.results[1]} == {(10.0, 4, "horizon")}
    assert sorted(r.job for r in shown.results[1]) == sorted(make_jobs(2, (7, 9)))
    assert shown.seconds_env > 0
    assert shown.seconds_forward > 0
    assert shown.drew_globals is False


def test_each_entry_takes_its_jobs_by_its_number():
    asked = []
    stage = stage_of([Clock(1)], [Clock(1)], [Clock(1)])

    def take(entry):
        asked.append(entry)
        return JobQueue([Job(entry, 0, 5)] * entry).take

    shown = stage.play(two_logits, task(horizons=(9, 9, 9)), take, 0)
    assert asked == [0, 1, 2]
    assert [[r.job.individual for r in entry] for entry in shown.results] == [[], [1], [2, 2]]


def test_individuals_are_told_apart():
    envs = [Clock(3, pay=echo), Clock(3, pay=echo)]
    shown = play(stage_of(envs), task(3, (7,)), by_number)
    returns = {r.job.individual: r.episode_return for r in shown.results[0]}
    assert returns == {0: 0.0, 1: 3.0, 2: 6.0}


def test_moments_come_where_they_are_wanted():
    bare = play(stage_of([Clock(3)]), task(1, (7,)))
    full = play(stage_of([Clock(3)]), task(1, (7,), with_moments=True))
    assert bare.results[0][0].moments is None
    moments = full.results[0][0].moments
    assert (moments.count, moments.mean.tolist(), moments.squares.tolist()) == (3, [1.0], [2.0])


@pytest.mark.parametrize(
    ("draws", "expected"), [(False, [None] * 3), (True, [[7, 0], [7, 1], [7, 2]])]
)
def test_heads_get_the_keys_of_their_noise_only_where_they_draw(draws, expected, monkeypatch):
    seen = []
    stage = stage_of([Clock(3)])
    act = stage.actor.act

    def watched(output, keys, count):
        seen.append(None if keys is None else keys[0].tolist())
        return act(output, keys, count)

    monkeypatch.setattr(stage.actor, "act", watched)
    play(stage, task(1, (7,), draws=draws))
    assert seen == expected


def test_seats_show_who_plays_and_are_empty_afterwards():
    seats = np.full((3, 2), -1)
    seen = []

    def forward(batch, ids):
        seen.append(seats.tolist())
        return two_logits(batch, ids)

    play(stage_of([Clock(1), Clock(2)]), task(2, (7,)), forward, seats=seats)
    assert seen == [[[0, 0], [1, 0], [-1, -1]], [[-1, -1], [1, 0], [-1, -1]]]
    assert seats.tolist() == [[-1, -1]] * 3


# --- odd numbers


class Odd(Clock):
    """Gives what it is told to, in its first and only step."""

    def __init__(self, shown=0.0, reward=1.0, flags=(True, False)):
        super().__init__()
        self.value, self.given = np.float32([shown]), (reward, *flags, {})

    def shown(self):
        return self.value

    def step(self, action):
        return self.value, *self.given


REWARDS = [0.5, 2, True, np.float32(0.1), np.True_, np.ones(1), np.ones((1, 1)), torch.tensor(3.0)]
NO, YES = (False, np.False_, 0, np.zeros(1), torch.tensor(False)), (True, 1, np.ones(1, bool))


@pytest.mark.parametrize("reward", REWARDS, ids=repr)
@pytest.mark.parametrize("jobs", [3, 2], ids=["all slots", "some slots"])
def test_rewards_and_flags_of_any_type_are_read(reward, jobs):
    for no in NO:
        for yes in YES:
            odd = [Odd(0, reward, (yes, no)), Odd(0, 2.0, (no, yes)), Odd(0, -1, (yes, yes))]
            (results,) = play(stage_of(odd), task(jobs, (7,))).results
            number = reward.item() if hasattr(reward, "item") else float(reward)
            expected = [(number, "terminated"), (2.0, "truncated"), (-1.0, "terminated")]
            assert [(r.episode_return, r.end) for r in results] == expected[:jobs]
            assert all(type(r.episode_return) is float for r in results)


@pytest.mark.parametrize("reward", [None, "1", np.ones(2)], ids=repr)
def test_a_reward_that_is_no_number_is_blamed_on_its_slot(reward):
    with pytest.raises((TypeError, ValueError), match="a reward is one number") as caught:
        play(stage_of([Odd(), Odd(0, reward), Odd()]), task(3, (7,)))
    assert caught.value.__notes__[0] == "in slot 1 of 3"


def act(space, output, action=None):
    return Actor(action, space, (-1.0, 1.0), None).act(torch.tensor([output]), None, 1)


HUGE, FLAT = spaces.Box(-1e300, 1e300, (1,), np.float64), spaces.Box(1.0, 1.0, (1,))
SILENT = {
    "a huge observation": lambda: moved().on_array(np.float32([[3e38]])),
    "infinite inputs": lambda: mlp()(np.float32([[np.inf, -np.inf]] * 2), torch.arange(2)),
    "huge inputs": lambda: mlp()(np.float32([[3e38, -3e38]] * 2), torch.arange(2)),
    "huge logits": lambda: act(spaces.Discrete(2), [1e30, 0.0]),
    "huge logits for a head": lambda: act(spaces.Discrete(2), [1e30, 0.0], "categorical"),
    "an infinite number for one point": lambda: act(FLAT, [np.inf]),
    "a number that is huge when mapped": lambda: act(HUGE, [1e30]),
}


def mlp():
    torch.manual_seed(0)
    return population(nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 2)), 2).routed


def moved():
    layer = Normalizer(1)
    layer.divisor.fill_(1e-4)
    return layer


# that a number lies outside of from_range is said as ever
@pytest.mark.filterwarnings("ignore:the policy gives")
@pytest.mark.parametrize("call", SILENT.values(), ids=SILENT)
def test_numbers_out_of_the_ordinary_are_no_warnings_of_numpy(call):
    call()


@pytest.mark.parametrize("rows", [slice(None), np.array([2, 0])], ids=["all", "some"])
def test_arrays_of_slots_are_copies_of_what_a_batch_holds(rows):
    slots = slots_of(Clock(), Clock(), Clock())
    slots.begin(np.ones(3, bool), [0, 0, 0])
    slots.step(np.zeros(3, np.int64))
    array = slots.array(rows)
    assert np.array_equal(array, slots.batch(rows).numpy())
    slots.step(np.zeros(3, np.int64))
    assert (array == 1.0).all()


@pytest.mark.parametrize("mode", MODES)
def test_slots_may_begin_where_one_is_ready(mode):
    slots = slots_of(ClockVector([2, 3, 4], mode))
    assert slots.may_begin()
    slots.begin(np.ones(3, bool), [0, 0, 0])
    for _ in range(9):
        transition = slots.step(np.zeros(3, np.int64))
        slots.rest((transition.terminated | transition.truncated) & slots.acting)
        assert slots.may_begin() is bool(slots.ready().any())
        assert slots.num_acting == slots.acting.sum()


# --- global generators

DRAWS = {
    "python": random.random,
    "numpy": np.random.random,
    "torch": lambda: float(torch.rand(())),
}


class Drawing(Clock):
    """Pays what it draws."""

    def __init__(self, draw):
        super().__init__(2)
        self.draw = draw

    def step(self, action):
        shown, _, *rest = super().step(action)
        return shown, self.draw(), *rest


@pytest.mark.parametrize("source", DRAWS)
def test_draws_from_global_generators_are_noticed_repeatable_and_undone(source):
    draw = DRAWS[source]

    def drawn(seed):
        shown = play(stage_of([Drawing(draw)]), task(1, (7,)), seed=seed)
        assert shown.drew_globals is True
        return shown.results[0][0].episode_return

    random.seed(3)
    np.random.seed(3)  # noqa: NPY002 - the generator that user code may read
    torch.manual_seed(3)
    untouched = draw()
    random.seed(3)
    np.random.seed(3)  # noqa: NPY002
    torch.manual_seed(3)
    assert drawn(5) == drawn(5) != drawn(6)
    assert draw() == untouched


def test_draws_of_a_policy_are_noticed_as_well():
    shown = play(stage_of([Clock(2)]), task(1), lambda batch, ids: torch.rand(len(batch), 2))
    assert shown.drew_globals is True


# --- threads


def test_torch_uses_one_thread_while_it_plays(two_threads):
    seen = []

    def forward(batch, ids):
        seen.append(torch.get_num_threads())
        return two_logits(batch, ids)

    play(stage_of([Clock(2)]), task(1, (7,)), forward)
    assert seen == [1, 1]
    assert torch.get_num_threads() == 2


class Broken(Clock):
    def step(self, action):
        if self.time == 1:
            raise RuntimeError("it broke")
        random.random()
        return super().step(action)


def test_an_error_leaves_threads_generators_and_slots_as_they_were(two_threads):
    stage = stage_of([Clock(3), Broken(3)])
    random.seed(3)
    expected = random.random()
    random.seed(3)
    with pytest.raises(RuntimeError, match="it broke") as caught:
        play(stage, task(2, (7,)))
    assert torch.get_num_threads() == 2
    assert random.random() == expected
    assert caught.value.__notes__ == ["in slot 1 of 2", "individual 1, episode 0, step 1, seed 7"]
    assert not stage.entries[0].acting.any()
    assert not torch.is_inference_mode_enabled()


def test_a_stage_plays_again_after_an_error():
    stage = stage_of([Clock(2, pay=echo)], action=lambda output: output)
    with pytest.raises(ZeroDivisionError):
        play(stage, task(1, (7,)), lambda batch, ids: 1 / 0)
    shown = play(stage, task(2, (7,)), by_number)
    assert [r.episode_return for r in shown.results[0]] == [0.0, 1.0]
    assert stage.actor.space == ANYTHING
