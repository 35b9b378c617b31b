"""``population.csv`` of a run: one row per individual and generation, for pictures and for readers."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from populora_envs.files import write_text

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping, Sequence


class PopulationTable:
    """Adds rows to a table; a run that goes on first drops those that it will write again.

    Args:
        path: of the table.
        generations: how many generations the run has behind it.
    """

    def __init__(self, path: str | os.PathLike[str], generations: int) -> None:
        self.path = Path(path)
        self._generations = generations
        self._is_ready = False

    def add(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write the rows of one generation: ``generation``, ``individual`` and those of `Lineage.rows`."""
        if not self._is_ready:
            self._begin(list(rows[0]))
        with self.path.open("a", newline="", encoding="utf-8") as file:
            file.write(_text(rows[0], rows))

    def _begin(self, columns: list[str]) -> None:
        """Keep the rows of earlier generations alone; a killed process may have left half a row."""
        kept: list[dict[str, str]] = []
        if self._generations and self.path.exists():
            kept = [row for row in _rows(self.path) if _is_before(row, self._generations)]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_text(self.path, ",".join(columns) + "\n" + _text(columns, kept))
        self._is_ready = True


def read_population(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Return the rows of a table, numbers as int, fitness as float and parents as a tuple of ids."""
    return [
        {
            **row,
            **{name: int(row[name]) for name in ("generation", "individual", "id", "born")},
            "fitness": float(row["fitness"]),
            "parents": tuple(map(int, row["parents"].split())),
        }
        for row in _rows(Path(path))
    ]


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return [row for row in rows if None not in row.values()]


def _is_before(row: Mapping[str, str], generations: int) -> bool:
    number = row.get("generation", "")
    return number.isdigit() and int(number) < generations


def _text(columns: Iterable[str], rows: Iterable[Mapping[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(columns), lineterminator="\n", extrasaction="ignore")
    writer.writerows(rows)
    return text.getvalue()
