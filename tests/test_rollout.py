import functools

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from populora_envs import interact_with_env
from populora_envs.jobs import JobQueue, make_jobs
from populora_envs.rollout import play
from populora_envs.simulators import find_adapter
from populora_envs.slots import Slots
from populora_envs.spaces import Encoder
from tests.clock import MODES, Clock, ClockVector, OldClock, anyone, echo, numbered

NEXT, SAME, NEVER = AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED
unseeded = pytest.mark.filterwarnings("ignore:these environments cannot be seeded per episode")


def rollout(envs, pop_size, *, num_episodes=1, who=anyone, horizon=None, **settings):
    with interact_with_env(envs) as interactor:
        population = who(interactor, pop_size)
        return interactor.rollout(
            population, num_episodes=num_episodes, horizon=horizon, **settings
        )


# --- D-02: resets


@pytest.mark.parametrize("kind", [Clock, OldClock])
def test_no_episode_is_reset_twice(kind):
    envs = [kind(pay=lambda time, action: 1.0) for _ in range(2)]
    evaluated = rollout(envs, 4, num_episodes=3)
    assert evaluated.returns.tolist() == [[3.0] * 3] * 4
    assert sum(env.resets for env in envs) == 12
    assert evaluated.env_steps == sum(len(env.actions) for env in envs) == 36


def test_idle_environments_are_neither_reset_nor_stepped():
    envs = [Clock() for _ in range(5)]
    rollout(envs, 3)
    assert [env.resets for env in envs] == [1, 1, 1, 0, 0]
    assert [len(env.actions) for env in envs] == [3, 3, 3, 0, 0]


# --- who gets which return


@unseeded
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
@pytest.mark.parametrize("lengths", [[3], [3, 3], [3, 3, 3, 3], [3] * 7])
def test_everyone_is_credited_with_their_own_episodes(lengths, mode):
    expected = [[3.0 * i] * 2 for i in range(5)]
    who = {"num_episodes": 2, "who": numbered}
    assert rollout(ClockVector(lengths, mode, echo), 5, **who).returns.tolist() == expected
    make = functools.partial(Clock, 3, pay=echo)
    envs = SyncVectorEnv([make] * len(lengths), autoreset_mode=mode)
    assert rollout(envs, 5, **who).returns.tolist() == expected
    assert rollout([make() for _ in lengths], 5, **who).returns.tolist() == expected


def test_slots_of_different_length_are_credited_as_they_end():
    envs = [Clock(length, pay=echo) for length in (2, 5)]
    evaluated = rollout(envs, 4, who=numbered)
    # Slot 0 plays 0, then 2 from its step 2 and 3 from its step 4; slot 1 plays 1 for 5 steps.
    assert evaluated.lengths.tolist() == [[2], [5], [2], [2]]
    assert evaluated.returns.tolist() == [[0.0], [1.0 * (0 + 1 + 2 + 3 + 4)], [2.0], [3.0]]


# --- waves


@unseeded
@pytest.mark.parametrize(("mode", "resets"), [(SAME, 1), (NEXT, 2)])
def test_slots_that_begin_again_by_themselves_take_the_next_jobs(mode, resets):
    # The reset step of slot 0 falls on the end of slot 1: nobody acts, a new wave begins.
    env = ClockVector([2, 3], mode)
    evaluated = rollout(env, 4)
    assert evaluated.lengths.tolist() == [[2], [3], [2], [3]]
    assert evaluated.returns.tolist() == [[3.0], [6.0], [3.0], [6.0]]
    assert len(env.resets) == resets


@unseeded
def test_a_slot_cut_by_the_horizon_idles_until_the_next_wave():
    env = ClockVector([10, 2], SAME)
    evaluated = rollout(env, 5, horizon=3)
    # Slot 0 is cut after 3 steps, slot 1 plays 1 and 2 by step 4; then a wave begins with 3 and 4.
    assert evaluated.lengths.tolist() == [[3], [2], [2], [3], [2]]
    assert evaluated.returns.tolist() == [[6.0], [3.0], [3.0], [6.0], [3.0]]
    assert evaluated.ends == [
        [end] for end in ("horizon", *["terminated"] * 2, "horizon", "terminated")
    ]
    assert len(env.resets) == 2


@unseeded
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_an_end_at_the_horizon_is_an_end(mode):
    evaluated = rollout(ClockVector([3, 3], mode), 3, horizon=3)
    assert evaluated.lengths.tolist() == [[3]] * 3
    assert evaluated.ends == [["terminated"]] * 3


