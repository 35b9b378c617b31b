import functools
import sys
import types

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from populora_adapters.duck import DuckEnvs
from populora_adapters.pettingzoo import ParallelEnvs
from populora_adapters.vectors import SlotResetVector, WaveVector
from populora_envs import simulators
from populora_envs.adapter import Autoreset, Transition
from populora_envs.jobs import JobQueue, make_jobs
from populora_envs.rollout import play
from populora_envs.slots import Slots
from populora_envs.spaces import Encoder
from populora_envs.testing import AdapterReport, check_adapter
from populora_envs.testing.accounting import Watched
from populora_envs.testing.driver import ActionTable
from populora_envs.testing.ledger import Ledger
from tests.clock import MODES, Clock, ClockVector, DmClock, DuckClock, OldClock

NEXT, SAME, NEVER = AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED

everything = spaces.Dict(
    a=spaces.Tuple((spaces.Discrete(3, start=1), spaces.MultiBinary(2))),
    b=spaces.Box(-1.0, 1.0, (), np.float32),
    c=spaces.Text(3),
)


class Nested(Clock):
    """Observations and actions of many kinds."""

    def __init__(self):
        super().__init__(action_space=spaces.Tuple((everything["a"], spaces.MultiDiscrete([2, 3]))))
        self.observation_space = everything

    def shown(self):
        return {"a": (1 + self.time % 3, np.int8([0, 1])), "b": np.float32(0.5), "c": "go"}


class Leaving:
    """A parallel environment that ends after 6 steps; agent k of three leaves after k + 2 of them."""

    possible_agents = ("a", "b", "c")
    max_cycles = 6

    def __init__(self):
        self.agents, self.time, self.paid = [], 0, 0.0

    def observation_space(self, agent):
        return spaces.Box(-9.0, 9.0, (1,))

    def action_space(self, agent):
        return spaces.Box(-2.0, 2.0, (1,))

    def _observed(self, agents):
        return {agent: np.array([self.time + self.paid], np.float32) for agent in agents}

    def reset(self, seed=None, options=None):
        self.agents, self.time, self.paid = list(self.possible_agents), 0, (seed or 0) % 3 / 3
        return self._observed(self.agents), {}

    def step(self, actions):
        assert set(actions) == set(self.agents)
        acted = self.agents
        self.time += 1
        rewards = {agent: float(actions[agent][0]) + self.paid for agent in acted}
        ends = {agent: self.time == self.possible_agents.index(agent) + 2 for agent in acted}
        cut = dict.fromkeys(acted, self.time == self.max_cycles)
        self.agents = [agent for agent in acted if not (ends[agent] or cut[agent])]
        return self._observed(acted), rewards, ends, cut, {}

    def close(self): ...


Leaving.__module__ = "pettingzoo.leaving"


GOOD = {
    "team": (Leaving, "ParallelEnvs", 6),
    "clock": (Clock, "GymnasiumEnvs", 2),
    "nested": (Nested, "GymnasiumEnvs", 2),
    "old": (OldClock, "DuckEnvs", 2),
    "duck": (DuckClock, "DuckEnvs", 2),
    "dm": (DmClock, "DmEnvs", 2),
    "cartpole": ("CartPole-v1", "GymnasiumEnvs", 2),
    "blackjack": ("Blackjack-v1", "GymnasiumEnvs", 2),
    "pendulum": (functools.partial(gymnasium.make, "Pendulum-v1"), "GymnasiumEnvs", 2),
    "dm_control": ("dm_control/cartpole-balance", "DmEnvs", 2),
    "cartpoles": (functools.partial(gymnasium.make_vec, "CartPole-v1", 3), "WaveVector", 3),
    **{
        f"own {mode.name}": (
            functools.partial(ClockVector, [2, 5], mode),
            "SlotResetVector" if mode is NEVER else "WaveVector",
            2,
        )
        for mode in MODES
    },
    **{
        f"sync {mode.name}": (
            functools.partial(SyncVectorEnv, [Clock] * 3, autoreset_mode=mode),
            "SyncMembers",
            3,
        )
        for mode in MODES
    },
    **{
        f"async {mode.name}": (
            functools.partial(AsyncVectorEnv, [Clock] * 2, autoreset_mode=mode),
            "SlotResetVector",
            2,
        )
        for mode in MODES
    },
}


