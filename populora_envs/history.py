"""The history of a run: one dict of numbers per generation."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from populora_envs import plots
from populora_envs.extras import wanted
from populora_envs.files import write_text

if TYPE_CHECKING:
    import os


class History(list[dict[str, float | int]]):
    """One dict of numbers per generation, as `evolve_with_env` returns it.

    Keys: ``generation``; ``best_fitness``, ``mean_fitness``, ``median_fitness`` and ``std_fitness`` over
    the individuals, those that are not finite left out and counted in ``num_nonfinite``; ``diversity``, the
    root mean square distance of the individuals' weights from their mean; ``champion_mean`` and
    ``champion_se`` (standard error) over ``champion_episodes`` fresh episodes; ``env_steps`` so far, of
    which ``env_steps_validation`` looked at champions; ``seconds_env`` (summed over workers),
    ``seconds_forward`` and ``seconds_evolution``. The first entry also has ``base_fitness``, what the
    unchanged base scores.
    """

    def to_csv(self, path: str | os.PathLike[str]) -> None:
        """Write a table with one row per generation; numbers read back exactly.

        The columns are those of the first entry, then those that only later ones have; a number
        that an entry lacks is an empty cell.

        Args:
            path: of the file, which is replaced as a whole.
        """
        columns = dict.fromkeys(name for entry in self for name in entry)
        table = io.StringIO()
        writer = csv.writer(table, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows([_exact(entry.get(name)) for name in columns] for entry in self)
        write_text(path, table.getvalue() if columns else "")

    @classmethod
    def from_csv(cls, path: str | os.PathLike[str]) -> Self:
        """Return the history in the table that `to_csv` wrote at `path`."""
        with Path(path).open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        return cls({n: _number(text) for n, text in row.items() if text} for row in rows)

    def to_pandas(self) -> Any:
        """Return a pandas DataFrame with one row per generation.

        Raises:
            ImportError: where pandas is not installed.
        """
        with wanted("pandas", "to_pandas"):
            import pandas as pd
        return pd.DataFrame(list(self))

    def plot(self, path: str | os.PathLike[str] | None = None) -> Any:
        """Draw fitness over env steps, as `plots.fitness_figure` does, into a file where `path` is given.

        Returns:
            A matplotlib Figure.

        Raises:
            ImportError: where matplotlib is not installed.
            ValueError: where there is no generation.
        """
        figure = plots.fitness_figure({"": self})
        if path is not None:
            figure.savefig(path)
        return figure


def _exact(number: float | None) -> str:
    """Return the text of a cell: of a float the shortest that reads back as the same one."""
    if number is None:
        return ""
    is_float = isinstance(number, (float, np.floating))
    return repr(float(number)) if is_float else str(number)


def _number(text: str) -> float | int:
    return int(text) if text.lstrip("-").isdigit() else float(text)
