"""A rank that fails stops all, with its own words, at once; one that is killed is started again."""

import csv
import signal
import time

import pytest

from tests.ranks.launch import start, start_apart, told


def failed(name, folder, codes=(1, 1)):
    """Return what two ranks say of an error.

    No torchrun is about: it would end a rank as soon as the other has failed, perhaps before it can speak.
    """
    begun = time.monotonic()
    assert tuple(done.returncode for done in start_apart(2, [name], folder)) == codes
    assert time.monotonic() - begun < 40
    return "".join((folder / f"said.{rank}.txt").read_text() for rank in range(2))


def test_an_error_in_the_simulator_of_one_rank_reaches_all(tmp_path):
    said = failed("broken_simulator", tmp_path)
    assert "[rank1]: ArithmeticError: the simulator broke" in said
    assert "RankFailedError: rank 1 failed: ArithmeticError: the simulator broke" in said
    assert "individual" in said  # the notes that say where


def test_a_killed_rank_is_noticed(tmp_path):
    said = failed("killed_rank", tmp_path, codes=(1, -signal.SIGKILL))
    assert "RankFailedError: another rank has gone" in said


def test_ranks_that_no_torchrun_has_started_find_each_other(tmp_path):
    # the first store ended with the function that had opened it, often before another rank had read it
    for attempt in range(3):
        (folder := tmp_path / str(attempt)).mkdir()
        assert [done.returncode for done in start_apart(2, ["cartpole"], folder)] == [0, 0]
    assert told(folder, 1) == told(folder)


def test_an_error_between_evaluations_stops_all(tmp_path):
    said = failed("failing_callback", tmp_path)
    assert "LookupError: 'a callback of rank 1'" in said or "a callback of rank 1" in said


def test_ranks_that_drift_apart_stop(tmp_path):
    assert "ranks have drifted apart" in failed("drifting", tmp_path)


def test_the_first_setting_that_differs_is_named(tmp_path):
    said = failed("different_settings", tmp_path)
    assert "pop_size is 6 on rank 0 and 7 on rank 1" in said
    assert "num_generations is 3 on rank 0 and 4 on rank 1" in failed("different_budgets", tmp_path)


def test_an_error_of_rank_0_about_the_folder_stops_all(tmp_path):
    said = failed("folder_with_a_run", tmp_path)
    assert "[rank0]: ValueError: checkpoint_dir 'taken' holds a run" in said
    assert "RankFailedError: rank 0 failed: ValueError" in said


def test_a_worker_of_a_rank_that_dies_is_replaced_and_its_episodes_played_again(tmp_path):
    start(2, ["killed_worker"], tmp_path)
    assert (tmp_path / "killed").exists()
    (tmp_path / "alone").mkdir()
    (tmp_path / "alone" / "killed").touch()
    start(0, ["killed_worker"], tmp_path / "alone")
    assert told(tmp_path, 1) == told(tmp_path / "alone")


def table(folder):
    """The history file without its times."""
    with (folder / "run" / "history.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    return [{k: v for k, v in row.items() if not k.startswith("seconds")} for row in rows]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DEATHS", "0")
        start(0, ["restarted"], folder)
    return folder


@pytest.mark.parametrize("moment", range(4))
def test_killed_ranks_are_started_again_and_end_with_the_right_history(
    moment, undisturbed, tmp_path, monkeypatch
):
    monkeypatch.setenv("DEATHS", "5")
    monkeypatch.setenv("MOMENT", str(moment))
    start(2, ["restarted"], tmp_path, options=["--max-restarts=6"])
    assert told(tmp_path, 1) == told(undisturbed)
    assert table(tmp_path) == table(undisturbed)


def test_a_run_goes_on_on_another_number_of_ranks(tmp_path, monkeypatch):
    (tmp_path / "straight").mkdir()
    start(0, ["checkpointed"], tmp_path / "straight")
    for generations, ranks in ((2, 2), (4, 0), (6, 3)):
        monkeypatch.setenv("GENERATIONS", str(generations))
        start(ranks, ["checkpointed"], tmp_path)
    assert told(tmp_path, 2) == told(tmp_path / "straight")
    assert table(tmp_path) == table(tmp_path / "straight")
