import csv
import math
import os
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from populora_envs.report import History, Progress


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")


# --- history


def test_columns_come_in_the_order_of_the_first_entry_then_later_ones(tmp_path):
    history = History([{"generation": 0, "best_fitness": 1.5}])
    history.append({"champion_mean": 2.0, "best_fitness": 0.1 + 0.2, "generation": 1})
    history.to_csv(tmp_path / "history.csv")
    assert (tmp_path / "history.csv").read_bytes() == (
        b"generation,best_fitness,champion_mean\n0,1.5,\n1,0.30000000000000004,2.0\n"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["history.csv"]


def test_history_is_a_list_of_dicts():
    history = History()
    history.append({"generation": 0})
    assert history == [{"generation": 0}]
    assert history[-1]["generation"] == 0


def test_empty_history_is_an_empty_file(tmp_path):
    History().to_csv(f"{tmp_path}/history.csv")
    assert (tmp_path / "history.csv").read_bytes() == b""


def test_numpy_numbers_are_written_as_numbers(tmp_path):
    entry = {"a": np.float64(0.1), "b": np.float32(0.1), "c": np.int64(3), "d": 2**70, "e": None}
    History([entry]).to_csv(tmp_path / "history.csv")
    row = (tmp_path / "history.csv").read_text().splitlines()[1]
    assert row == "0.1,0.10000000149011612,3,1180591620717411303424,"


@settings(max_examples=50, deadline=None)
@given(numbers=st.lists(st.floats(), min_size=1, max_size=5))
def test_floats_read_back_exactly(numbers, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "history.csv"
    History({"x": number} for number in numbers).to_csv(path)
    with path.open(newline="") as file:
        read = [float(row["x"]) for row in csv.DictReader(file)]
    assert list(map(repr, read)) == list(map(repr, numbers))


def test_failed_write_keeps_the_old_table(tmp_path, monkeypatch):
    path = tmp_path / "history.csv"
    History([{"generation": 0}]).to_csv(path)

    def fail(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(KeyboardInterrupt):
        History([{"generation": 1}]).to_csv(path)
    assert path.read_text() == "generation\n0\n"
    assert list(tmp_path.iterdir()) == [path]


# --- progress


def last_line(text):
    return text.replace("\r", "\n").strip().splitlines()[-1]


def test_no_bar_prints_nothing(capfd):
    with Progress(3, enabled=False) as progress:
        progress.update({"best_fitness": 1.0, "champion_mean": 1.0}, 10.0)
        progress.message("hello")
    progress.close()
    assert capfd.readouterr() == ("", "")


def test_bar_shows_the_numbers_on_stderr_only(capfd):
    with Progress(3, enabled=True) as progress:
        progress.update({"best_fitness": 1.0, "champion_mean": 0.5}, 10.0)
        progress.update({"best_fitness": 812.3456, "champion_mean": -799.99}, 12345.6)
    out, err = capfd.readouterr()
    assert out == ""
    line = last_line(err)
    assert " 2/3 " in line
    assert "best=812.3, champion=-800, steps/s=12350" in line
    assert err.endswith("\n")


def test_number_that_an_entry_lacks_stays_as_it_was(capfd):
    with Progress(3, enabled=True) as progress:
        progress.update({"best_fitness": 1.0, "champion_mean": 0.5}, 10.0)
        progress.update({"best_fitness": 2.0}, 20.0)
    assert "best=2, champion=0.5, steps/s=20" in last_line(capfd.readouterr().err)


def test_resumed_run_starts_where_it_was(capfd):
    with Progress(25, enabled=True, initial=10) as progress:
        progress.update({}, 1.0)
    assert " 11/25 " in last_line(capfd.readouterr().err)


def test_close_twice_is_harmless(capfd):
    progress = Progress(1, enabled=True)
    progress.close()
    once = capfd.readouterr().err
    progress.close()
    assert once
    assert capfd.readouterr().err == ""


def test_bar_is_closed_when_the_run_fails(capfd):
    message = "simulator"
    with pytest.raises(RuntimeError, match=message), Progress(2, enabled=True):
        raise RuntimeError(message)
    assert capfd.readouterr().err.endswith("\n")


def test_message_is_a_line_of_its_own(capfd):
    with Progress(2, enabled=True) as progress:
        progress.message("saved best.pt")
        progress.update({"best_fitness": 3.0}, 1.0)
    out, err = capfd.readouterr()
    assert out == ""
    assert "saved best.pt" in err.replace("\r", "\n").splitlines()
    assert "best=3" in last_line(err)


def test_bar_starts_no_thread():
    num_threads = threading.active_count()
    with Progress(2, enabled=True):
        assert threading.active_count() == num_threads


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0.0, "0"),
        (-0.0, "0"),
        (800.0, "800"),
        (0.123456, "0.1235"),
        (12000, "12000"),
        (1234567.0, "1235000"),
        (-99999.0, "-100000"),
        (0.00012344, "0.0001234"),
        (math.nan, "nan"),
        (-math.inf, "-inf"),
    ],
)
def test_numbers_are_short_and_have_no_exponent(capfd, number, text):
    with Progress(1, enabled=True) as progress:
        progress.update({"best_fitness": number}, 1.0)
    assert f"best={text}, steps/s=1]" in last_line(capfd.readouterr().err)
