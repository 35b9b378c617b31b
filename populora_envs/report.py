"""What a run tells while it goes on and after it: a progress line and the history."""

from __future__ import annotations

import csv
import io
import sys
from typing import TYPE_CHECKING

import numpy as np
from tqdm import tqdm

from populora_envs.files import write_text

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping
    from types import TracebackType
    from typing import Self


class History(list[dict[str, float | int]]):
    """One dict of numbers per generation."""

    def to_csv(self, path: str | os.PathLike[str]) -> None:
        """Write a table with one row per generation; numbers read back exactly.

        The columns are those of the first entry, then those that only later ones have; a number
        that an entry lacks is an empty cell.
        """
        columns = dict.fromkeys(name for entry in self for name in entry)
        table = io.StringIO()
        writer = csv.writer(table, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows([_exact(entry.get(name)) for name in columns] for entry in self)
        write_text(path, table.getvalue() if columns else "")


class Progress:
    """A line on stderr that grows with the generations.

    Args:
        total_generations: where the line is full; None where nobody knows.
        enabled: False prints nothing at all.
        initial: generations that an earlier run has done.
    """

    def __init__(self, total_generations: int | None, enabled: bool, initial: int = 0) -> None:
        self._numbers: dict[str, str] = {}
        self._bar = _open_bar(total_generations, initial) if enabled else None

    def update(self, entry: Mapping[str, float | int], steps_per_second: float) -> None:
        """Count one generation and show its numbers.

        Args:
            entry: the generation's entry in the history. A number it lacks stays as it was.
            steps_per_second: environment steps, over all slots.
        """
        if self._bar is None:
            return
        for label, name in (("best", "best_fitness"), ("champion", "champion_mean")):
            if name in entry:
                self._numbers[label] = _short(entry[name])
        self._bar.set_postfix(self._numbers | {"steps/s": _short(steps_per_second)}, refresh=False)
        self._bar.update()

    def message(self, text: str) -> None:
        """Print a line above the bar."""
        if self._bar is not None:
            tqdm.write(text, file=sys.stderr)

    def close(self) -> None:
        """Leave the line as it is; calling this again does nothing."""
        if self._bar is not None:
            self._bar.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class _Bar(tqdm):  # type: ignore[misc] # tqdm publishes no types
    # tqdm's watching thread would forbid to fork workers later
    monitor_interval = 0


def _open_bar(total_generations: int | None, initial: int) -> _Bar:
    return _Bar(
        total=total_generations,
        initial=initial,
        unit="generation",
        file=sys.stderr,
        dynamic_ncols=True,
    )


def _exact(number: float | None) -> str:
    """Return the text of a cell: of a float the shortest that reads back as the same one."""
    if number is None:
        return ""
    is_float = isinstance(number, (float, np.floating))
    return repr(float(number)) if is_float else str(number)


def _short(number: float) -> str:
    """Format a number with four significant digits, without an exponent where it can be."""
    rounded = float(f"{number:.4g}")
    return f"{rounded + 0.0:.15g}"
