import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode

from populora_envs.simulators import find_adapter
from populora_envs.slots import Slots
from populora_envs.spaces import Encoder
from tests.clock import Clock, ClockVector

CPU = torch.device("cpu")
NEXT, SAME, NEVER = AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED


def make_slots(*envs):
    adapter = find_adapter(envs[0])(list(envs))
    return Slots(adapter, Encoder(adapter.observation_space), CPU)


def mask(*slots):
    return np.array(slots, bool)


def shown(slots):
    return slots.batch(slice(None))[:, 0].tolist()


def step(slots):
    """Step, let slots that have ended leave, and return who ended."""
    transition = slots.step(np.zeros(slots.num_slots, np.int64))
    ended = (transition.terminated | transition.truncated) & slots.acting
    slots.rest(ended)
    return ended.tolist()


def test_idle_slots_of_single_environments_are_ready_and_begin_alone():
    envs = [Clock(2), Clock(5)]
    slots = make_slots(*envs)
    assert slots.ready().tolist() == [True, True]
    slots.begin(mask(1, 0), [7, 8])
    assert slots.acting.tolist() == [True, False]
    assert slots.ready().tolist() == [False, True]
    assert ([env.seeds for env in envs]) == [[7], []]
    assert step(slots) == [False, False]
    assert [len(env.actions) for env in envs] == [1, 0]
    slots.begin(mask(0, 1), [9, 8])
    assert [env.seeds for env in envs] == [[7], [8]]
    assert step(slots) == [True, False]
    assert shown(slots) == [2.0, 1.0]
    assert slots.ready().tolist() == [True, False]


def test_a_simulator_that_resets_in_the_same_step_is_ready_then():
    env = ClockVector([2, 3], SAME)
    slots = make_slots(env)
    slots.begin(mask(1, 1), [4, 5])
    assert step(slots) == [False, False]
    assert slots.ready().tolist() == [False, False]
    assert step(slots) == [True, False]
    assert slots.ready().tolist() == [True, False]
    assert shown(slots) == [0.0, 2.0]
    slots.begin(mask(1, 0), [6, 6])
    assert env.resets == [(4, [True, True])]
    assert step(slots) == [False, True]
    assert shown(slots) == [1.0, 0.0]


def test_a_slot_that_resets_in_the_same_step_is_ready_for_that_step_alone():
    slots = make_slots(ClockVector([2, 9], SAME))
    slots.begin(mask(1, 1), [0, 0])
    step(slots)
    step(slots)
    assert slots.ready().tolist() == [True, False]
    step(slots)
    assert slots.ready().tolist() == [False, False]
    step(slots)
    assert slots.ready().tolist() == [True, False]


def test_a_simulator_that_resets_in_the_next_step_is_ready_after_that():
    env = ClockVector([2, 9], NEXT)
    slots = make_slots(env)
    slots.begin(mask(1, 1), [0, 0])
    step(slots)
    assert step(slots) == [True, False]
    assert shown(slots) == [2.0, 2.0]
    assert slots.ready().tolist() == [False, False]
    assert step(slots) == [False, False]
    assert shown(slots) == [0.0, 3.0]
    assert slots.ready().tolist() == [True, False]
    slots.begin(mask(1, 0), [0, 0])
    assert len(env.resets) == 1
    step(slots)
    assert step(slots) == [True, False]


@pytest.mark.parametrize("mode", [NEXT, SAME])
def test_a_wave_begins_with_one_full_reset_when_nobody_acts(mode):
    env = ClockVector([2, 2], mode)
    slots = make_slots(env)
    slots.begin(mask(1, 1), [4, 5])
    step(slots)
    assert step(slots) == [True, True]
    assert slots.ready().tolist() == [True, True]
    slots.begin(mask(1, 0), [6, 6])
    assert env.resets == [(4, [True, True]), (6, [True, True])]
    assert slots.acting.tolist() == [True, False]
    step(slots)
    assert step(slots) == [True, False]


def test_a_slot_that_was_cut_is_ready_once_its_simulator_has_ended_it():
    slots = make_slots(ClockVector([4, 9], SAME))
    slots.begin(mask(1, 1), [0, 0])
    step(slots)
    slots.rest(mask(1, 0))
    for _ in range(2):
        step(slots)
        assert slots.ready().tolist() == [False, False]
    step(slots)
    assert slots.ready().tolist() == [True, False]


def test_slots_about_to_leave_can_be_counted_as_idle():
    slots = make_slots(ClockVector([2, 9], SAME))
    slots.begin(mask(1, 1), [0, 0])
    step(slots)
    assert slots.ready(leaving=mask(1, 0)).tolist() == [False, False]
    assert slots.ready(leaving=mask(1, 1)).tolist() == [True, True]


def test_single_slots_of_a_simulator_that_never_resets_begin_by_a_mask():
    env = ClockVector([2, 9], NEVER)
    slots = make_slots(env)
    slots.begin(mask(1, 1), [3, 4])
    step(slots)
    assert step(slots) == [True, False]
    slots.begin(mask(1, 0), [5, 6])
    assert env.resets == [(3, [True, True]), (5, [True, False])]
    assert shown(slots) == [0.0, 2.0]


def test_ended_slots_that_rest_are_put_on_a_first_observation_before_the_next_step():
    env = ClockVector([2, 9], NEVER)
    slots = make_slots(env)
    slots.begin(mask(1, 1), [3, 4])
    step(slots)
    step(slots)
    step(slots)
    assert env.resets[1:] == [(None, [True, False])]
    assert shown(slots) == [1.0, 3.0]


def test_a_batch_is_a_copy_of_some_rows():
    slots = make_slots(ClockVector([5, 5, 5], SAME))
    slots.begin(mask(1, 1, 1), [0, 0, 0])
    first = slots.batch(np.array([0, 2]))
    step(slots)
    assert first.tolist() == [[0.0], [0.0]]
    assert slots.batch(np.array([1])).tolist() == [[1.0]]
    assert slots.seen(slice(None)).tolist() == [[1.0]] * 3


def test_stopping_lets_everyone_leave():
    slots = make_slots(Clock(), Clock())
    slots.begin(mask(1, 1), [0, 0])
    slots.stop()
    assert slots.acting.tolist() == [False, False]


def test_time_in_the_simulator_is_counted():
    slots = make_slots(Clock())
    slots.begin(mask(1), [0])
    reset = slots.seconds
    step(slots)
    assert 0 < reset < slots.seconds
