"""Rows of the batch stay where they are while most of their slots act."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from populora_envs.seating import Seating

CPU = torch.device("cpu")


def mask(*slots, of=6):
    acting = np.zeros(of, dtype=bool)
    acting[list(slots)] = True
    return acting


def choose(seating, *slots, individuals=(0, 1, 2, 3, 4, 5)):
    seating.choose(mask(*slots), len(slots), np.array(individuals))
    return seating.slots.tolist()


@pytest.fixture
def seating():
    return Seating(6, CPU, may_rest=True)


def test_everyone_is_a_slice(seating):
    assert choose(seating, 0, 1, 2, 3, 4, 5) == [0, 1, 2, 3, 4, 5]
    assert seating.rows == slice(None)
    assert seating.ids.tolist() == [0, 1, 2, 3, 4, 5]


def test_a_slot_that_rests_keeps_its_row_until_half_of_them_rest(seating):
    choose(seating, 0, 1, 2, 3, 4, 5)
    ids = seating.ids
    assert choose(seating, 1, 2, 3, 5) == [0, 1, 2, 3, 4, 5]
    assert choose(seating, 1, 3, 5) == [0, 1, 2, 3, 4, 5]
    assert seating.ids is ids
    assert choose(seating, 1, 5) == [1, 5]
    assert seating.ids.tolist() == [1, 5]


def test_rows_that_rest_are_shown_what_one_that_acts_is_shown(seating):
    choose(seating, 0, 1, 2, 3, 4, 5)
    choose(seating, 1, 2, 3, 5)
    batch = np.arange(6.0)[:, None] * 10
    batch[0] = np.nan
    assert seating.cover(batch)[:, 0].tolist() == [10, 10, 20, 30, 10, 50]
    choose(seating, 0, 1, 2, 3, 4, 5)
    assert seating.cover(np.arange(6.0)).tolist() == [0, 1, 2, 3, 4, 5]


def test_a_slot_that_has_no_row_lays_the_batch_out_anew(seating):
    choose(seating, 1, 2, 3)
    assert choose(seating, 1, 2, 4) == [1, 2, 4]


def test_another_individual_in_a_slot_is_another_tensor(seating):
    choose(seating, 0, 1)
    ids = seating.ids
    choose(seating, 0, 1, individuals=(0, 7, 2, 3, 4, 5))
    assert seating.ids is not ids
    assert (ids.tolist(), seating.ids.tolist()) == ([0, 1], [0, 7])


def test_where_rows_may_not_rest_only_those_act_that_do():
    seating = Seating(6, CPU, may_rest=False)
    choose(seating, 0, 1, 2, 3, 4, 5)
    assert choose(seating, 1, 2, 3, 4, 5) == [1, 2, 3, 4, 5]


def test_actions_of_slots_without_a_row_are_harmless_copies(seating):
    choose(seating, 2, 4)
    actions = {"turn": np.array([7, 9]), "go": (np.array([[1.0], [2.0]]),)}
    spread = seating.spread(actions)
    assert spread["turn"].tolist() == [7, 7, 7, 7, 9, 7]
    assert spread["go"][0][:, 0].tolist() == [1, 1, 1, 1, 2, 1]
    choose(seating, 0, 1, 2, 3, 4, 5)
    assert seating.spread(actions) is actions
