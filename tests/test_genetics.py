import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from populora_envs.operators import crossovers, mutations, parent_selections, selections
from populora_envs.population import Population

fitness_lists = st.lists(
    st.sampled_from([-5.0, -1.0, 0.0, 2.0, 2.0, 1e30, float("inf"), -float("inf"), float("nan")]),
    min_size=1,
    max_size=9,
)


def population(pop_size=8, seed=0):
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 3))
    return Population(model, pop_size=pop_size, low_rank=2, seed=seed)


def genes(pop):
    return [w.clone() for layer in pop.individuals.values() for w in (layer.down, layer.up)]


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def changed(before, after):
    """The individuals any of whose weights differ."""
    differs = [(a != b).flatten(1).any(dim=1) for a, b in zip(before, after, strict=True)]
    return torch.stack(differs).any(dim=0).nonzero().flatten().tolist()


def rank(fitnesses):
    """Best first: a plain Python sort, ties to the lower index, non-finite ones last."""
    worst = float("-inf")
    value = [f if f - f == 0 else worst for f in fitnesses]
    return sorted(range(len(value)), key=lambda i: (-value[i], i))


# --- selection

FITNESSES = torch.tensor([0.0, 7.0, 3.0, 7.0, -1.0, 2.0, 5.0, 1.0])


def test_deterministic_selection_keeps_the_best():
    result = population().select("deterministic", FITNESSES, survive_frac=0.5)
    assert result.survivors.tolist() == [1, 3, 6, 2]
    assert result.elites.tolist() == [1, 3]
    assert result.selected_out_indices.tolist() == [0, 4, 5, 7]
    assert [indices.dtype for indices in result] == [torch.int64] * 3


def test_higher_is_better():
    """D-52."""
    result = population(2).select("deterministic", torch.tensor([-5.0, -1.0]), survive_frac=0.5)
    assert result.survivors.tolist() == [1]


@pytest.mark.parametrize(
    ("survive_frac", "survivors", "elite_frac", "elites"),
    [(0.5, 4, 0.25, 2), (0.01, 1, 0.25, 1), (1.0, 8, 1.0, 8), (0.5, 4, 0.0, 0), (0.7, 6, 0.01, 1)],
)
@pytest.mark.parametrize("selection", selections)
def test_fractions_are_rounded_to_at_least_one(
    selection, survive_frac, survivors, elite_frac, elites
):
    result = population().select(selection, FITNESSES, survive_frac, elite_frac=elite_frac)
    assert len(result.survivors) == survivors
    assert len(result.elites) == elites
    assert len(result.selected_out_indices) == 8 - survivors


@pytest.mark.parametrize("selection", selections)
@settings(max_examples=40, deadline=None)
@given(
    fitnesses=fitness_lists,
    survive_frac=st.floats(0, 1, exclude_min=True),
    elite_frac=st.floats(0, 1),
    seed=st.integers(0, 99),
)
def test_every_selection_parts_the_population(selection, fitnesses, survive_frac, elite_frac, seed):
    pop = population(len(fitnesses), seed)
    result = pop.select(selection, fitnesses, survive_frac, elite_frac=elite_frac)
    survivors, culled = result.survivors.tolist(), result.selected_out_indices.tolist()
    order = rank(fitnesses)
    assert sorted(survivors + culled) == list(range(len(fitnesses)))
    assert len(survivors) == max(1, round(len(fitnesses) * survive_frac))
    assert survivors == [i for i in order if i in survivors]
    assert result.elites.tolist() == order[: len(result.elites)]
    assert set(result.elites.tolist()) <= set(survivors)
    assert culled == sorted(culled)
    if selection == "deterministic":
        assert survivors == order[: len(survivors)]


def test_probabilistic_selection_keeps_the_elites_and_favours_the_better():
    pop, counts = population(), torch.zeros(8)
    for _ in range(400):
        result = pop.select("probabilistic", FITNESSES, elite_frac=0.25)
        assert result.elites.tolist() == [1, 3]
        counts[result.survivors] += 1
    others = counts[[6, 2, 5, 7, 0, 4]]
    assert counts[[1, 3]].tolist() == [400, 400]
    assert others[0] > others[2] > others[5] > 0