@unseeded
@pytest.mark.parametrize("mode", [SAME, NEXT])
def test_every_evaluation_begins_with_a_full_reset(mode):
    env = ClockVector([3, 3], mode)
    with interact_with_env(env) as interactor:
        population = anyone(interactor, 2)
        for _ in range(2):
            assert interactor.evaluate(population).tolist() == [6.0] * 2
            population.generation += 1
    seeds = [seed for seed, _ in env.resets]
    assert len(seeds) == 2
    assert len(set(seeds)) == 2


class Stubborn(ClockVector):
    """Pays a number drawn at the reset, the same after every autoreset (D-03)."""

    def reset(self, *, seed=None, options=None):
        self.luck = float(seed % 7)
        return super().reset(seed=seed, options=options)

    def step(self, actions):
        observation, rewards, *rest = super().step(actions)
        return observation, np.full_like(rewards, self.luck), *rest


@unseeded
def test_autoresets_to_the_state_of_the_first_reset_are_taken_as_they_are():
    evaluated = rollout(Stubborn([1, 3], SAME), 2, episode_seeds=[3, 4, 5])
    # Slot 0 plays three episodes of the first wave, whatever their seeds; the second wave has seed 5.
    assert evaluated.returns.tolist() == [[3.0, 3.0, 5.0], [9.0, 3.0, 15.0]]


# --- D-06: the horizon


@unseeded
@pytest.mark.parametrize("kind", ["single", "list", *MODES])
def test_an_environment_that_never_ends_returns_at_the_horizon(kind):
    envs = {
        "single": Clock(ends=None, pay=lambda time, action: 1.0),
        "list": [Clock(ends=None, pay=lambda time, action: 1.0) for _ in range(2)],
    }.get(kind) or ClockVector([10**9] * 2, kind, lambda time, action: 1.0)
    evaluated = rollout(envs, 3, num_episodes=2, horizon=7)
    assert evaluated.fitnesses.tolist() == [7.0] * 3
    assert evaluated.lengths.tolist() == [[7, 7]] * 3
    assert evaluated.ends == [["horizon"] * 2] * 3


def test_without_a_horizon_and_a_limit_episodes_end_after_a_thousand_steps_with_a_message():
    env = Clock(ends=None, pay=lambda time, action: 1.0, limit=None)
    with interact_with_env(env) as interactor:
        population = anyone(interactor, 1)
        with pytest.warns(UserWarning, match="no time limit: episodes end after 1000 steps"):
            assert interactor.evaluate(population).tolist() == [1000.0]


def test_the_limit_of_the_environment_is_the_horizon():
    evaluated = rollout(Clock(ends=None, limit=4), 2)
    assert evaluated.returns.tolist() == [[10.0], [10.0]]
    assert evaluated.ends == [["horizon"], ["horizon"]]


# --- D-30: errors of the simulator


class Licensed(Clock):
    """Fails at a reset, or at a step."""

    def __init__(self, resets=None, step=None):
        super().__init__()
        self.most_resets, self.bad_step = resets, step

    def reset(self, *, seed=None, options=None):
        if self.resets + 1 == self.most_resets:
            message = "no licence"
            raise LookupError(message)
        return super().reset(seed=seed, options=options)

    def step(self, action):
        if self.time + 1 == self.bad_step:
            message = "no licence"
            raise LookupError(message)
        return super().step(action)


@pytest.mark.parametrize(
    ("broken", "note"),
    [
        (Licensed(resets=1), "individual 1, episode 0, step 0, seed 30"),
        (Licensed(resets=2), "individual 0, episode 1, step 0, seed 40"),
        (Licensed(step=3), "individual 1, episode 0, step 2, seed 30"),
    ],
    ids=["first reset", "second reset", "step"],
)
def test_an_error_comes_out_as_it_is_and_says_where(broken, note):
    envs = [Clock(), broken, Clock()]
    with interact_with_env(envs) as interactor:
        population = anyone(interactor, 4)
        population.generation = 5
        with pytest.raises(LookupError, match="no licence") as raised:
            interactor.evaluate(population, episode_seeds=[30, 40])
        assert raised.value.__notes__ == ["in slot 1 of 3", note, "in generation 5"]
        broken.most_resets = broken.bad_step = None
        assert interactor.evaluate(population).tolist() == [6.0] * 4


class Opaque(SyncVectorEnv):
    """A vector environment whose members are its own affair."""


