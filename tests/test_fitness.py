import functools

import numpy as np
import pytest
import torch

from populora_envs.fitness import best_first, call_fitness, check_fitnesses, fitness_form


class Three:
    pop_size = 3
    eval_seed = 0
    eval_seed_looks = 0


POPULATION = Three()


@pytest.mark.parametrize(
    ("function", "form"),
    [
        (lambda population: 0, "all"),
        (lambda population, scale=2: 0, "all"),
        (lambda population, *args, **kwargs: 0, "all"),
        (lambda population, individuals: 0, "batched"),
        (lambda population, indices, scale=2: 0, "batched"),
        (lambda population, ids: 0, "batched"),
        (lambda population, idx: 0, "single"),
        (lambda p, index: 0, "single"),
        (lambda p, individual, *, scale=1: 0, "single"),
        (functools.partial(lambda scale, population, idx: 0, 2), "single"),
    ],
)
def test_the_form_follows_the_required_parameters(function, form):
    assert fitness_form(function) == form


@pytest.mark.parametrize(
    ("function", "parameters"),
    [
        (lambda: 0, ""),
        (lambda population, i: 0, "population, i"),
        (lambda population, idx, seed: 0, "population, idx, seed"),
    ],
)
def test_any_other_form_is_refused(function, parameters):
    with pytest.raises(ValueError, match=rf"this one takes \({parameters}\): rename or default"):
        fitness_form(function)


def test_each_form_is_called_as_it_asks():
    calls = []

    def single(population, idx):
        calls.append((population, idx))
        return idx + 0.5

    def batched(population, individuals):
        calls.append((population, individuals))
        return [i + 0.5 for i in individuals]

    def every(population):
        calls.append((population,))
        return np.arange(3) + 0.5

    for function in (single, batched, every):
        fitnesses = call_fitness(function, POPULATION, [2, 0])
        assert fitnesses.tolist() == [2.5, 0.5]
        assert fitnesses.dtype == torch.float32
    assert calls == [
        (POPULATION, 2),
        (POPULATION, 0),
        (POPULATION, [2, 0]),
        (POPULATION,),
    ]


@pytest.mark.parametrize(
    "value",
    [
        1,
        1.0,
        True,
        np.float64(1),
        torch.tensor(1.0),
        torch.ones(1),
        torch.ones((), requires_grad=True),
    ],
)
def test_one_number_of_any_kind_is_a_fitness(value):
    assert call_fitness(lambda population, idx: value, POPULATION, range(3)).tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    "values",
    [
        [1, 1, 1],
        (1.0, 1.0, 1.0),
        np.ones(3),
        torch.ones(3, dtype=torch.float64),
        torch.ones(3, requires_grad=True),
        list(torch.ones(3, requires_grad=True)),
        torch.ones(3, dtype=torch.bfloat16),
    ],
    ids=lambda v: type(v).__name__,
)
def test_numbers_of_any_kind_are_fitnesses(values):
    for fitnesses in (
        call_fitness(lambda population: values, POPULATION, range(3)),
        check_fitnesses(values, 3),
    ):
        assert fitnesses.tolist() == [1, 1, 1]
        assert fitnesses.dtype == torch.float32
        assert not fitnesses.requires_grad


@pytest.mark.parametrize("value", [None, "a", [1, 2], torch.ones(2), {}])
def test_a_single_fitness_that_is_no_number_names_its_individual(value):
    """D-08."""
    with pytest.raises(
        TypeError, match=r"gave .* for individual 0: return one number, higher is b"
    ):
        call_fitness(lambda population, idx: value, POPULATION, range(3))


@pytest.mark.parametrize("values", [None, "abc", [1, 2, None], {"a": 1}, [[1, 2], [3]]])
def test_fitnesses_that_are_no_numbers_are_refused(values):
    """D-08."""
    for function in (lambda population: values, lambda population, ids: values):
        with pytest.raises(TypeError, match=r"gave .*: return a tensor or list of 3 numbers"):
            call_fitness(function, POPULATION, range(3))


@pytest.mark.parametrize("values", [[1.0], torch.ones(3, 1), 1.0, torch.ones(4)])
def test_fitnesses_of_another_shape_are_refused(values):
    with pytest.raises(
        ValueError, match=r"values of shape .* for 3 individuals: return shape \(3,\)"
    ):
        call_fitness(lambda population: values, POPULATION, range(3))


def test_an_error_of_the_users_function_comes_out_as_it_is():
    def broken(population, idx):
        raise KeyError(idx)

    with pytest.raises(KeyError):
        call_fitness(broken, POPULATION, range(3))


def test_non_finite_fitnesses_count_as_the_worst():
    """D-09."""
    values = torch.tensor([1.0, torch.inf, -torch.inf, torch.nan])
    assert check_fitnesses(values, 4).tolist() == [1.0] + [-torch.inf] * 3
    assert values.isnan().any()


def test_the_best_come_first_and_ties_go_to_the_lower_index():
    assert best_first(torch.tensor([1.0, 3.0, 1.0, 3.0, -torch.inf])).tolist() == [1, 3, 0, 2, 4]
    assert best_first(torch.zeros(100)).tolist() == list(range(100))