def test_a_function_in_place_of_the_name_of_a_selection():
    def worst(fitnesses, num_survivors, generator, margin=0):
        assert fitnesses.dtype == torch.float32
        assert isinstance(generator, torch.Generator)
        return fitnesses.argsort()[margin : num_survivors + margin]

    pop = population()
    assert set(pop.select(worst, FITNESSES, elite_frac=0).survivors.tolist()) == {4, 0, 7, 5}
    assert set(pop.select(worst, FITNESSES, elite_frac=0, margin=1).survivors.tolist()) == {
        0,
        7,
        5,
        2,
    }
    with_elites = pop.select(worst, FITNESSES, elite_frac=0.25)
    assert set(with_elites.survivors.tolist()) == {1, 3, 4, 0}


@pytest.mark.parametrize(
    ("given_back", "message"),
    [
        ([0, 1, 2], r"the selection gave \[0, 1, 2\]: return 4 different indices"),
        ([0, 1, 2, 2], "return 4 different indices"),
        ([0, 1, 2, 8], r"must lie in 0\.\.7"),
        ([0.5, 1, 2, 3], "list of integer indices"),
    ],
)
def test_what_a_selection_of_the_user_gives_is_checked(given_back, message):
    with pytest.raises(ValueError, match=message):
        population().select(lambda fitnesses, count, generator: given_back, FITNESSES)


@pytest.mark.parametrize("fraction", [0.0, -0.1, 1.1, float("nan")])
def test_fractions_out_of_range_are_refused(fraction):
    with pytest.raises(ValueError, match=rf"survive_frac must lie in \(0, 1\], not {fraction}"):
        population().select("deterministic", FITNESSES, fraction)
    if fraction != 0:
        with pytest.raises(ValueError, match=rf"elite_frac must lie in \[0, 1\], not {fraction}"):
            population().evolve_(FITNESSES, elite_frac=fraction)


# --- parents


@pytest.mark.parametrize("selection", parent_selections)
@settings(max_examples=30, deadline=None)
@given(
    fitnesses=fitness_lists,
    num_children=st.integers(0, 6),
    num_parents=st.integers(1, 3),
    data=st.data(),
)
def test_parents_are_survivors(selection, fitnesses, num_children, num_parents, data):
    everyone = range(len(fitnesses))
    culled = data.draw(st.sets(st.sampled_from(everyone), max_size=len(fitnesses) - 1))
    pop = population(len(fitnesses))
    parents = pop.select_parents(selection, fitnesses, num_children, sorted(culled), num_parents)
    assert parents.dtype == torch.int64
    assert parents.shape == (num_children, num_parents)
    assert set(parents.flatten().tolist()) <= set(everyone) - culled


def test_without_culled_everyone_may_be_a_parent():
    parents = population().select_parents("roulette", torch.zeros(8), 300)
    assert parents.unique().tolist() == list(range(8))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"culled": range(8)}, ValueError, "all individuals are culled: no parents are left"),
        ({"culled": [8]}, ValueError, r"must lie in 0\.\.7"),
        ({"culled": [-1]}, ValueError, r"must lie in 0\.\.7"),
        ({"num_children": -1}, ValueError, "num_children must be at least 0, not -1"),
        ({"num_children": 2.5}, TypeError, r"num_children must be a whole number, not 2\.5"),
        ({"num_parents_per_child": 0}, ValueError, "num_parents_per_child must be at least 1"),
        ({"tournament_size": 0}, ValueError, "tournament_size must be at least 1, not 0"),
    ],
)
def test_bad_arguments_of_select_parents_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        population().select_parents("tournament", FITNESSES, **{"num_children": 2, **arguments})


def test_a_function_in_place_of_the_name_of_a_parent_selection():
    def in_turn(fitnesses, num_children, num_parents, generator):
        assert fitnesses.tolist() == [0.0, 3.0, 5.0]
        return torch.arange(num_children * num_parents).reshape(num_children, -1) % len(fitnesses)

    parents = population().select_parents(in_turn, FITNESSES, 3, culled=[1, 3, 4, 5, 7])
    assert parents.tolist() == [[0, 2], [6, 0], [2, 6]]


@pytest.mark.parametrize("given_back", [[[0, 1]], [0, 1], [[0, 1], [2, 8]], [[0, 1], [-1, 0]]])
def test_what_a_parent_selection_of_the_user_gives_is_checked(given_back):
    with pytest.raises(ValueError, match="return 2 rows of 2 indices below 8, the number of surv"):
        population().select_parents(lambda *_: torch.tensor(given_back), FITNESSES, 2)


# --- crossover and mutation


def test_crossover_overwrites_the_children_and_nobody_else():
    pop = population()
    before = genes(pop)
    pop.crossover_("average", torch.tensor([[1, 3], [6, 6]]), [0, 4])
    after = genes(pop)
    assert changed(before, after) == [0, 4]
    for old, new in zip(before, after, strict=True):
        assert torch.equal(new[0], (old[1] + old[3]) / 2)
        assert torch.equal(new[4], old[6])


