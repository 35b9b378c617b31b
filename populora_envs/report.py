"""Plots, film and page of a run, made from its folder."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from populora_envs import plots
from populora_envs.family_tree import lineage_figure
from populora_envs.page import write_page
from populora_envs.video import record_video

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from populora_envs.run_folder import RunFolder
    from populora_envs.settings import EvolveSettings


def present(folder: RunFolder, policy: Any, envs: Any, settings: EvolveSettings) -> None:
    """Make what the settings of a run ask for; what cannot be made says why in a warning.

    Args:
        folder: of the run.
        policy: what the run returns.
        envs: what it was given.
        settings: of the run.
    """
    if settings.video:
        _or_warn("the film", lambda: _film(folder, policy, envs, settings))
    if settings.report:
        _or_warn("the plots", lambda: draw_plots(folder))
        write_page(folder)


def _film(folder: RunFolder, policy: Any, envs: Any, settings: EvolveSettings) -> None:
    if envs is None:
        message = "there is no environment"
        raise ValueError(message)
    record_video(policy, envs, folder.video, horizon=settings.horizon, seed=settings.seed)


def _or_warn(what: str, make: Callable[[], Any]) -> None:
    """Make something at the end of a run, whose result must not be lost for it."""
    try:
        make()
    except Exception as error:  # of any simulator or graphics library
        warnings.warn(f"{what} could not be made: {error}", stacklevel=4)


def draw_plots(folder: RunFolder) -> list[Path]:
    """Draw what the tables of a run show into its folder ``plots``, as PNG files.

    Raises:
        ImportError: where matplotlib is not installed, with what installs it.
        ValueError: where the run has no generation yet.
    """
    history, rows = folder.history(), folder.population()
    figures = {"fitness": plots.fitness_figure({"": history})}
    figures["diversity"] = plots.diversity_figure(history)
    if rows:
        figures["population"] = plots.population_figure(rows)
        figures["lineage"] = lineage_figure(rows)
    folder.plots.mkdir(exist_ok=True)
    paths = [folder.plots / f"{name}.png" for name in figures]
    for path, figure in zip(paths, figures.values(), strict=True):
        figure.savefig(path)
    return paths