@pytest.mark.filterwarnings("ignore:.*DISPLAY environment variable is missing")
@pytest.mark.parametrize(("make", "adapter", "slots"), GOOD.values(), ids=GOOD)
def test_every_built_in_adapter_passes(make, adapter, slots):
    found = check_adapter(make)
    assert (found.adapter, found.num_slots) == (adapter, slots)


def test_the_report_says_what_was_found():
    found = check_adapter(lambda: Clock(5), num_envs=3, steps=30)
    assert found == AdapterReport(
        adapter="GymnasiumEnvs",
        num_slots=3,
        observation_space=Clock().observation_space,
        action_space=Clock().action_space,
        autoreset=Autoreset.CALLER,
        seeds_slots=True,
        time_limit=20,
        num_ends=18,
        num_truncated=0,
        environment="Clock",
        team=(1.0,),
        notes=(),
        repeats=True,
        steps_per_second=0.0,
    )
    assert found.steps_per_second > 0


def test_a_time_limit_that_lies_beyond_the_steps_is_reached():
    found = check_adapter("Pendulum-v1", num_envs=3, steps=5)
    assert (found.num_ends, found.num_truncated) == (3, 3)


@pytest.mark.parametrize("wrong", [{"num_envs": 0}, {"steps": 0}])
def test_sizes_below_1_are_refused(wrong):
    with pytest.raises(ValueError, match=r"must be at least 1, not 0"):
        check_adapter("CartPole-v1", **wrong)


def test_a_space_in_which_no_policy_can_act_is_refused():
    with pytest.raises(ValueError, match="no action can be read for the space Text"):
        check_adapter(lambda: Clock(action_space=spaces.Text(3)))


@pytest.mark.parametrize("steps", [1, 2, 3, 7])
@pytest.mark.parametrize("mode", MODES)
def test_episodes_that_are_cut_are_counted_too(mode, steps):
    def make():
        return ClockVector([2, 5, 1, 30], mode, limit=30)

    assert check_adapter(make, steps=steps).time_limit == 30


def test_what_was_made_is_closed():
    made = []

    def make():
        made.append(Clock())
        return made[-1]

    check_adapter(make, num_envs=3)
    assert len(made) == 3
    assert all(env.closes >= 1 for env in made)


# --- the loop by hand


def by_hand(ledger):
    return [(c.total, c.length, _end(c)) for c in (e.counted for e in ledger.begun if e.length)]


def _end(counted):
    return "terminated" if counted.terminated else "truncated" if counted.truncated else "horizon"


@pytest.mark.parametrize("horizon", [3, 50])
@pytest.mark.parametrize(
    "make",
    [
        Clock,
        lambda: SyncVectorEnv([Clock] * 3),
        *(functools.partial(ClockVector, [2, 5, 1, 7], mode) for mode in MODES),
    ],
)
def test_a_rollout_counts_as_the_loop_by_hand_does(make, horizon):
    env = make()
    adapter = simulators.find_adapter(env)([env])
    ledger = Ledger(adapter.num_slots, adapter.autoreset, horizon)
    encoder = Encoder(adapter.observation_space)
    slots = Slots(Watched(adapter, ledger), encoder, torch.device("cpu"))
    table = ActionTable(adapter.action_space, 64)

    def act(output, keys, count):
        return table[keys().sum(dim=1).numpy()], np.ones(count, bool)

    jobs = make_jobs(3, range(5))
    played = play(slots, lambda batch, ids: batch, act, JobQueue(jobs).take, horizon)
    results = sorted(played.results, key=lambda result: jobs.index(result.job))
    counted = [(result.episode_return, result.length, result.end) for result in results]
    assert counted == by_hand(ledger)[: len(jobs)]


