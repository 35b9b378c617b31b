"""Which search is meant, and which settings it takes."""

import pytest
from torch import nn

from populora_envs import Population, evolve_with_env, interact_with_env, register_search
from populora_envs.search import (
    EvolutionStrategy,
    GeneticAlgorithm,
    RandomSearch,
    Search,
    chosen,
    make_search,
    searches,
)
from tests.tiny import Aim, linear


def population():
    return Population(nn.Linear(2, 1), pop_size=4, low_rank=1, seed=0)


class Still(Search):
    """A search that stays."""

    def __init__(self, population, *, patience=3):
        super().__init__(population)
        self.patience = patience

    def _ask(self):
        pass

    def _tell(self, fitnesses):
        pass


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, EvolutionStrategy),
        ({"scale": 1.0}, EvolutionStrategy),
        ({"first_rate": 1.0, "last_rate": 0.5, "half_life": 9.0}, EvolutionStrategy),
        ({"epsilon": 0.5}, GeneticAlgorithm),
        ({"crossover_type": "average"}, GeneticAlgorithm),
        ({"selection_type": "probabilistic"}, GeneticAlgorithm),
        ({"tournament_size": 3}, GeneticAlgorithm),
    ],
)
def test_none_means_what_the_options_say(settings, expected):
    assert chosen(None, settings) is expected
    assert type(make_search(None, population(), **settings)) is expected


@pytest.mark.parametrize(
    ("wrong", "near"),
    [
        ("scales", "scale"),
        ("firstrate", "first_rate"),
        ("half_live", "half_life"),
        ("epsilom", "epsilon"),
        ("crossover_typ", "crossover_type"),
    ],
)
def test_an_unknown_option_lists_near_names_of_both(wrong, near):
    with pytest.raises(TypeError, match=rf"unknown option '{wrong}'; near names: .*\b{near}\b"):
        make_search(None, population(), **{wrong: 1.0})
    with pytest.raises(TypeError, match=rf"unknown option '{wrong}'; near names: .*\b{near}\b"):
        evolve_with_env(Aim, linear(), **{wrong: 1.0})


def test_options_of_two_searches_together_are_refused():
    with pytest.raises(TypeError, match="unknown option 'scale'"):
        make_search(None, population(), scale=1.0, epsilon=0.5)
    with pytest.raises(TypeError, match="unknown option 'epsilon'"):
        make_search("es", population(), epsilon=0.5)


@pytest.mark.parametrize("name", ["es", "ga", "random", "snes"])
def test_a_name_is_what_was_registered(name):
    assert type(make_search(name, population())) is searches.get(name)


def test_an_unknown_name_lists_near_ones():
    with pytest.raises(ValueError, match=r"unknown search 'openaies'; near names: .*openai_es"):
        make_search("openaies", population())
    with pytest.raises(ValueError, match="unknown search"):
        evolve_with_env(Aim, linear(), search="openaies")


def test_a_class_takes_its_own_settings():
    assert make_search(Still, population()).patience == 3
    assert make_search(Still, population(), patience=5).patience == 5
    with pytest.raises(TypeError, match=r"unknown option 'patiense'; near names: patience"):
        make_search(Still, population(), patiense=5)


def test_a_function_makes_a_search():
    assert isinstance(
        make_search(lambda population: RandomSearch(population), population()), Search
    )
    made = make_search(lambda pop, **settings: Still(pop, **settings), population(), patience=7)
    assert made.patience == 7


def test_a_name_of_ones_own():
    register_search("still")(Still)
    try:
        assert type(make_search("still", population(), patience=1)) is Still
        evolve_with_env(Aim, linear(), search="still", num_generations=1, pop_size=2, horizon=2)
        with pytest.raises(ValueError, match="the search 'still' is registered already"):
            register_search("still")(Still)
    finally:
        del searches._entries["still"]
    assert "still" not in searches


@pytest.mark.parametrize("wrong", [3, 1.5, ["es"]])
def test_what_is_no_choice_is_refused(wrong):
    with pytest.raises(TypeError, match="a search is a name or a function, not"):
        make_search(wrong, population())


def test_what_makes_no_search_is_refused():
    with pytest.raises(TypeError, match="a search is a subclass of Search, not a dict"):
        make_search(lambda population: {}, population())
    with pytest.raises(TypeError, match="a search is a subclass of Search, not a dict"):
        evolve_with_env(Aim, linear(), search=lambda population: {}, horizon=8)


def test_the_interactor_makes_searches_for_a_loop_of_ones_own():
    with interact_with_env(Aim) as interactor:
        pop = interactor.population(linear(), pop_size=8, low_rank=2)
        search = interactor.search(pop, scale=0.5)
        assert type(search) is EvolutionStrategy
        for _ in range(2):
            search.ask()
            search.tell(interactor.evaluate(pop, horizon=8))
        assert type(interactor.search(pop, "ga", epsilon=0.3)) is GeneticAlgorithm
    assert pop.generation == 1