def test_an_error_of_a_vector_environment_names_those_it_may_be():
    with interact_with_env(Opaque([Clock, lambda: Licensed(step=2)])) as interactor:
        population = anyone(interactor, 2)
        with pytest.raises(LookupError, match="no licence") as raised:
            interactor.evaluate(population, episode_seeds=[30], horizon=5)
    assert raised.value.__notes__ == [
        "in one of the slots 0, 1 of 2",
        "individual 0, episode 0, step 1, seed 30",
        "individual 1, episode 0, step 1, seed 30",
        "in generation 0",
    ]


def test_at_most_eight_suspects_are_named():
    envs = Opaque([Clock] * 9 + [lambda: Licensed(step=2)])
    with interact_with_env(envs) as interactor:
        population = anyone(interactor, 10)
        with pytest.raises(LookupError) as raised:
            interactor.evaluate(population, horizon=5)
    assert raised.value.__notes__[0] == "in one of the slots 0, 1, 2, 3, 4, 5, 6, 7, ... of 10"
    assert len(raised.value.__notes__) == 10


def test_an_error_of_the_policy_blames_no_slot():
    def action(output):
        message = "mine"
        raise LookupError(message)

    with interact_with_env([Clock(), Clock()]) as interactor:
        population = anyone(interactor, 2)
        with pytest.raises(LookupError, match="mine") as raised:
            interactor.evaluate(population, action)
    assert raised.value.__notes__ == ["in generation 0"]


# --- non-finite rewards


def test_an_individual_with_a_reward_that_is_not_finite_ranks_last():
    def pay(time, action):
        return float("nan") if echo(time, action) == 4.0 else 1.0

    envs = [Clock(pay=echo) for _ in range(2)]
    for env in envs:
        env.pay = pay
    with interact_with_env(envs) as interactor:
        population = numbered(interactor, 3)
        with pytest.warns(UserWarning, match="individuals \\[2\\]"):
            fitness = interactor.evaluate(population)
    assert fitness.tolist() == [3.0, 3.0, -np.inf]


# --- the loop by itself


def run(adapter, jobs, horizon=20, with_moments=False):
    slots = Slots(adapter, Encoder(adapter.observation_space), torch.device("cpu"))
    batches = []

    def forward(batch, ids):
        batches.append((batch[:, 0].tolist(), ids.tolist()))
        return batch

    def act(output, keys, count):
        batches[-1] += (keys().tolist(),)
        return np.zeros(count, np.int64), np.ones(count, bool)

    played = play(slots, forward, act, JobQueue(jobs).take, horizon, with_moments=with_moments)
    assert not slots.acting.any()
    return played, batches


def test_only_those_who_act_are_in_the_batch():
    envs = [Clock(1), Clock(3)]
    played, batches = run(find_adapter(envs[0])(envs), make_jobs(3, [7]))
    assert [(batch, ids) for batch, ids, _ in batches] == [
        ([0.0, 0.0], [0, 1]),
        ([0.0, 1.0], [2, 1]),
        ([2.0], [1]),
    ]
    assert batches[2][2] == [[7, 2]]
    order = [(result.job.individual, result.length) for result in played.results]
    assert order == [(0, 1), (2, 1), (1, 3)]


def test_phantom_steps_are_left_out_of_the_forward():
    env = ClockVector([1, 3], NEXT)
    _, batches = run(find_adapter(env)([env]), make_jobs(3, [7]))
    assert [(batch, ids) for batch, ids, _ in batches] == [
        ([0.0, 0.0], [0, 1]),
        ([1.0], [1]),
        ([0.0, 2.0], [2, 1]),
    ]


def test_moments_are_of_what_the_policy_saw():
    env = ClockVector([2, 3], NEXT)
    played, _ = run(find_adapter(env)([env]), make_jobs(3, [7]), with_moments=True)
    moments = {result.job.individual: result.moments for result in played.results}
    assert {i: float(m.mean[0]) for i, m in moments.items()} == {0: 0.5, 1: 1.0, 2: 0.5}


def test_slots_left_in_an_episode_are_sent_away_first():
    env = Clock()
    with interact_with_env(env) as interactor:
        interactor.reset()
        interactor.step([0])
        assert interactor.evaluate(anyone(interactor, 2)).tolist() == [6.0, 6.0]
        with pytest.raises(RuntimeError, match="call reset first"):
            interactor.step([0])


def test_no_jobs_are_no_results():
    env = Clock()
    played, batches = run(find_adapter(env)([env]), [])
    assert played.results == batches == []
    assert env.resets == 0
