"""Callbacks, loggers and the population's table, during a run."""

import csv
import itertools
import math
import os
import subprocess
import sys

import pytest

from populora_envs import Callback, evolve_with_env
from populora_envs.population_table import PopulationTable, read_population
from tests.tiny import Aim, linear

SMALL = {"num_generations": 3, "pop_size": 4, "horizon": 8, "return_history": True, "seed": 3}


class Diary(Callback):
    """Notes what it is told."""

    def __init__(self):
        self.heard = []

    def before_evaluation(self, population):
        self.heard.append(("before", population.generation))

    def after_evaluation(self, population, fitnesses):
        self.heard.append(("after", fitnesses.shape))

    def on_generation(self, population, entry):
        self.heard.append(("generation", entry["generation"]))

    def on_end(self, policy, history):
        self.heard.append(("end", len(history)))


class Notebook:
    """A logger, without a close of its own."""

    def __init__(self):
        self.pages = []

    def log(self, metrics, step):
        self.pages.append((step, dict(metrics)))


def test_callbacks_hear_of_everything_in_order():
    diary = Diary()
    evolve_with_env(Aim, linear(), callbacks=diary, **SMALL)
    generation = [("before", 0), ("after", (4,)), ("generation", 0)]
    assert diary.heard[:3] == generation
    assert [kind for kind, _ in diary.heard] == ["before", "after", "generation"] * 3 + ["end"]
    assert diary.heard[-1] == ("end", 3)


def test_any_object_with_one_of_the_methods_is_a_callback_and_several_are_called_in_turn():
    class End:
        def __init__(self, name):
            self.name = name

        def on_end(self, policy, history):
            heard.append(self.name)

    heard = []
    evolve_with_env(Aim, linear(), callbacks=[End("first"), End("second")], **SMALL)
    assert heard == ["first", "second"]


@pytest.mark.parametrize("wrong", [print, 3, [Diary(), object()]])
def test_what_has_none_of_the_methods_is_refused_before_anything_is_opened(wrong):
    with pytest.raises(TypeError, match="before_evaluation, after_evaluation, on_generation"):
        evolve_with_env(Aim, linear(), callbacks=wrong, **SMALL)


def test_a_logger_gets_every_entry_of_the_history():
    notebook = Notebook()
    _, history = evolve_with_env(Aim, linear(), log=notebook, **SMALL)
    assert [step for step, _ in notebook.pages] == [0, 1, 2]
    assert [page for _, page in notebook.pages[:-1]] == list(history[:-1])
    assert notebook.pages[-1][1]["best_fitness"] == history[-1]["best_fitness"]


@pytest.mark.parametrize(
    ("log", "error", "says"),
    [
        ("tensorbord", ValueError, "near names: tensorboard"),
        ("tensorboard", ValueError, "wants checkpoint_dir="),
        (object(), TypeError, "has no log"),
        ([Notebook(), 3], TypeError, "has no log"),
    ],
)
def test_wrong_loggers_are_refused(log, error, says):
    with pytest.raises(error, match=says):
        evolve_with_env(Aim, linear(), log=log, **SMALL)


def scalars(folder):
    """What TensorBoard's own reader finds, by name: a list of (step, value)."""
    reading = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="TensorBoard is missing"
    )
    events = reading.EventAccumulator(str(folder / "tensorboard"), size_guidance={"tensors": 0})
    events.Reload()
    make = pytest.importorskip("tensorboard.util.tensor_util").make_ndarray
    return {
        name: [(event.step, make(event.tensor_proto).item()) for event in events.Tensors(name)]
        for name in events.Tags()["tensors"]
    }


def test_tensorboard_holds_the_numbers_of_the_table_also_after_a_resume(tmp_path):
    pytest.importorskip("tensorboard", reason="TensorBoard is missing")
    where = {"checkpoint_dir": tmp_path, "log": "tensorboard"}
    evolve_with_env(Aim, linear(), **where, **{**SMALL, "num_generations": 2})
    evolve_with_env(Aim, linear(), **where, **SMALL, resume=True)
    with (tmp_path / "history.csv").open() as file:
        rows = list(csv.DictReader(file))
    read = scalars(tmp_path)
    for name in ("best_fitness", "mean_fitness", "diversity", "seconds_env"):
        assert read[name] == [(i, float(row[name])) for i, row in enumerate(rows)], name


