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
from populora_adapters.gymnasium import WaveVector
from populora_envs import simulators
from populora_envs.adapter import Autoreset, Transition
from populora_envs.testing import AdapterReport, check_adapter
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


GOOD = {
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
    found = check_adapter(lambda: Clock(5), num_envs=3, steps=10)
    assert found == AdapterReport(
        adapter="GymnasiumEnvs",
        num_slots=3,
        observation_space=Clock().observation_space,
        action_space=Clock().action_space,
        autoreset=Autoreset.CALLER,
        seeds_slots=True,
        time_limit=20,
        num_ends=6,
    )


def test_what_was_made_is_closed():
    made = []

    def make():
        made.append(Clock())
        return made[-1]

    check_adapter(make, num_envs=3)
    assert len(made) == 3
    assert all(env.closes >= 1 for env in made)


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

    with pytest.raises(ValueError, match=r"the same seeds and actions|as they are"):
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
