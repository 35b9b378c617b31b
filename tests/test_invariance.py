"""What a layer gives for a row does not depend on where the row lies."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from populora_envs.invariance import ELEMENTWISE, make_invariant


@pytest.mark.parametrize("kind", ELEMENTWISE, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("width", [1, 3, 32])
def test_an_activation_rounds_the_end_of_a_tensor_like_the_rest(kind, width):
    layer = kind()
    x = torch.randn(150, width, generator=torch.Generator().manual_seed(0))
    expected = layer(x)
    make_invariant(layer)
    whole = layer(x)
    torch.testing.assert_close(whole, expected)
    for part in torch.randperm(150, generator=torch.Generator().manual_seed(1)).split(7):
        assert torch.equal(layer(x[part]), whole[part])


def test_any_shape_and_stride_goes_through_an_activation():
    layer = nn.Sigmoid()
    make_invariant(layer)
    x = torch.randn(4, 5, 8)
    assert layer(x).shape == (4, 5, 8)
    assert torch.equal(layer(x.transpose(0, 2)), layer(x).transpose(0, 2))
    assert layer(torch.zeros(0, 3)).shape == (0, 3)
    assert layer(torch.tensor(0.0)) == 0.5
    x = torch.ones(3, requires_grad=True)
    layer(x).sum().backward()
    torch.testing.assert_close(x.grad, torch.full((3,), 0.1966119))