def test_wandb_writes_offline(tmp_path):
    pytest.importorskip("wandb", reason="wandb is missing")
    # in a process of its own, for wandb leaves threads behind
    code = (
        "from tests.test_observers import Aim, SMALL, evolve_with_env, linear; "
        "evolve_with_env(Aim, linear(), checkpoint_dir='run', log='wandb', **SMALL)"
    )
    offline = {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "PYTHONPATH": ":".join(sys.path)}
    subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env={**os.environ, **offline}, check=True
    )
    assert list((tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb"))


def test_what_was_opened_is_closed_when_a_run_fails(tmp_path, monkeypatch):
    closed = []

    class Opened:
        def __init__(self, *_):
            pass

        def log(self, metrics, step):
            raise ArithmeticError

        def close(self):
            closed.append(True)

    monkeypatch.setitem(
        evolve_with_env.__globals__["check_log"].__globals__["_NAMED"], "wandb", Opened
    )
    with pytest.raises(ArithmeticError):
        evolve_with_env(Aim, linear(), checkpoint_dir=tmp_path, log="wandb", **SMALL)
    assert closed == [True]


# --- the table of the population


def test_the_table_has_everyone_of_every_generation_and_survives_a_resume(tmp_path):
    _, whole = evolve_with_env(Aim, linear(), checkpoint_dir=tmp_path / "whole", **SMALL)
    part = {"checkpoint_dir": tmp_path / "part"}
    evolve_with_env(Aim, linear(), **part, **{**SMALL, "num_generations": 2})
    evolve_with_env(Aim, linear(), **part, **SMALL, resume=True)
    one, other = ((tmp_path / n / "population.csv").read_text() for n in ("whole", "part"))
    assert one == other
    rows = read_population(tmp_path / "whole" / "population.csv")
    assert [(r["generation"], r["individual"]) for r in rows] == list(
        itertools.product(range(3), range(4))
    )
    for entry in whole:
        fitnesses = [r["fitness"] for r in rows if r["generation"] == entry["generation"]]
        assert max(fitnesses) == entry["best_fitness"]


def test_children_name_parents_of_the_generation_before(tmp_path):
    evolve_with_env(Aim, linear(), checkpoint_dir=tmp_path, search="ga", **SMALL)
    rows = read_population(tmp_path / "population.csv")
    ids = {g: {r["id"] for r in rows if r["generation"] == g} for g in range(3)}
    newcomers = [r for r in rows if r["generation"] and r["born"] == r["generation"]]
    assert newcomers
    for row in newcomers:
        assert row["parents"]
        assert set(row["parents"]) <= ids[row["generation"] - 1]


def row(generation, fitness=1.0):
    own = {"id": generation, "parents": "", "operator": "init", "born": 0}
    return {"generation": generation, "individual": 0, "fitness": fitness, **own}


def test_half_a_row_and_rows_that_come_again_are_dropped(tmp_path):
    path = tmp_path / "population.csv"
    table = PopulationTable(path, 0)
    for generation in range(4):
        table.add([row(generation)])
    with path.open("a") as file:
        file.write("4,0,1")
    later = PopulationTable(path, 2)
    later.add([row(2, math.inf)])
    read = read_population(path)
    assert [(r["generation"], r["fitness"]) for r in read] == [(0, 1.0), (1, 1.0), (2, math.inf)]


def test_a_new_run_begins_a_new_table(tmp_path):
    path = tmp_path / "population.csv"
    PopulationTable(path, 0).add([row(0)])
    PopulationTable(path, 0).add([row(0, 2.0)])
    assert [r["fitness"] for r in read_population(path)] == [2.0]
