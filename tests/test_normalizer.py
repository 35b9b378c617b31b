import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from populora_envs.normalizer import (
    Normalizer,
    Standardized,
    find_normalizer,
    merge_moments,
    moments_of,
)

rows = st.lists(
    st.tuples(st.floats(-10, 10), st.floats(-1, 1), st.just(7.0)), min_size=1, max_size=30
)


def moments(observations):
    array = np.array(observations, dtype=np.float64).reshape(len(observations), -1)
    return moments_of(len(array), array.sum(axis=0), (array**2).sum(axis=0))


def normalizer(*episodes):
    layer = Normalizer(np.array(episodes[0]).reshape(len(episodes[0]), -1).shape[1])
    layer.propose_([moments(episode) for episode in episodes])
    layer.advance_()
    return layer


def statistics(layer):
    return [buffer.clone() for buffer in layer.buffers()]


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_before_the_first_observation_nothing_is_changed():
    x = torch.tensor([[-3.0, 0.0, 9.0]])
    assert torch.equal(Normalizer(3)(x), x)


def test_the_moments_of_unequal_parts():
    """D-33: [0, 0, 0, 0] and [2, 2]."""
    layer = normalizer([0, 0, 0, 0], [2, 2])
    for _ in range(2):
        assert layer.count.item() == 6
        assert layer.mean.item() == pytest.approx(2 / 3, abs=1e-12)
        assert (layer.squares / layer.count).item() == pytest.approx(8 / 9, abs=1e-12)
        layer.propose_([])
        layer.advance_()


def test_the_mean_is_removed_and_small_spreads_are_raised():
    layer = normalizer([99.5, 100.5])
    assert (layer.shift.item(), layer.divisor.item()) == (100.0, 0.5)
    assert layer(torch.tensor([[100.0], [100.5], [99.0]])).flatten().tolist() == [0.0, 1.0, -2.0]


def test_the_divisor_is_at_most_one():
    layer = normalizer([90.0, 110.0])
    assert (layer.shift.item(), layer.divisor.item()) == (100.0, 1.0)
    assert layer(torch.tensor([[97.0]])).item() == -3.0


def test_a_constant_dimension_gives_zero():
    layer = normalizer([100.1] * 1000)
    assert layer.divisor.item() == 1.0
    assert layer(torch.tensor([[100.1]])).item() == pytest.approx(0, abs=1e-5)
    assert layer(torch.tensor([[101.1]])).item() == pytest.approx(1, abs=1e-4)


def test_the_result_is_clipped_at_ten():
    layer = normalizer([-0.01, 0.01])
    assert layer(torch.tensor([[1.0], [-1.0], [0.05]])).flatten().tolist() == pytest.approx(
        [10, -10, 5]
    )


@settings(max_examples=60, deadline=None)
@given(rows, st.lists(st.integers(0, 30), max_size=4))
def test_any_split_gives_the_same_moments(observations, cuts):
    whole, array = moments(observations), np.array(observations)
    parts = [
        part for part in np.split(array, sorted(min(c, len(array)) for c in cuts)) if len(part)
    ]
    merged = moments(parts[0])
    for part in parts[1:]:
        merged = merge_moments(merged, moments(part))
    assert merged.count == whole.count == len(array)
    np.testing.assert_allclose(merged.mean, array.mean(axis=0), rtol=0, atol=1e-12)
    np.testing.assert_allclose(merged.mean, whole.mean, rtol=0, atol=1e-12)
    for found in (merged, whole):
        variance = found.squares / found.count
        np.testing.assert_allclose(variance, array.var(axis=0), rtol=0, atol=1e-12)


@settings(max_examples=40, deadline=None)
@given(st.lists(rows, min_size=1, max_size=6), st.data())
def test_in_the_order_of_the_jobs_the_statistics_are_equal_to_the_bit(episodes, data):
    """Whoever played which job: the moments come back per job and are merged in job order."""
    order = data.draw(st.permutations(range(len(episodes))))
    played = {job: moments(episodes[job]) for job in order}
    layer = Normalizer(3)
    layer.propose_(played[job] for job in range(len(episodes)))
    layer.advance_()
    assert same(statistics(layer), statistics(normalizer(*episodes)))


def test_merging_with_nothing_changes_nothing():
    some, nothing = moments([1, 2]), moments_of(0, np.zeros(1), np.zeros(1))
    assert merge_moments(some, nothing) is some
    assert merge_moments(nothing, some) is some


def test_a_proposal_changes_nothing_before_the_next_generation():
    layer = normalizer([0.0, 1.0])
    before, x = statistics(layer)[-2:], torch.tensor([[3.0]])
    expected = layer(x)
    layer.propose_([moments([5.0, 6.0])])
    assert torch.equal(layer(x), expected)
    assert same(statistics(layer)[-2:], before)
    layer.advance_()
    assert not torch.equal(layer(x), expected)
    assert layer.count.item() == 4


def test_an_evaluation_that_is_repeated_counts_once():
    layer = normalizer([0.0, 1.0])
    for _ in range(3):
        layer.propose_([moments([5.0, 6.0])])
    for _ in range(2):
        layer.advance_()
    assert layer.count.item() == 4
    assert layer.mean.item() == 3.0


def test_the_statistics_travel_with_copies_and_states():
    """D-32."""
    policy = Standardized(normalizer([99.0, 101.0]), nn.Linear(1, 1))
    other = Standardized(Normalizer(1), nn.Linear(1, 1))
    other.load_state_dict(policy.state_dict())
    x = torch.tensor([[100.5]])
    assert torch.equal(other(x), policy(x))
    assert torch.equal(copy.deepcopy(policy)(x), policy(x))
    assert torch.equal(policy(x), policy.model(torch.tensor([[0.5]])))


def test_evaluation_and_training_do_not_change_the_statistics():
    """D-32."""
    policy = Standardized(normalizer([99.0, 101.0]), nn.Linear(1, 1))
    before = statistics(policy.normalizer)
    for mode in (True, False):
        policy.train(mode)(torch.randn(5, 1) + 50)
    assert same(statistics(policy.normalizer), before)


def test_further_arguments_reach_the_model():
    class Scaled(nn.Module):
        def forward(self, x, scale, *, shift):
            return x * scale + shift

    policy = Standardized(Normalizer(2), Scaled())
    assert policy(torch.ones(1, 2), 3.0, shift=1.0).tolist() == [[4.0, 4.0]]


def test_the_normalizer_a_model_begins_with():
    layer = Normalizer(2)
    assert find_normalizer(Standardized(layer, nn.Linear(2, 1))) is layer
    assert find_normalizer(nn.Sequential(layer, nn.Linear(2, 1))) is None