def test_the_loop_by_hand_follows_the_rules_of_each_autoreset():
    paid = np.array([[1.0], [2.0], [4.0], [8.0], [16.0]])
    ends = np.array([[False], [True], [False], [False], [True]])
    never = np.zeros(1, bool)
    expected = {
        Autoreset.SAME_STEP: [(3.0, 2, "terminated"), (28.0, 3, "terminated")],
        Autoreset.NEXT_STEP: [(3.0, 2, "terminated"), (24.0, 2, "terminated")],
        Autoreset.CALLER: [(3.0, 2, "terminated")],
    }
    for autoreset, episodes in expected.items():
        ledger = Ledger(1, autoreset)
        ledger.reset(None)
        for reward, ended in zip(paid, ends, strict=True):
            ledger.step(reward, ended, never, None)
        assert by_hand(ledger) == episodes


# --- wrong adapters


class Faulty:
    """An environment for the adapter of the test."""

    __module__ = "faulty"

    def __init__(self):
        self.clock = Clock(3)
        self.closes = 0

    def __getattr__(self, name):
        return getattr(self.clock, name)

    def reset(self, *, seed=None, options=None):
        return self.clock.reset(seed=seed)

    def step(self, action):
        return self.clock.step(action)

    def close(self):
        self.closes += 1


@pytest.fixture
def check(monkeypatch):
    """Check an adapter, given as a class over Faulty environments."""
    made = []

    def make():
        made.append(Faulty())
        return made[-1]

    def check_kind(kind, **settings):
        module = types.ModuleType("faulty_adapter")
        module.adapt = kind
        monkeypatch.setitem(sys.modules, "faulty_adapter", module)
        monkeypatch.setitem(simulators._registered, "faulty", "faulty_adapter:adapt")
        try:
            return check_adapter(make, **settings)
        finally:
            assert all(env.closes for env in made)

    return check_kind


def test_the_adapter_that_the_wrong_ones_are_made_from_is_right(check):
    assert check(DuckEnvs).num_ends == 32


def with_attribute(name, value):
    class Wrong(DuckEnvs):
        def __init__(self, envs):
            super().__init__(envs)
            setattr(self, name, value)

    return Wrong


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("num_slots", 0, "num_slots is a positive int, not 0"),
        ("num_slots", 2.0, "num_slots is a positive int, not 2.0"),
        ("num_slots", 3, "2 single environments have 2 slots, not 3"),
        ("observation_space", (4,), "observation_space is a gymnasium space"),
        ("action_space", None, "action_space is a gymnasium space"),
        ("autoreset", "caller", "autoreset is one of Autoreset"),
        ("autoreset", Autoreset.SAME_STEP, "seeds_slots says"),
        ("seeds_slots", 1, "seeds_slots is a bool"),
        ("time_limit", 2.5, "time_limit is a positive int or None, not 2.5"),
        ("step", None, "it lacks step"),
        ("notes", "one", "notes are several strings, as in a tuple, not 'one'"),
        ("notes", (1,), "notes are several strings"),
        ("team", (), "team is a tuple of one finite float per agent"),
        ("team", [0.5, 0.5], "team is a tuple of one finite float per agent"),
        ("team", (1.0, float("nan")), "team is a tuple of one finite float per agent"),
        ("team", (1.0, 1.0, 1.0), "2 slots are no teams of 3"),
        ("team", (0.5, 0.5), "2 single environments of 2 agents have 4 slots, not 2"),
        ("time_limit", 2, "an episode ends after 2 steps, its time_limit; one went on for 3"),
        ("time_limit", 3, "alone is truncated, not terminated; all 32 .* were terminated$"),
        ("observation_space", spaces.Box(0, 9, (2,)), "shape \\(2, 1\\) for 2 slots"),
        ("observation_space", spaces.MultiBinary(1), "dtype int8, not float32"),
    ],
)
def test_wrong_attributes_are_found(check, name, value, words):
    with pytest.raises(ValueError, match=words):
        check(with_attribute(name, value))


