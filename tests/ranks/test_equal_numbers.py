"""The same seed gives the same numbers on any number of ranks."""

import pytest

from tests.ranks.launch import start, told

ALIKE = [
    *("cartpole", "pendulum_ga", "sampling", "dm_control", "few", "several_entries"),
    *("function_evolution", "custom_loop", "islands", "map_elites", "operators"),
]
WITH_WORKERS = ["workers", "forked_workers"]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    folder = tmp_path_factory.mktemp("alone")
    start(0, [*ALIKE, *WITH_WORKERS], folder)
    return told(folder)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_history_and_weights_are_those_of_one_process_on_every_rank(ranks, alone, tmp_path):
    start(ranks, ALIKE, tmp_path)
    for rank in range(ranks):
        mine = told(tmp_path, rank)
        for name in ALIKE:
            assert mine[name] == alone[name], name


@pytest.mark.parametrize("ranks", [1, 2])
def test_ranks_with_local_workers_give_the_same(ranks, alone, tmp_path):
    start(ranks, WITH_WORKERS, tmp_path)
    for name in WITH_WORKERS:
        assert told(tmp_path, ranks - 1)[name] == alone[name]


def test_what_ranks_tell_each_other(tmp_path):
    names = ["unseeded_model", "fitness_forms", "helpers", "unseedable"]
    start(3, names, tmp_path)
    ranks = [told(tmp_path, rank) for rank in range(3)]
    models = [rank["unseeded_model"] for rank in ranks]
    assert len({model["before"] for model in models}) == 3
    assert {model["after"] for model in models} == {models[0]["before"]}
    assert all(model["seeds"] == models[0]["seeds"] for model in models)
    for rank in ranks:
        assert rank["fitness_forms"]["values"] == [[0.0, 1.0, 2.0, 3.0, 4.0]] * 3
    called = [rank["fitness_forms"]["called"] for rank in ranks]
    assert called == [[0, 3, [0, 3], "all"], [1, 4, [1, 4]], [2, [2]]]
    assert [rank["helpers"]["main"] for rank in ranks] == [True, False, False]
    assert all(r["helpers"]["from"] == 0 and r["helpers"]["tensor"] == [0.0] for r in ranks)
    assert all(rank["unseedable"] == ranks[0]["unseedable"] for rank in ranks)
    assert len(ranks[0]["unseedable"]["lengths"]) == 6
    assert any("cannot be seeded" in text for text in ranks[0]["unseedable"]["said"])


def test_a_group_of_the_callers_is_used_and_left_alive(alone, tmp_path):
    start(2, ["own_group"], tmp_path)
    for rank in range(2):
        mine = told(tmp_path, rank)["own_group"]
        assert mine.pop("total") == 2.0
        assert mine == alone["cartpole"]
