"""The genetic algorithm as a search: running means, and the operators of the population."""

import numpy as np
import pytest
import torch
from torch import nn

from populora_envs.population import Population
from populora_envs.search import make_search


def population(pop_size=8, seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))
    return Population(model, pop_size=pop_size, low_rank=2, seed=seed)


def written(pop):
    return [w.clone() for layer in pop.individuals.values() for w in layer.parts.values()]


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def generation(search, fitnesses):
    search.ask()
    search.tell(fitnesses)


SCORES = [1.0, 8.0, 3.0, 2.0, 7.0, 0.0, -1.0, 4.0]


def test_the_first_generation_is_the_population_as_it_is():
    pop = population()
    before = written(pop)
    make_search("ga", pop).ask()
    assert same(before, written(pop))
    assert pop.generation == 0


def test_the_next_one_equals_that_of_evolve():
    one, other = population(), population()
    search = make_search("ga", one, crossover_type="average", survive_frac=0.75)
    generation(search, SCORES)
    search.ask()
    other.evolve_(torch.tensor(SCORES), crossover_type="average", survive_frac=0.75)
    assert same(written(one), written(other))
    assert one.generation == other.generation == 1


def test_an_elite_is_judged_by_the_mean_of_its_generations():
    search = make_search("ga", population())
    generation(search, SCORES)
    assert search.scores().tolist() == SCORES
    search.ask()  # the elites are 1 and 4
    assert search.scores([0.0] * 8).tolist() == [0.0, 4.0, 0.0, 0.0, 3.5, 0.0, 0.0, 0.0]
    search.tell([1.0, 2.0, 1.0, 1.0, 5.0, 1.0, 1.0, 6.0])
    assert search.scores().tolist() == [1.0, 5.0, 1.0, 1.0, 6.0, 1.0, 1.0, 6.0]
    search.ask()  # 4 and, by its single good one, 7
    assert search.scores([3.0] * 8).tolist() == [3.0, 3.0, 3.0, 3.0, 5.0, 3.0, 3.0, 4.5]


def test_new_children_start_anew():
    search = make_search("ga", population())
    generation(search, SCORES)
    search.ask()
    assert search.state()["counts"].tolist() == [0, 1, 0, 0, 1, 0, 0, 0]
    assert search.state()["sums"].tolist() == [0.0, 8.0, 0.0, 0.0, 7.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_an_elite_that_was_not_finite_once_never_leads_again(bad):
    search = make_search("ga", population(), elite_frac=0.5)
    generation(search, SCORES)
    search.ask()
    search.tell([bad if score == 8.0 else 0.0 for score in SCORES])
    assert search.scores()[1] == -np.inf
    search.ask()
    assert search.state()["counts"][1] == 0


def test_scores_of_a_generation_not_told_leave_no_trace():
    search = make_search("ga", population())
    generation(search, SCORES)
    search.ask()
    before = search.state()
    search.scores([5.0] * 8)
    assert torch.equal(search.state()["sums"], before["sums"])


def test_options_reach_the_operators():
    seen = []

    def mutation(down, up, generator, *, size=1.0):
        seen.append((len(down), size))
        return down, up

    search = make_search("ga", population(), mutation_type=mutation, size=0.25, elite_frac=0.5)
    generation(search, SCORES)
    search.ask()
    assert set(seen) == {(4, 0.25)}


def test_elites_are_where_they_were():
    pop = population()
    search = make_search("ga", pop)
    generation(search, SCORES)
    before = written(pop)
    search.ask()
    for was, now in zip(before, written(pop), strict=True):
        assert torch.equal(was[[1, 4]], now[[1, 4]])
        assert not torch.equal(was, now)


def test_it_stands_at_none_but_its_individuals_and_leaves_the_base_alone():
    pop = population()
    search = make_search("ga", pop)
    before = {name: tensor.clone() for name, tensor in pop.model.state_dict().items()}
    for _ in range(3):
        generation(search, SCORES)
    assert search.centre() is None
    assert pop.base_change() is None
    assert all(torch.equal(before[name], now) for name, now in pop.model.state_dict().items())


def test_evolve_alone_goes_by_the_fitness_it_is_given():
    """Running means belong to the search; a loop of the user has none."""
    pop = population()
    assert pop.evolve_(torch.tensor(SCORES)).elites.tolist() == [1, 4]
    assert pop.evolve_(torch.tensor(SCORES[::-1])).elites.tolist() == [6, 3]


def test_wrong_options_are_refused():
    with pytest.raises(TypeError, match=r"unknown option 'epsilom'; near names: .*epsilon"):
        make_search("ga", population(), epsilom=0.5)
    with pytest.raises(ValueError, match="unknown mutation 'gaussian'"):
        make_search("ga", population(), mutation_type="gaussian")
