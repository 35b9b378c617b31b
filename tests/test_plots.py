"""The pictures of a run: what is in them, and that no global state is touched."""

import math
import sys

import numpy as np
import pytest

pytest.importorskip("matplotlib", reason="the extra plots is missing")

from populora_envs.family_tree import lineage_figure
from populora_envs.history import History
from populora_envs.plots import diversity_figure, fitness_figure, population_figure


def history(count=5, steps=100, **other):
    return History(
        {
            "generation": i,
            "best_fitness": i + 1.0,
            "mean_fitness": float(i),
            "median_fitness": float(i),
            "std_fitness": 0.5,
            "diversity": 1.0,
            "champion_mean": i + 0.5,
            "champion_se": math.nan if i == 0 else 0.25,
            "env_steps": steps * (i + 1) + 10 * i,
            "env_steps_validation": 10 * i,
            **other,
        }
        for i in range(count)
    )


def labels(figure):
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def lines(figure):
    return {line.get_label(): line for axes in figure.axes for line in axes.lines}


def test_one_run_shows_best_median_spread_and_champion_over_training_steps():
    figure = fitness_figure({"": history()})
    (axes,) = figure.axes
    assert axes.get_xlabel() == "environment steps of training"
    assert axes.get_ylabel() == "return"
    drawn = lines(figure)
    assert drawn["best"].get_xdata().tolist() == [100, 200, 300, 400, 500]
    assert drawn["best"].get_ydata().tolist() == [1, 2, 3, 4, 5]
    assert set(labels(figure)) == {
        "mean and standard deviation",
        "median",
        "best",
        "champion, with its standard error",
    }


def test_several_runs_show_their_champions_by_name():
    figure = fitness_figure({"here": history(), "there": history(3)})
    assert labels(figure) == ["here", "there"]
    assert lines(figure)["there"].get_ydata().tolist() == [0.5, 1.5, 2.5]


def test_without_environment_steps_generations_are_counted():
    figure = fitness_figure({"": history(steps=0)})
    assert figure.axes[0].get_xlabel() == "generation"


def test_an_empty_history_is_refused():
    with pytest.raises(ValueError, match="empty"):
        History().plot()


def test_a_history_draws_itself_into_a_file(tmp_path):
    figure = history().plot(tmp_path / "fitness.png")
    assert (tmp_path / "fitness.png").read_bytes().startswith(b"\x89PNG")
    assert figure.axes


def rows(parents):
    """Generations of two individuals; `parents` by (generation, individual)."""
    return [
        {
            "generation": g,
            "individual": i,
            "id": 2 * g + i,
            "fitness": math.nan if (g, i) == (0, 0) else float(i),
            "parents": parents(g, i),
            "operator": "x",
            "born": g,
        }
        for g in range(3)
        for i in range(2)
    ]


def test_individuals_that_are_not_finite_are_left_out_of_the_picture():
    figure = population_figure(rows(lambda g, i: ()))
    (dots,) = figure.axes[0].collections
    assert len(dots.get_offsets()) == 5
    assert lines(figure)["best"].get_ydata().tolist() == [1, 1, 1]


def test_diversity_begins_at_zero():
    assert diversity_figure(history()).axes[0].get_ylim()[0] == 0


def segments(figure, label):
    found = [c for c in figure.axes[0].collections if c.get_label() == label]
    return sorted(tuple(map(tuple, np.asarray(s))) for c in found for s in c.get_segments())


def test_lines_lead_from_parents_to_children_and_to_the_best_in_colour():
    # individual 1 is the best of each generation, and descends from number 0 of the one before
    figure = lineage_figure(rows(lambda g, i: (2 * (g - 1),) if g else ()))
    assert segments(figure, "ancestors of the last generation's best") == [
        ((0, 2), (1, 2)),
        ((1, 2), (2, 1)),
    ]


def test_samples_descend_from_the_centre():
    figure = lineage_figure(rows(lambda g, i: (-1,)))
    assert "centre of the search" in labels(figure)
    assert segments(figure, "ancestors of the last generation's best") == [
        ((0, 0), (1, 0)),
        ((1, 0), (2, 1)),
    ]


def test_pictures_touch_no_global_state_of_matplotlib():
    fitness_figure({"": history()})
    assert (
        "matplotlib.pyplot" not in sys.modules or not sys.modules["matplotlib.pyplot"].get_fignums()
    )


def test_a_picture_shows_itself_in_a_notebook():
    assert history().plot()._repr_png_().startswith(b"\x89PNG")
