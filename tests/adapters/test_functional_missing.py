"""What an id of a simulator on JAX says where JAX is not installed."""

from __future__ import annotations

import sys

import pytest

from populora_envs import evolve_with_env


@pytest.mark.parametrize("env_id", ["gymnax/CartPole-v1", "brax/ant"])
def test_missing_jax_says_what_installs_it(env_id, monkeypatch):
    for name in ("functional", "gymnax", "brax"):
        monkeypatch.delitem(sys.modules, f"populora_adapters.{name}", raising=False)
    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(ImportError) as caught:
        evolve_with_env(env_id, num_generations=1)
    assert "pip install" in " ".join(caught.value.__notes__)
