"""From fitness to utilities: only the order counts."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from populora_envs.search.ranking import centred_ranks, log_ranks

SHAPINGS = [log_ranks, centred_ranks]
FITNESSES = st.lists(st.sampled_from([-np.inf, -3.0, 0.0, 1.0, 1.5, 4e30]), min_size=1, max_size=12)


def averaged(fitnesses, by_rank):
    """The utility of each fitness: the mean over the ranks of those that equal it."""
    order = sorted(range(len(fitnesses)), key=lambda i: -fitnesses[i])
    ranked = [fitnesses[i] for i in order]
    means = {
        f: np.mean([u for u, g in zip(by_rank, ranked, strict=True) if g == f]) for f in ranked
    }
    return [means[f] for f in fitnesses]


@settings(deadline=None)
@given(FITNESSES)
def test_log_ranks_are_those_of_the_paper(fitnesses):
    count = len(fitnesses)
    raw = np.maximum(0.0, np.log(count / 2 + 1) - np.log(np.arange(1, count + 1)))
    expected = averaged(fitnesses, raw / raw.sum() - 1 / count)
    assert log_ranks(torch.tensor(fitnesses)).tolist() == pytest.approx(expected, abs=1e-12)


@settings(deadline=None)
@given(FITNESSES)
def test_centred_ranks_fall_linearly(fitnesses):
    by_rank = np.linspace(0.5, -0.5, len(fitnesses)) if len(fitnesses) > 1 else [0.0]
    expected = averaged(fitnesses, by_rank)
    assert centred_ranks(torch.tensor(fitnesses)).tolist() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("shape", SHAPINGS)
@settings(deadline=None)
@given(FITNESSES)
def test_utilities_sum_to_zero_and_keep_the_order(shape, fitnesses):
    utilities = shape(torch.tensor(fitnesses))
    assert utilities.dtype == torch.float64
    assert float(utilities.sum()) == pytest.approx(0.0, abs=1e-12)
    pairs = [(a, b) for a in range(len(fitnesses)) for b in range(len(fitnesses))]
    for a, b in pairs:
        if fitnesses[a] >= fitnesses[b]:
            assert utilities[a] >= utilities[b] - 1e-12
        if fitnesses[a] == fitnesses[b]:
            assert utilities[a] == utilities[b]


@pytest.mark.parametrize("shape", SHAPINGS)
@pytest.mark.parametrize("value", [0.0, -np.inf, 7.25])
@pytest.mark.parametrize("count", [1, 2, 3, 16])
def test_all_equal_utilities_are_exactly_zero(shape, value, count):
    assert not shape(torch.full((count,), value)).any()


@pytest.mark.parametrize("shape", SHAPINGS)
def test_utilities_do_not_depend_on_the_size_of_fitnesses(shape):
    fitnesses = torch.tensor([3.0, -1.0, 2.0, 2.0, 9.0])
    assert torch.equal(shape(fitnesses), shape(1e6 * fitnesses - 5.0))
