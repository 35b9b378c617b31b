"""A compiled routed model keeps every promise of the plain one, or says that it is not compiled."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import warnings

import pytest
import torch
from torch import nn

from populora_envs import Population, evolve_with_env
from populora_envs.processes import why_no_fork
from populora_envs.routing import RoutedModel

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def numbers(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


class Mixed(nn.Module):
    """An adapted layer of each plan around one that nobody adapts."""

    def __init__(self):
        super().__init__()
        self.inward, self.frozen = nn.Linear(5, 40), nn.Linear(40, 70)
        self.wide, self.outward = nn.Linear(70, 70), nn.Linear(70, 3, bias=False)

    def forward(self, x):
        hidden = torch.tanh(self.frozen(torch.relu(self.inward(x))))
        return self.outward(nn.functional.gelu(self.wide(hidden)))


@pytest.fixture(scope="module")
def compiled():
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pop = Population(
            Mixed(),
            pop_size=6,
            low_rank=2,
            lora_targets=["inward", "wide", "outward"],
            seed=0,
            compile=True,
        )
        pop.routed(numbers(3, 5), torch.tensor([0, 1, 2]))
    assert pop.routed._compiled is not None, "torch.compile works here"
    return pop


def test_it_gives_what_the_plain_model_gives(compiled):
    x, ids = numbers(11, 5), torch.tensor([0, 3, 3, 1, 2, 5, 0, 4, 4, 4, 1])
    plain = RoutedModel(compiled.model, compiled._route)
    torch.testing.assert_close(compiled.routed(x, ids), plain(x, ids), rtol=1e-5, atol=1e-5)


def test_a_row_does_not_depend_on_the_batch_to_the_last_bit(compiled):
    x, ids = numbers(90, 5), torch.arange(90) % 6
    whole = compiled.routed(x, ids)
    for part in torch.randperm(90, generator=torch.Generator().manual_seed(1)).split(37):
        assert torch.equal(compiled.routed(x[part], ids[part]), whole[part])
    assert torch.equal(compiled.routed(x[7:8], ids[7:8]), whole[7:8])


def test_changes_of_individuals_are_seen(compiled):
    x, ids = numbers(2, 5), torch.tensor([0, 1])
    before = compiled.routed(x, ids)
    compiled.individuals["outward"].up[1] += 1.0
    after = compiled.routed(x, ids)
    assert torch.equal(before[0], after[0])
    assert not torch.equal(before[1], after[1])


@pytest.mark.parametrize("inference", [True, False])
def test_indices_that_the_caller_changes_in_place_are_seen(compiled, inference):
    x = numbers(3, 5)
    with torch.inference_mode(inference):
        ids = torch.tensor([0, 1, 2])
        compiled.routed(x, ids)
        ids[0] = 4
        assert torch.equal(compiled.routed(x, ids), compiled.routed(x, torch.tensor([4, 1, 2])))


WITHOUT_COMPILER = """
import torch, warnings
from populora_envs import Population
model = torch.nn.Sequential(torch.nn.Linear(4, 9), torch.nn.Tanh(), torch.nn.Linear(9, 2))
x, ids = torch.ones(3, 4), torch.tensor([0, 1, 1])
populations = [Population(model, pop_size=2, low_rank=1, seed=0, compile=c) for c in (True, False)]
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    for _ in range(2):
        first, second = (population.routed(x, ids) for population in populations)
        assert torch.equal(first, second)
print([str(w.message) for w in said if "compile=True" in str(w.message)])
"""


def test_without_a_compiler_a_warning_says_so_and_the_numbers_are_the_plain_ones(tmp_path):
    environment = {
        **os.environ,
        "CXX": "no-such-compiler",
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path),
    }
    command = [sys.executable, "-c", WITHOUT_COMPILER]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    said = ast.literal_eval(done.stdout)
    assert len(said) == 1
    assert "the policy runs uncompiled, for torch.compile failed" in said[0]
    assert "no-such-compiler" in said[0]


def test_a_run_may_be_compiled():
    settings = {"pop_size": 4, "num_generations": 1, "horizon": 5, "return_history": True}
    _, history = evolve_with_env("CartPole-v1", compile=True, **settings)
    _, plain = evolve_with_env("CartPole-v1", **settings)
    assert history[0]["best_fitness"] == plain[0]["best_fitness"]


def test_compiling_leaves_no_thread_that_forbids_workers(compiled):
    compiled.routed(numbers(40, 5), torch.arange(40) % 6)
    assert why_no_fork() is None