def test_children_may_be_parents_too():
    pop = population()
    before = genes(pop)
    pop.crossover_("clone", [[1, 0], [0, 1]], [0, 1])
    for old, new in zip(before, genes(pop), strict=True):
        assert torch.equal(new[:2], old[[1, 0]])


def test_no_children_are_no_error():
    pop = population()
    before = genes(pop)
    parents = pop.select_parents("roulette", FITNESSES, 0)
    pop.crossover_("average", parents, [])
    pop.mutate_("full_gaussian", individuals=[])
    assert same(genes(pop), before)


@pytest.mark.parametrize(
    ("parents", "children", "message"),
    [
        ([[0, 1]], [2, 3], r"parents have shape \(1, 2\) for 2 children: pass one row of parents"),
        ([0, 1], [2, 3], r"parents have shape \(2,\) for 2 children"),
        ([[0, 8]], [2], r"must lie in 0\.\.7"),
        ([[0, 1]], [8], r"must lie in 0\.\.7"),
        ([[0, 1], [0, 1]], [2, 2], r"children \[2, 2\] name a place twice: name each once"),
    ],
)
def test_bad_parents_and_children_are_refused(parents, children, message):
    pop = population()
    before = genes(pop)
    with pytest.raises(ValueError, match=message):
        pop.crossover_("average", parents, children)
    assert same(genes(pop), before)


@pytest.mark.parametrize(
    ("which", "who"),
    [
        ({"individual": 3}, [3]),
        ({"individual": torch.tensor(3)}, [3]),
        ({"individuals": [5, 2, 5]}, [2, 5]),
        ({"individuals": torch.tensor([0, 7])}, [0, 7]),
        ({"all_individuals": True}, list(range(8))),
    ],
)
def test_mutation_varies_those_who_are_named(which, who):
    pop = population()
    before = genes(pop)
    pop.mutate_("full_gaussian", **which)
    assert changed(before, genes(pop)) == who


def test_mutating_again_draws_anew():
    one, other = population(), population()
    for pop in (one, other):
        pop.mutate_("full_gaussian", all_individuals=True)
    assert same(genes(one), genes(other))
    before = genes(one)
    one.mutate_("full_gaussian", all_individuals=True)
    first = [a - b for a, b in zip(before, genes(population()), strict=True)]
    second = [a - b for a, b in zip(genes(one), before, strict=True)]
    assert not any(torch.allclose(a, b) for a, b in zip(first, second, strict=True))
    other.generation += 1
    other.mutate_("full_gaussian", all_individuals=True)
    assert not same(genes(one), genes(other))


def test_functions_in_place_of_the_names_of_crossover_and_mutation():
    pop = population()
    before = genes(pop)

    def largest(down, up, generator):
        assert isinstance(generator, torch.Generator)
        return down.amax(dim=1), up.amax(dim=1)

    pop.crossover_(largest, [[1, 2]], [0])
    pop.mutate_(lambda down, up, generator, by=1: (down + by, up), individual=3, by=2)
    after = genes(pop)
    assert torch.equal(after[1][0], before[1][1:3].amax(dim=0))
    assert torch.equal(after[0][3], before[0][3] + 2)
    assert torch.equal(after[1][3], before[1][3])


# --- one generation


def test_evolve_leaves_the_elites_as_they_are_and_replaces_everyone_else():
    pop = population()
    before = genes(pop)
    pop.evolve_(FITNESSES)
    assert changed(before, genes(pop)) == [0, 2, 4, 5, 6, 7]
    assert pop.generation == 1


@settings(max_examples=40, deadline=None)
@given(
    fitnesses=fitness_lists,
    selection=st.sampled_from(list(selections)),
    parents=st.sampled_from(list(parent_selections)),
    crossover=st.sampled_from(list(crossovers)),
    mutation=st.sampled_from(list(mutations)),
    elite_frac=st.sampled_from([0.0, 0.2, 0.5, 1.0]),
)
def test_every_choice_keeps_the_elites_and_finite_tensors(
    fitnesses, selection, parents, crossover, mutation, elite_frac
):
    pop = population(len(fitnesses))
    before, num_elites = genes(pop), len(fitnesses) * elite_frac
    elites = rank(fitnesses)[: min(max(1, round(num_elites)), max(1, round(len(fitnesses) / 2)))]
    for _ in range(2):
        pop.evolve_(
            torch.tensor(fitnesses),
            selection_type=selection,
            parent_selection_type=parents,
            crossover_type=crossover,
            mutation_type=mutation,
            elite_frac=elite_frac,
        )
    assert all(weights.isfinite().all() for weights in genes(pop))
    assert set(changed(before, genes(pop))).isdisjoint(elites if elite_frac else [])
    assert pop.generation == 2


