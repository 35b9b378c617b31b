"""The picture of an archive of two dimensions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import os

    from matplotlib.figure import Figure

    from populora_envs.archive import Archive

RASTER = 256
"""Points along each side of the picture."""


def heatmap(archive: Archive, path: str | os.PathLike[str] | None = None) -> Figure:
    """Draw the fitness of the elite of every cell; empty cells stay blank.

    Args:
        archive: of two dimensions, a grid or niches.
        path: where to write the picture, in the format that its ending says; None writes nothing.

    Returns:
        The figure, which belongs to no window.

    Raises:
        ValueError: for another number of dimensions.
        ImportError: where matplotlib is missing.
    """
    if archive.num_dimensions != 2:
        message = f"a heatmap wants an archive of 2 dimensions, not of {archive.num_dimensions}"
        raise ValueError(message)
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        message = 'a heatmap wants matplotlib: pip install "populora-envs[plots]"'
        raise ImportError(message) from error
    figure = Figure(figsize=(6, 5), layout="constrained")
    axes = figure.subplots()
    (left, bottom), (right, top) = archive.low, archive.high
    image = axes.imshow(
        raster(archive), origin="lower", extent=(left, right, bottom, top), aspect="auto"
    )
    figure.colorbar(image, ax=axes, label="fitness")
    axes.set_xlabel("first number of the descriptor")
    axes.set_ylabel("second number of the descriptor")
    axes.set_title(f"{len(archive)} of {archive.num_cells} cells")
    if path is not None:
        figure.savefig(Path(path), dpi=120)
    return figure


def raster(archive: Archive, size: int = RASTER) -> np.ndarray:
    """Return the fitness at the middle of each pixel, float64 `[size, size]`, nan in empty cells.

    Rows are the second number of the descriptor, from low to high, columns the first.
    """
    (left, bottom), (right, top) = archive.low, archive.high
    middles = (np.arange(size) + 0.5) / size
    x, y = np.meshgrid(left + middles * (right - left), bottom + middles * (top - bottom))
    cells = archive.cells_of(np.stack([x.ravel(), y.ravel()], axis=1)).numpy()
    fitness = np.full(archive.num_cells, np.nan)
    for cell, elite in archive.elites.items():
        fitness[cell] = elite.fitness
    pixels: np.ndarray = fitness[cells].reshape(size, size)
    return pixels