def test_a_missing_attribute_is_found(check):
    class Wrong:
        num_slots = 2

        def __init__(self, envs): ...
        def reset(self): ...

    with pytest.raises(ValueError, match=r"it lacks observation_space, action_space.*step, close"):
        check(Wrong)


def with_step(change):
    class Wrong(DuckEnvs):
        def step(self, actions, slots=None):
            return change(super().step(actions, slots))

    return Wrong


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (tuple, "step gives a Transition, not tuple"),
        (
            lambda t: t._replace(reward=t.reward.astype(np.float32)),
            "reward .* float64, not .* float32",
        ),
        (lambda t: t._replace(reward=list(t.reward)), "reward as a NumPy array .* not list"),
        (lambda t: t._replace(reward=torch.from_numpy(t.reward)), "reward .* not Tensor"),
        (lambda t: t._replace(reward=t.reward[:, None]), "reward .* of shape \\(2,\\)"),
        (lambda t: t._replace(terminated=t.terminated.astype(int)), "terminated .* dtype bool"),
        (lambda t: t._replace(truncated=False), "truncated as a NumPy array .* not bool"),
        (lambda t: t._replace(observation=t.observation[:1]), "step gives \\[N, \\*obs\\]"),
        (lambda t: t._replace(observation=t.observation + 0j), "dtype float32, not complex"),
    ],
)
def test_wrong_transitions_are_found(check, change, words):
    with pytest.raises(ValueError, match=words):
        check(with_step(change))


def test_a_masked_reset_that_resets_everyone_is_found(check):
    class Wrong(DuckEnvs):
        def reset(self, seeds=None, slots=None):
            return super().reset(seeds)

    with pytest.raises(ValueError, match="slots \\[0\\] leaves the observations of others"):
        check(Wrong)


def test_a_masked_reset_that_disturbs_the_others_later_is_found(check):
    class Wrong(DuckEnvs):
        def reset(self, seeds=None, slots=None):
            observation = super().reset(seeds, slots)
            if slots is not None and not slots[1]:
                self._envs[1].clock.time = 0
            return observation

    with pytest.raises(ValueError, match="slot 0 alone leaves the episodes of the other slots"):
        check(Wrong)


def test_a_time_limit_that_also_terminates_is_found(check):
    class Wrong(DuckEnvs):
        def __init__(self, envs):
            super().__init__(envs)
            self.time_limit = 3

        def step(self, actions, slots=None):
            given = super().step(actions, slots)
            return given._replace(truncated=given.terminated)

    with pytest.raises(ValueError, match=r"not terminated; all .* terminated and truncated"):
        check(Wrong)


def test_a_termination_in_the_very_step_of_the_time_limit_may_have_both_flags():
    class Both(Clock):
        def reset(self, *, seed=None, options=None):
            self.length = 20 + seed % 2 if seed is not None else 20
            return super().reset(seed=seed)

        def step(self, action):
            observation, reward, terminated, _, info = super().step(action)
            return observation, reward, terminated, self.time == 20, info

    found = check_adapter(Both, steps=45)
    assert (found.num_ends, found.num_truncated) == (4, 2)


@pytest.mark.parametrize("method", ["reset", "step"])
def test_an_adapter_that_changes_the_mask_it_is_given_is_found(check, method):
    def wrong(self, first, slots=None):
        given = getattr(DuckEnvs, method)(self, first, slots)
        if slots is not None:
            slots[:] = True
        return given

    with pytest.raises(ValueError, match=f"{method} leaves the .*mask that it is given as"):
        check(type("Wrong", (DuckEnvs,), {method: wrong}))