@pytest.mark.parametrize("fitness", [2.0, float("nan"), float("inf")])
def test_equal_and_non_finite_fitnesses_keep_all_tensors_finite(fitness):
    """D-09, D-51."""
    pop = population(4)
    for selection in selections:
        for parents in parent_selections:
            pop.evolve_([fitness] * 4, selection_type=selection, parent_selection_type=parents)
    assert all(weights.isfinite().all() for weights in genes(pop))


def test_the_choices_of_evolve_reach_their_operators():
    seen = {}

    def select(fitnesses, num_survivors, generator):
        seen["survivors"] = num_survivors
        return fitnesses.argsort()[:num_survivors]

    def choose(fitnesses, num_children, num_parents, generator, pressure=1):
        seen["parents"] = num_children, num_parents, pressure
        return torch.zeros(num_children, num_parents, dtype=torch.int64)

    def cross(down, up, generator, *, share):
        seen["share"] = share
        return down[:, 0], up[:, 0]

    def vary(down, up, generator, **options):
        seen["options"] = options
        return down, up

    pop = population()
    pop.evolve_(
        FITNESSES,
        selection_type=select,
        survive_frac=0.25,
        elite_frac=0,
        parent_selection_type=choose,
        num_parents_per_child=3,
        crossover_type=cross,
        mutation_type=vary,
        pressure=5,
        share=0.1,
    )
    assert seen == {
        "survivors": 2,
        "parents": (8, 3, 5),
        "share": 0.1,
        "options": {"pressure": 5, "share": 0.1},
    }
    assert all(torch.equal(weights, weights[:1].expand_as(weights)) for weights in genes(pop))


def test_epsilon_scales_the_step_of_evolve():
    def step(epsilon):
        pop = population()
        pop.evolve_(FITNESSES, epsilon=epsilon)
        return genes(pop)

    assert len(set(step(0.0)[0][:, 0, 0].tolist())) < 8
    small, large = step(0.1), step(0.2)
    assert not same(small, large)


@pytest.mark.parametrize(
    ("choices", "error", "message"),
    [
        ({"selection_type": "determinstic"}, ValueError, "selection 'determinstic'; near names: d"),
        ({"parent_selection_type": "turnament"}, ValueError, "'turnament'; near names: tournament"),
        (
            {"crossover_type": "xyz"},
            ValueError,
            "crossover 'xyz'; known names: average, average_exact, clone",
        ),
        ({"mutation_type": "gaussian"}, ValueError, "'gaussian'; near names: full_gaussian"),
        ({"mutation_type": 3}, TypeError, "a mutation is a name or a function, not 3"),
        ({"epsilonn": 1}, TypeError, "unknown option 'epsilonn'; near names: epsilon"),
        ({"tournament": 1}, TypeError, "unknown option 'tournament'; near names: tournament_size"),
        ({"survive_fraction": 1}, TypeError, "'survive_fraction'; near names: survive_frac"),
        ({"epsilon": -1.0}, ValueError, "epsilon must be 0 or more, not -1.0"),
    ],
)
def test_unknown_names_and_options_are_refused_with_near_ones(choices, error, message):
    pop = population()
    with pytest.raises(error, match=message):
        pop.evolve_(FITNESSES, **choices)
    assert pop.generation == 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda p: p.select("deterministic", FITNESSES, spread=1), "operators take none"),
        (lambda p: p.select_parents("tournament", FITNESSES, 1, size=2), "tournament_size"),
        (lambda p: p.crossover_("average", [[0, 1]], [2], rate=1), "operators take none"),
        (lambda p: p.mutate_("full_gaussian", individual=0, eps=1), "near names: epsilon"),
    ],
)
def test_each_step_refuses_an_unknown_option(call, message):
    with pytest.raises(TypeError, match=f"unknown option .*{message}"):
        call(population())


@pytest.mark.parametrize("which", [{}, {"individual": 0, "individuals": [1]}])
def test_mutation_needs_exactly_one_way_to_name_individuals(which):
    with pytest.raises(ValueError, match="pass exactly one of individual=, individuals="):
        population().mutate_("full_gaussian", **which)
