import csv
import os
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from populora_envs.history import History


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


def test_a_table_is_read_back_as_it_was(tmp_path):
    history = History([{"generation": 0, "best_fitness": -1.5}, {"generation": 1, "late": 2.0}])
    history.to_csv(tmp_path / "history.csv")
    assert History.from_csv(tmp_path / "history.csv") == history


def test_pandas_has_a_row_per_generation():
    pytest.importorskip("pandas", reason="a frame wants pandas")
    frame = History([{"generation": 0, "x": 1.5}, {"generation": 1, "x": 2.5}]).to_pandas()
    assert frame["x"].tolist() == [1.5, 2.5]


@pytest.mark.parametrize(
    ("package", "call", "install"),
    [
        ("pandas", "to_pandas", "pip install pandas"),
        ("matplotlib", "plot", r'pip install "populora-envs\[plots\]"'),
    ],
)
def test_a_missing_package_names_what_installs_it(package, call, install, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=install):
        getattr(History([{"generation": 0, "env_steps": 3}]), call)()
