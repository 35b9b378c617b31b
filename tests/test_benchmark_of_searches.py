"""The benchmark of searches runs, keeps its rows and prints its table."""

import pytest

from tests.benchmarks import search
from tests.benchmarks.tasks import TASKS, Row

ROW = Row("CartPole-v1", "es", 7, 480.0, 1.0, 479.0, 1.5, 9000, 900, 52_000, 8, 1.25)


def test_rows_read_back_as_they_were_written(tmp_path):
    rows = [ROW, ROW._replace(seed=8, score=1 / 3)]
    for row in rows:
        search.append(tmp_path / "rows.csv", row)
    assert list(search.read(tmp_path / "rows.csv").values()) == rows


def test_solved_and_honest_are_judged_by_the_untouched_episodes():
    assert ROW.is_solved
    assert ROW.is_honest
    lucky = ROW._replace(score=400.0, reported=500.0)
    assert not lucky.is_solved
    assert not lucky.is_honest
    assert not ROW._replace(task="Hopper-v5").is_solved


def test_a_line_sums_up_the_runs_of_a_task_and_search():
    (line,) = search.summary([ROW, ROW._replace(seed=8, score=100.0, train_steps=11_000)])
    assert line[:7] == ["CartPole-v1", "es", "1/2", "10.0k", "52.0k", "9%", "1/2"]


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return tmp_path_factory.mktemp("benchmark") / "rows.csv"


def test_a_run_adds_its_row_and_is_not_run_again(file, capsys):
    command = ["--tasks", "CartPole-v1", "--seeds", "1", "--jobs", "1", "--csv", str(file)]
    search.main(command)
    first = capsys.readouterr().out
    assert "CartPole-v1 default seed 1000" in first
    search.main(command)
    again = capsys.readouterr().out
    assert "seed 1000" not in again
    assert again.splitlines()[-1] == first.splitlines()[-1]
    (row,) = search.read(file).values()
    assert 0 < row.train_steps <= TASKS["CartPole-v1"].budget