def test_an_adapter_that_changes_the_seeds_it_is_given_is_found(check):
    class Wrong(DuckEnvs):
        def reset(self, seeds=None, slots=None):
            observation = super().reset(seeds, slots)
            if seeds is not None:
                seeds.clear()
            return observation

    with pytest.raises(ValueError, match="reset leaves the seeds and the mask"):
        check(Wrong)


def test_a_reset_of_one_slot_that_does_nothing_is_found_without_seeds(monkeypatch):
    class Wrong(SlotResetVector):
        def reset(self, seeds=None, slots=None):
            if slots is None or self._ended[slots].all():
                return super().reset(seeds, slots)
            return self._env._shown()

    def adapt(envs):
        return Wrong(envs[0], seeds_slots=False, rests=True)

    monkeypatch.setattr(simulators, "find_adapter", lambda env: adapt)
    with pytest.raises(ValueError, match=r"begins new episodes in them; .* 4 times of 4"):
        check_adapter(lambda: ClockVector([9, 9], NEVER))


def test_an_episode_that_depends_on_who_plays_beside_it_is_found(check):
    class Wrong(DuckEnvs):
        def step(self, actions, slots=None):
            given = super().step(actions, slots)
            resting = 0 if slots is None else int((~slots).sum())
            return given._replace(reward=given.reward + resting)

    words = r"counted 6\.0 in 3 steps \(terminated\), a loop .* alone, in another slot 9\.0 in 3"
    with pytest.raises(ValueError, match=words):
        check(Wrong)


def test_an_end_of_a_slot_that_rests_does_not_count(check):
    class Noisy(DuckEnvs):
        def step(self, actions, slots=None):
            given = super().step(actions, slots)
            resting = np.zeros(2, bool) if slots is None else ~slots
            given.reward[resting], given.terminated[resting] = np.nan, True
            return given

    assert check(Noisy).num_ends == check(DuckEnvs).num_ends


def test_buffers_that_an_adapter_uses_again_do_no_harm(check):
    class Reusing(DuckEnvs):
        def step(self, actions, slots=None):
            given = super().step(actions, slots)
            if not hasattr(self, "kept"):
                self.kept = given
            for old, new in zip(self.kept, given, strict=True):
                old[...] = new
            return self.kept

    assert check(Reusing).num_ends == check(DuckEnvs).num_ends


# --- wrong teams


def wrong_team(**methods):
    adapter = type("Wrong", (ParallelEnvs,), methods)
    return lambda env: adapter


def test_members_of_a_team_begin_and_leave_as_the_contract_says(monkeypatch):
    asked = []

    def note(self, actions, slots=None):
        asked.append([True] * 6 if slots is None else slots.tolist())
        return ParallelEnvs.step(self, actions, slots)

    def begin(self, seeds=None, slots=None):
        assert slots is None or all(len(set(team)) == 1 for team in slots.reshape(-1, 3).tolist())
        return ParallelEnvs.reset(self, seeds, slots)

    monkeypatch.setattr(simulators, "find_adapter", wrong_team(step=note, reset=begin))
    found = check_adapter(Leaving)
    assert found.team == (1 / 3,) * 3
    # Every 4 steps all three leave, in two environments.
    assert found.num_ends == 2 * 3 * 12 + 2
    assert [True] * 6 in asked
    assert [False, True, True] * 2 in asked
    assert [False, False, True] * 2 in asked
    assert [True] * 3 + [False] * 3 in asked


def test_a_reset_of_a_team_that_touches_another_is_found(monkeypatch):
    def reset(self, seeds=None, slots=None):
        observation = ParallelEnvs.reset(self, seeds, slots)
        if slots is not None and not slots.all():
            self._envs[int(slots[0])].paid += 1.0
        return observation

    monkeypatch.setattr(simulators, "find_adapter", wrong_team(reset=reset))
    with pytest.raises(ValueError, match="slots 0 to 2 alone leaves the episodes of the other"):
        check_adapter(Leaving)


