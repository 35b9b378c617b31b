import math

import pytest
import torch

from populora_envs import action_noise
from populora_envs.action_noise import UNIFORMS_PER_GAMMA, draw_uniform, log_gamma


def test_uniforms_are_strictly_inside_zero_and_one(monkeypatch):
    ends = torch.tensor([[0.0, 1.0]], dtype=torch.float64)
    monkeypatch.setattr(action_noise, "hash_uniform", lambda keys, size: ends)
    uniform = draw_uniform(torch.zeros(1, 2), 2, torch.zeros(1, 1, dtype=torch.int64))
    assert uniform.min() > 0
    assert uniform.max() < 1
    assert torch.special.ndtri(uniform).isfinite().all()


@pytest.mark.parametrize("name", ["sigmoid", "softplus", "normal_quantile"])
def test_a_number_does_not_depend_on_its_place(name):
    function = getattr(action_noise, name)
    x = torch.linspace(0.001, 0.999, 1001, dtype=torch.float64)
    assert torch.equal(torch.cat([function(part.clone()) for part in x.split(1)]), function(x))


@pytest.mark.parametrize(("x", "sigmoid", "softplus"), [(0.0, 0.5, math.log(2)), (-800, 0, 0)])
def test_known_values(x, sigmoid, softplus):
    number = torch.tensor(x, dtype=torch.float64)
    assert action_noise.sigmoid(number).item() == sigmoid
    assert action_noise.softplus(number).item() == pytest.approx(softplus)


@pytest.mark.parametrize("shape", [0.3, 1.0, 2.5, 50.0])
def test_gammas_have_their_mean_and_variance(shape):
    generator = torch.Generator().manual_seed(0)
    size = (20000, UNIFORMS_PER_GAMMA)
    uniform = torch.rand(size, generator=generator, dtype=torch.float64).clamp(1e-16, 1 - 1e-16)
    gammas = log_gamma(torch.full((20000,), shape, dtype=torch.float64), uniform).exp()
    assert gammas.mean().item() == pytest.approx(shape, abs=4 * math.sqrt(shape / 20000))
    assert gammas.var().item() == pytest.approx(shape, rel=0.1)
