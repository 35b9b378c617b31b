import pytest
import torch

from populora_envs import evolve_with_env
from populora_envs.lineage import CENTRE, Lineage
from populora_envs.search import make_search, searches
from tests.populations import FITNESSES, population
from tests.tiny import Aim, linear


def table(pop, *columns):
    return [tuple(row[column] for column in columns) for row in pop.lineage.rows()]


def test_the_first_generation_is_made_of_nothing():
    rows = table(population(), "id", "parents", "operator", "born")
    assert rows == [(i, (), "init", 0) for i in range(4)]


def test_elites_keep_their_id_and_children_name_the_parents_they_copy():
    pop = population()
    selected = pop.evolve_(FITNESSES)
    (elite,) = selected.elites.tolist()
    survivors = set(selected.survivors.tolist())
    for place, row in enumerate(pop.lineage.rows()):
        if place == elite:
            assert (row["id"], row["operator"], row["born"]) == (elite, "init", 0)
        else:
            assert row["id"] >= 4
            assert len(row["parents"]) == 1  # clone copies the first parent alone
            assert set(row["parents"]) <= survivors
            assert (row["operator"], row["born"]) == ("clone+full_gaussian", 1)


def test_a_child_of_two_parents_names_both_once():
    pop = population()
    pop.crossover_("average", torch.tensor([[0, 1], [2, 2]]), [3, 0])
    assert table(pop, "id", "parents") == [(5, (2,)), (1, ()), (2, ()), (4, (0, 1))]


def test_parents_are_read_before_a_child_takes_the_place_of_one():
    pop = population()
    pop.crossover_("clone", torch.tensor([[1], [0]]), [0, 1])
    assert [row["parents"] for row in pop.lineage.rows()[:2]] == [(1,), (0,)]


def test_a_mutation_of_someone_older_makes_a_new_individual_of_one_parent():
    pop = population()
    pop.mutate_("full_gaussian", individual=2)
    pop.mutate_("full_gaussian", individual=2)
    row = pop.lineage.rows()[2]
    assert (row["id"], row["parents"], row["operator"]) == (
        4,
        (2,),
        "full_gaussian+full_gaussian",
    )
    pop.generation += 1
    pop.mutate_("full_gaussian", individual=2)
    assert pop.lineage.rows()[2]["parents"] == (4,)


def test_ids_count_on_in_the_order_of_the_places():
    pop = population()
    pop.mutate_("full_gaussian", all_individuals=True)
    assert pop.lineage.ids.tolist() == [4, 5, 6, 7]
    assert pop.lineage.parents == [(0,), (1,), (2,), (3,)]
    assert pop.lineage.count == 8


def test_an_operator_of_the_user_goes_by_its_own_name():
    def nudge(down, up, generator):
        return down, up

    pop = population()
    pop.mutate_(nudge, individual=0)
    assert pop.lineage.operators[0] == "nudge"


def test_an_individual_that_is_overwritten_is_another_one():
    pop = population()
    pop.write_individual_(1, pop.individual_state(0))
    assert table(pop, "id", "parents", "operator")[1] == (4, (), "written")


def test_a_copy_of_individuals_leaves_the_lineage_as_it_was():
    pop = population()
    before = pop.lineage.rows(FITNESSES)
    pop.with_individuals([pop.individual_state(0)])
    assert pop.lineage.rows(FITNESSES) == before


@pytest.mark.parametrize("name", sorted(set(searches) & {"es", "snes", "pgpe", "openai_es", "ars"}))
def test_individuals_of_a_strategy_are_samples_of_its_centre(name):
    pop = population(pop_size=8)
    search = make_search(name, pop)
    for generation in range(2):
        search.ask()
        first = 8 * (generation + 1)
        rows = table(pop, "id", "parents", "operator", "born")
        assert rows == [(first + i, (CENTRE,), name, generation) for i in range(8)]
        search.tell(torch.arange(8.0))


def test_asking_again_makes_nobody_new():
    pop = population()
    search = make_search("es", pop)
    search.ask()
    before = pop.lineage.ids.tolist()
    search.ask()
    assert pop.lineage.ids.tolist() == before


def test_rows_hold_what_the_search_was_told():
    pop = population()
    search = make_search("ga", pop)
    search.ask()
    assert pop.lineage.rows()[0]["fitness"] != pop.lineage.rows()[0]["fitness"]
    search.tell(FITNESSES)
    assert table(pop, "id", "fitness") == list(enumerate(FITNESSES.tolist()))


def test_a_saved_population_goes_on_with_the_same_ids(tmp_path):
    pop, other = population(), population(seed=5)
    pop.evolve_(FITNESSES)
    pop.save(tmp_path / "population.pt")
    other.load(tmp_path / "population.pt")
    for each in (pop, other):
        each.evolve_(FITNESSES)
    assert repr(other.lineage.rows()) == repr(pop.lineage.rows())
    assert other.lineage.count == pop.lineage.count


def test_a_file_from_before_there_was_a_lineage_is_read():
    pop = population()
    state = pop.state()
    del state["lineage"]
    pop.evolve_(FITNESSES)
    pop.load_state_(state)
    assert repr(pop.lineage.rows()) == repr(Lineage(4).rows())


def _rows_of(*, search, generations, **settings):
    seen = {}

    def note(population, entry):
        seen[entry["generation"]] = population.lineage.rows()

    evolve_with_env(
        Aim,
        linear(),
        search=search,
        num_generations=generations,
        horizon=4,
        pop_size=6,
        low_rank=2,
        on_generation=note,
        **settings,
    )
    return seen


@pytest.mark.parametrize("search", ["ga", "es"])
def test_a_resumed_run_tells_the_same_lineage(tmp_path, search):
    whole = _rows_of(search=search, generations=4)
    kept = {"checkpoint_dir": tmp_path, "search": search}
    _rows_of(generations=2, **kept)
    rest = _rows_of(generations=4, resume=True, **kept)
    assert sorted(rest) == [2, 3]
    assert rest == {generation: whole[generation] for generation in rest}


def test_every_parent_of_a_genetic_run_was_there_before():
    tables = _rows_of(search="ga", generations=4)
    known: set[int] = set()
    for generation, rows in sorted(tables.items()):
        for row in rows:
            assert set(row["parents"]) <= known
            assert row["born"] <= generation
        known |= {row["id"] for row in rows}
