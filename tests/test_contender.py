import math

import numpy as np
import pytest
import torch

from populora_envs.contender import Contender, standard_error


def contender(looks=(), duels=(), report=(), **settings):
    parts = {"weights": {}, "base_change": None, "normalizer": {}, "generation": 0, **settings}
    return Contender(**parts, looks=list(looks), duels=list(duels), report=list(report))


# --- what counts


def test_the_cleanest_kind_of_episodes_counts():
    assert contender([9.0, 9.0]).mean == 9.0
    assert contender([9.0, 9.0], [5.0, 6.0]).mean == 5.5
    assert contender([9.0, 9.0], [5.0, 6.0], [1.0, 2.0]).mean == 1.5
    assert contender([9.0, 9.0], [5.0, 6.0], [1.0, 2.0]).scores == [1.0, 2.0]


def test_without_episodes_there_is_no_score():
    assert math.isnan(contender().mean)
    assert math.isnan(contender().standard_error)
    assert math.isnan(contender([3.0]).standard_error)


@pytest.mark.parametrize("returns", [[1.0, 2.0], [1.0, 5.0, -3.0, 2.0], [4.0] * 9])
def test_the_standard_error_is_that_of_a_sample(returns):
    expected = np.std(returns, ddof=1) / len(returns) ** 0.5
    assert standard_error(returns) == pytest.approx(expected)


def test_an_infinite_return_leaves_a_mean_and_no_error():
    one = contender([1.0, -math.inf])
    assert one.mean == -math.inf
    assert math.isnan(one.standard_error)


# --- duels

STEADY = [5.0, 7.0, 3.0, 9.0]


@pytest.mark.parametrize(
    ("duels", "others", "is_behind"),
    [
        (STEADY, [x + 1.0 for x in STEADY], True),  # a lead of 1 in every duel
        ([x + 1.0 for x in STEADY], STEADY, False),
        (STEADY, STEADY, True),  # just the same
        (STEADY, [6.0, 6.0, 4.0, 9.0], False),  # 0.25 ahead, error 0.48
        (STEADY, [5.0, 7.0, 3.0, 10.0], False),  # one standard error ahead
        ([1.0, 2.0], [1.0, -math.inf], False),
        ([1.0, -math.inf], [1.0, 2.0], True),
        ([1.0, -math.inf], [2.0, -math.inf], False),
        ([-math.inf, -math.inf], [2.0, -math.inf], False),
    ],
)
def test_behind_by_two_standard_errors_of_the_differences_or_just_the_same(
    duels, others, is_behind
):
    assert contender(duels=duels).is_behind(contender(duels=others)) is is_behind


def test_duels_are_compared_one_by_one():
    """A small lead shows in spite of a large spread between episodes."""
    spread = [-1000.0, 0.0, 500.0, 2000.0]
    assert contender(duels=spread).is_behind(contender(duels=[x + 0.5 for x in spread]))


# --- what it is


def whole(number=1.0, moved=None, mean=0.0):
    change = None if moved is None else {"0": {"weight": torch.tensor([moved])}}
    normalizer = {"mean": torch.tensor(mean)}
    weights = {"0": {"up": torch.tensor([number])}}
    return contender(weights=weights, base_change=change, normalizer=normalizer)


def test_the_key_sees_weights_base_and_statistics():
    keys = [w.key() for w in (whole(), whole(2.0), whole(moved=1.0), whole(mean=1.0))]
    assert len(set(keys)) == 4
    assert whole().key() == keys[0]
    assert whole(moved=1.0).key() == keys[2]


def test_the_key_does_not_depend_on_episodes():
    one = whole()
    key = one.key()
    one.looks.append(3.0)
    assert one.key() == key


def test_two_contenders_are_never_equal():
    """They are compared by what they are, not by their tensors."""
    one, other = whole(), whole()
    assert one in [other, one]
    assert one not in [other]


def test_a_state_makes_the_same_contender_and_is_not_changed_by_later_episodes():
    one = whole(moved=2.0)
    one.looks, one.duels = [1.0, 2.0], [3.0]
    state = one.state()
    again = Contender(**state)
    one.looks.append(7.0)
    one.duels.append(7.0)
    one.report.append(7.0)
    assert (state["looks"], state["duels"], state["report"]) == ([1.0, 2.0], [3.0], [])
    assert again.key() == one.key()
