"""Genomes: which weights are genes, their natural steps, and the way there and back."""

import pytest
import torch
from torch import nn

from populora_envs.population import Population
from populora_envs.search import Genome
from tests.populations import numbers, same


def population(low_rank=2, pop_size=3, adapt_bias=True, seed=0):
    """A layer from 3 to 5 and one from 5 to 4."""
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4))
    return Population(model, pop_size=pop_size, low_rank=low_rank, adapt_bias=adapt_bias, seed=seed)


@pytest.mark.parametrize(
    ("low_rank", "adapt_bias", "size"),
    [
        (2, False, 2 * (3 + 5) + 2 * (5 + 4)),
        (2, True, 2 * (3 + 5) + 5 + 2 * (5 + 4) + 4),
        (3, True, 3 * 5 + 5 + 3 * (5 + 4) + 4),
        (4, True, 3 * 5 + 5 + 5 * 4 + 4),
        (9, False, 3 * 5 + 5 * 4),
    ],
)
def test_a_layer_whose_smaller_side_the_rank_reaches_has_the_genes_of_a_full_matrix(
    low_rank, adapt_bias, size
):
    genome = Genome(population(low_rank, adapt_bias=adapt_bias))
    assert genome.size == len(genome.scale) == len(genome.start) == size
    assert genome.scale.dtype == genome.start.dtype == torch.float64


def test_the_natural_steps_of_factors_and_of_full_matrices():
    factored = Genome(population(low_rank=2)).scale
    down, up, offset = factored[:6], factored[6:16], factored[16:21]
    assert torch.allclose(down, torch.tensor(3.0**-0.5).double())
    assert torch.allclose(up, torch.tensor(2.0**-0.5).double())
    assert torch.allclose(offset, torch.tensor(3.0**-0.5).double())
    full = Genome(population(low_rank=7)).scale
    assert torch.allclose(full[:20], torch.tensor(3.0**-0.5).double())
    assert torch.allclose(full[20:], torch.tensor(5.0**-0.5).double())


@pytest.mark.parametrize("low_rank", [1, 2, 3, 4, 8])
def test_a_natural_step_of_every_gene_changes_weights_by_the_root_of_the_fan_in(low_rank):
    pop = population(low_rank, pop_size=4000)
    genome = Genome(pop)
    noise = numbers(4000, genome.size).double()
    genome.write_(noise * genome.scale)
    for layer in pop.individuals.values():
        change = torch.bmm(layer.up, layer.down.transpose(1, 2))
        expected = layer.down.shape[1] ** -0.5
        assert float(change.std()) == pytest.approx(expected, rel=0.05)
        assert float(layer.offset.std()) == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("adapt_bias", [False, True])
@pytest.mark.parametrize("low_rank", [1, 2, 3, 4, 5, 8])
def test_what_was_written_is_read_and_is_the_state_of_each_row(low_rank, adapt_bias):
    pop = population(low_rank, adapt_bias=adapt_bias)
    genome = Genome(pop)
    rows = numbers(3, genome.size).double()
    genome.write_(rows)
    assert torch.equal(genome.read(), rows)
    for i in range(3):
        expected = pop.individual_state(i)
        state = genome.state_of(rows[i])
        assert state.keys() == expected.keys()
        for name, parts in expected.items():
            assert parts.keys() == state[name].keys()
            assert same(parts.values(), (state[name][part] for part in parts))


@pytest.mark.parametrize("low_rank", [1, 2, 3, 4, 5, 8])
def test_what_an_individual_was_before_leaves_no_trace(low_rank):
    one, other = population(low_rank, seed=1), population(low_rank, seed=2)
    rows = numbers(3, Genome(one).size)
    for pop in (one, other):
        Genome(pop).write_(rows)
    for i in range(3):
        same_weights = one.individual_state(i), other.individual_state(i)
        for name in one.individuals:
            assert same(*(state[name].values() for state in same_weights))


def test_the_genes_of_a_full_layer_are_the_change_of_its_weight():
    pop = population(low_rank=7)
    genome = Genome(pop)
    rows = numbers(3, genome.size)
    genome.write_(rows)
    first, second = pop.individuals.values()
    by_layer = [layer.up @ layer.down.transpose(1, 2) for layer in (first, second)]
    # the smaller side comes last: a column of up for each input, a row of down for each input
    assert torch.equal(by_layer[0], rows[:, :15].reshape(3, 5, 3))
    assert torch.equal(by_layer[1], rows[:, 20:40].reshape(3, 5, 4).transpose(1, 2))


@pytest.mark.parametrize("low_rank", [1, 2, 3, 8])
def test_the_start_equals_the_base_and_lets_every_step_count(low_rank):
    pop = population(low_rank)
    genome = Genome(pop)
    genome.write_(genome.start.expand(3, -1))
    merged = pop.merge_(1)
    for name, layer in pop.individuals.items():
        assert torch.equal(merged.get_submodule(name).weight, layer.weight)
        assert torch.equal(merged.get_submodule(name).bias, layer.bias)
        assert layer.down.any() or layer.up.any()
        assert torch.equal(layer.down[0], layer.down[2])


def test_the_start_depends_on_the_seed_alone():
    one, same_seed, other = (Genome(population(seed=seed)).start for seed in (1, 1, 2))
    assert torch.equal(one, same_seed)
    assert not torch.equal(one, other)
