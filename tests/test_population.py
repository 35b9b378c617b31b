from collections import OrderedDict, defaultdict
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from populora_envs.distributed import is_main_rank
from tests.populations import assert_close, genes, numbers, population


def test_the_three_ways_to_name_individuals():
    pop, x = population(), numbers(1, 2)
    assert pop(x, all_individuals=True).shape == (4, 1)
    three = pop(x, individuals=[3, 0, 3])
    assert torch.equal(three, torch.cat([pop(x, individual=i) for i in (3, 0, 3)]))
    for one in (2, torch.tensor(2), torch.tensor([2]), np.int64(2)):
        assert torch.equal(pop(x, individual=one), pop(x, individuals=[2]))
    for several in ((1, 2), np.array([1, 2]), torch.tensor([1, 2], dtype=torch.int32), range(1, 3)):
        assert torch.equal(pop(x, individuals=several), pop(x, individuals=[1, 2]))


def test_a_batch_of_one_is_shown_to_every_individual():
    pop, x = population(), numbers(1, 3, 2)
    shown = pop(x, all_individuals=True)
    assert shown.shape == (4, 3, 1)
    assert len({tuple(row) for row in shown[:, :, 0].tolist()}) == 4


def test_a_multiple_of_pop_size_is_split_in_contiguous_groups():
    pop, x = population(), numbers(8, 2)
    split = pop(x, all_individuals=True)
    assert split.shape == (8, 1)
    for i in range(4):
        assert torch.equal(split[2 * i : 2 * i + 2], pop(x[2 * i : 2 * i + 2], individual=i))


@settings(max_examples=25, deadline=None)
@given(st.permutations(range(6)), st.integers(1, 3))
def test_permuting_the_slots_permutes_the_outputs(order, rows):
    pop, x = population(pop_size=6), numbers(6, rows, 2)
    straight = pop(x, individuals=range(6))
    assert torch.equal(pop(x[list(order)], individuals=order), straight[list(order)])


@pytest.mark.parametrize(
    ("which", "message"),
    [
        ({}, "pass exactly one of individual=, individuals= and all_individuals=True"),
        ({"individual": 0, "all_individuals": True}, "pass exactly one of"),
        ({"individuals": []}, "a batch of 8 rows cannot be split among 0 individuals"),
        ({"individuals": [0, 1, 2]}, "a batch of 8 rows cannot be split among 3 individuals"),
        ({"individuals": [0, 4]}, r"individuals \[0, 4\] must lie in 0\.\.3"),
        ({"individual": -1}, r"individuals \[-1\] must lie in 0\.\.3"),
        ({"individual": 1.0}, "list of integer indices"),
        ({"individual": True}, "list of integer indices"),
        ({"individual": torch.tensor([1, 2])}, "one individual is named by one integer, not by"),
        ({"individuals": [[0, 1]]}, "list of integer indices, not by"),
    ],
)
def test_bad_names_of_individuals_are_refused(which, message):
    with pytest.raises(ValueError, match=message):
        population()(numbers(8, 2), **which)


# --- further arguments


class Parts(NamedTuple):
    scale: torch.Tensor
    note: str


class Rich(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 3)

    def forward(self, x, extra=None, *, options=None, factor=1.0):
        hidden = self.layer(x)
        if isinstance(extra, Parts):
            hidden = hidden * extra.scale
        elif isinstance(extra, (tuple, list)):
            hidden = hidden + self.layer(extra[0]) + extra[1][0]
        if options is not None:
            hidden = hidden + options["shift"] * options["deep"]["weight"]
        return {"output": hidden * factor, "size": len(x)}


@pytest.mark.parametrize("batch", [1, 6])
@pytest.mark.parametrize("kind", [dict, OrderedDict, lambda d: defaultdict(list, d)])
def test_nested_arguments_are_split_alike(batch, kind):
    pop = population(Rich())
    ids = [2, 0, 2]
    x = numbers(batch, 2)
    cases = [
        ((Parts(numbers(batch, 1, seed=1), "kept"),), {}),
        (((numbers(batch, 2, seed=2), [numbers(batch, 3, seed=3)]),), {}),
        (([numbers(batch, 2, seed=2), (numbers(batch, 3, seed=3),)],), {"factor": 2.0}),
        (
            (),
            {"options": kind({"shift": numbers(batch, 3), "deep": {"weight": torch.tensor(2.0)}})},
        ),
    ]
    for args, kwargs in cases:
        output = pop(x, *args, individuals=ids, **kwargs)["output"]
        for k, i in enumerate(ids):
            rows = slice(0, 1) if batch == 1 else slice(2 * k, 2 * k + 2)
            own = pop.merge_(i)(x[rows], *cut(args, rows), **cut(kwargs, rows))["output"]
            assert_close(output.chunk(3)[k], own)


def cut(nested, rows):
    if isinstance(nested, torch.Tensor):
        return nested[rows] if nested.dim() else nested
    if isinstance(nested, dict):
        return {key: cut(value, rows) for key, value in nested.items()}
    if isinstance(nested, Parts):
        return Parts(*(cut(value, rows) for value in nested))
    return (
        type(nested)(cut(v, rows) for v in nested) if isinstance(nested, (tuple, list)) else nested
    )


def test_a_batch_given_by_keyword_or_inside_a_dict_is_found():
    class Dicts(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 1)

        def forward(self, observation):
            return self.layer(observation["position"])

    pop, x = population(Dicts()), numbers(4, 2)
    expected = torch.cat([pop.merge_(i)({"position": x[i : i + 1]}) for i in range(4)])
    assert_close(pop({"position": x}, all_individuals=True), expected)
    assert_close(pop(observation={"position": x}, all_individuals=True), expected)


def test_without_a_tensor_there_is_no_batch():
    with pytest.raises(ValueError, match="at least one tensor with a batch dimension"):
        population()(3.0, all_individuals=True)


# --- fitness functions and ranks


def test_the_three_forms_of_a_fitness_function():
    pop = population()
    assert pop.evaluate_distributed(lambda population, idx: idx * 2).tolist() == [0, 2, 4, 6]
    assert pop.evaluate_distributed(
        fitness=lambda population, individuals: individuals
    ).tolist() == [
        0,
        1,
        2,
        3,
    ]
    every = pop.evaluate_distributed(lambda population: torch.arange(population.pop_size))
    assert every.dtype == torch.float32
    assert every.tolist() == [0, 1, 2, 3]


def test_one_process_is_rank_0_of_1(monkeypatch):
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert is_main_rank()
    monkeypatch.setenv("RANK", "1")
    assert not is_main_rank()


def test_a_population_of_one():
    """D-51."""
    pop = population(pop_size=1)
    x = numbers(3, 2)
    before = pop(x, all_individuals=True)
    for selection in ("deterministic", "probabilistic"):
        pop.evolve_(torch.tensor([2.0]), selection_type=selection)
    assert torch.equal(pop(x, individual=0), before)
    assert pop.generation == 2
    pop.evolve_([torch.nan], elite_frac=0)
    assert all(weights.isfinite().all() for weights in genes(pop))
    assert not torch.equal(pop(x, individual=0), before)