def test_a_team_whose_seed_is_that_of_its_slot_is_found(monkeypatch):
    def reset(self, seeds=None, slots=None):
        shifted = None if seeds is None else [seed + slot for slot, seed in enumerate(seeds)]
        observation = ParallelEnvs.reset(self, shifted, slots)
        return observation + (np.arange(6) >= 3)[:, None] * np.float32(slots is None)

    monkeypatch.setattr(simulators, "find_adapter", wrong_team(reset=reset))
    with pytest.raises(ValueError, match="depends on its seed, not on its slot"):
        check_adapter(Leaving)


# --- a core that is wrong


def test_observations_that_the_core_would_not_copy_are_found(monkeypatch):
    monkeypatch.setattr(Slots, "batch", lambda self, rows: torch.from_numpy(self._buffer[0]))
    with pytest.raises(ValueError, match="observations that were kept stay what they were"):
        check_adapter(Clock)


def test_episodes_that_the_core_would_begin_in_the_middle_are_found(monkeypatch):
    monkeypatch.setattr(Slots, "ready", lambda self: ~self.acting)
    monkeypatch.setattr(Slots, "may_begin", lambda self: not self.acting.all())
    words = r"the core counted 15\.0 in 3 steps \(cut\), a loop by hand .* 3\.0 in 2 steps"
    with pytest.raises(ValueError, match=words):
        check_adapter(functools.partial(ClockVector, [2, 7, 7, 7], SAME), steps=3)


class Drawn(DuckEnvs):
    """Shows a number that `draw` gives at every reset."""

    def reset(self, seeds=None, slots=None):
        observation = super().reset(seeds, slots)
        for slot in range(self.num_slots):
            if slots is None or slots[slot]:
                observation[slot] = self.draw(None if seeds is None else seeds[slot], slot, slots)
        return observation


@pytest.mark.parametrize(
    ("draw", "words"),
    [
        (lambda self, seed, slot, slots: slot, "depends on its seed, not on its slot"),
        (
            lambda self, seed, slot, slots: 0 if slots is None else 5,
            "reset alone begins as its seed says",
        ),
    ],
)
def test_seeds_that_do_not_decide_are_found(check, draw, words):
    wrong = type("Wrong", (Drawn,), {"draw": draw})
    with pytest.raises(ValueError, match=words):
        check(wrong)


def test_plays_that_differ_from_equal_seeds_are_found(check):
    class Wrong(DuckEnvs):
        paid = 0.0

        def step(self, actions, slots=None):
            Wrong.paid += 1.0
            return super().step(actions, slots)._replace(reward=np.full(2, Wrong.paid))

    with pytest.raises(ValueError, match="the same seeds and actions"):
        check(Wrong)


def test_a_second_close_that_raises_is_found(check):
    class Wrong(DuckEnvs):
        closed = False

        def close(self):
            super().close()
            if self.closed:
                message = "closed already"
                raise RuntimeError(message)
            self.closed = True

    with pytest.raises(ValueError, match=r"a second close is harmless.*closed already"):
        check(Wrong)


@pytest.mark.parametrize(
    ("mode", "declared", "words"),
    [
        (SAME, Autoreset.NEXT_STEP, "NEXT_STEP the step after an end only resets.*it paid 1.0"),
        (NEXT, Autoreset.SAME_STEP, "SAME_STEP the step after an end is one of the next episode"),
    ],
)
def test_another_autoreset_than_declared_is_found(check, mode, declared, words):
    def adapt(envs):
        return WaveVector(ClockVector([2, 5], mode), declared)

    with pytest.raises(ValueError, match=words):
        check(adapt)


def test_what_the_simulator_raises_comes_out_as_it_is(check):
    class Wrong(DuckEnvs):
        def step(self, actions, slots=None) -> Transition:
            message = "no licence"
            raise LookupError(message)

    with pytest.raises(LookupError, match="no licence"):
        check(Wrong)
