"""Dense changes as factors of the rank that there is."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from populora_envs.low_rank import relative_error, truncated
from tests.populations import numbers

SIZES = [(7, 4), (4, 7), (5, 5), (1, 6), (6, 1)]


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_no_factors_of_that_rank_are_nearer(size, rank):
    """Eckart-Young: what is lost are the smaller singular values."""
    change = numbers(*size).double()
    down, up = truncated(change, rank)
    assert (down.shape, up.shape) == ((size[1], rank), (size[0], rank))
    values = torch.linalg.svdvals(change)
    left, kept, right = torch.linalg.svd(change, full_matrices=False)
    best = left[:, :rank] @ torch.diag(kept[:rank]) @ right[:rank]
    torch.testing.assert_close(up @ down.T, best)
    lost = torch.linalg.norm(change - up @ down.T)
    torch.testing.assert_close(lost, values[rank:].square().sum().sqrt())
    share = (values[rank:].square().sum() / values.square().sum()).sqrt().item()
    assert relative_error([change], [up @ down.T]) == pytest.approx(share, abs=1e-12)


@settings(max_examples=40, deadline=None)
@given(
    out=st.integers(1, 9), fan_in=st.integers(1, 9), rank=st.integers(1, 12), seed=st.integers(0, 9)
)
def test_random_factors_are_no_nearer(out, fan_in, rank, seed):
    change = numbers(out, fan_in, seed=seed).double()
    down, up = truncated(change, rank)
    lost = torch.linalg.norm(change - up @ down.T)
    for k in range(5):
        other = up + 0.1 * numbers(out, rank, seed=k).double()
        # The best `down` for this `up`.
        fitted = torch.linalg.pinv(other) @ change
        assert lost <= torch.linalg.norm(change - other @ fitted) + 1e-9


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_both_factors_have_the_same_singular_values(size):
    change = numbers(*size).double()
    down, up = truncated(change, 3)
    assert torch.allclose(down.T @ down, up.T @ up, atol=1e-10)
    kept = min(3, *size)
    torch.testing.assert_close(
        torch.linalg.svdvals(down)[:kept].square(), torch.linalg.svdvals(change)[:kept]
    )


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_a_rank_above_the_size_pads_with_zeros(size):
    change = numbers(*size)
    down, up = truncated(change, 9)
    assert (down.shape, up.shape) == ((size[1], 9), (size[0], 9))
    assert (down[:, min(size) :] == 0).all()
    assert (up[:, min(size) :] == 0).all()
    torch.testing.assert_close(up @ down.T, change)


def test_a_change_of_a_smaller_rank_is_exact():
    change = numbers(8, 2) @ numbers(2, 6, seed=1)
    down, up = truncated(change, 4)
    torch.testing.assert_close(up @ down.T, change)
    assert down[:, 2:].abs().max() < 1e-3
    assert up[:, 2:].abs().max() < 1e-3


def test_no_change_is_no_change():
    down, up = truncated(torch.zeros(3, 4), 2)
    assert (down == 0).all()
    assert (up == 0).all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_factors_have_the_dtype_of_the_change(dtype):
    change = numbers(6, 5).to(dtype)
    down, up = truncated(change, 5)
    assert (down.dtype, up.dtype) == (dtype, dtype)
    tolerance = 20 * torch.finfo(dtype).eps
    torch.testing.assert_close(
        up.double() @ down.double().T, change.double(), rtol=tolerance, atol=tolerance
    )


def test_an_error_is_over_all_layers_together():
    exact = [torch.tensor([[3.0, 0.0]]), torch.tensor([[4.0], [0.0]])]
    assert relative_error(exact, [torch.zeros(1, 2), exact[1]]) == pytest.approx(0.6)
    assert relative_error(exact, exact) == 0
    assert relative_error([torch.zeros(2, 2)], [torch.zeros(2, 2)]) == 0
    assert relative_error([], []) == 0
    with pytest.raises(ValueError, match="zip"):
        relative_error(exact, exact[:1])


def test_an_error_of_half_precision_is_summed_in_double():
    exact = [torch.full((100, 100), 300.0, dtype=torch.float16)]
    assert relative_error(exact, [torch.zeros(100, 100)]) == pytest.approx(1.0)
