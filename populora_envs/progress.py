"""What a run says while it goes on: a line that moves in a terminal or notebook, plain lines elsewhere."""

from __future__ import annotations

import importlib.util
import sys
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from tqdm import tqdm

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

SECONDS_BETWEEN_LINES = 5.0
"""Between two plain lines at least."""


class Status(NamedTuple):
    """Where a run is."""

    generations: int
    most_generations: int | None
    done: float
    """Share of the budget that is used up, 0 to 1; of several budgets the one nearest to its end."""
    best: float
    champion: float
    steps_per_second: float
    """Environment steps, over all slots."""
    share_env: float
    """Share of the time that passed in the environment, 0 to 1."""

    def __str__(self) -> str:
        most = "" if self.most_generations is None else f"/{self.most_generations}"
        return (
            f"gen {self.generations}{most}: best {short(self.best)}, champion {short(self.champion)}, "
            f"{counted(self.steps_per_second)} steps/s, env {self.share_env:.0%}"
        )


class Progress:
    """Shows how far a run is, on stderr.

    Args:
        enabled: False prints nothing at all.
        done: share of the budget that an earlier run has used up.
    """

    def __init__(self, enabled: bool, done: float = 0.0) -> None:
        self._began, self._done_before = time.monotonic(), done
        self._said = ""
        self._last_line = -SECONDS_BETWEEN_LINES
        self._enabled = enabled
        self._bar = _open_bar(done) if enabled else None

    def update(self, status: Status) -> None:
        """Show where the run is after one more generation."""
        if not self._enabled:
            return
        self._said = f"{status}{self._time_left(status.done)}"
        if self._bar is None:
            now = time.monotonic()
            if now - self._last_line >= SECONDS_BETWEEN_LINES:
                self._last_line = now
                self._say()
            return
        self._bar.set_description_str(self._said, refresh=False)
        self._bar.update(min(status.done, 1.0) - self._bar.n)

    def _time_left(self, done: float) -> str:
        gained = done - self._done_before
        if gained <= 0:
            return ""
        passed = time.monotonic() - self._began
        left = tqdm.format_interval(max(0.0, 1.0 - done) / gained * passed)
        return f", {left} left"

    def _say(self) -> None:
        print(self._said, file=sys.stderr, flush=True)
        self._said = ""

    def message(self, text: str) -> None:
        """Print a line above the one that moves."""
        if self._enabled:
            tqdm.write(text, file=sys.stderr)

    def close(self) -> None:
        """Leave the last numbers as they are; calling this again does nothing."""
        if self._bar is not None:
            self._bar.refresh()
            self._bar.close()
        elif self._said:
            self._say()

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


def _open_bar(done: float) -> Any:
    """Return a bar for this place, None where lines cannot move."""
    shown: dict[str, Any] = {
        "total": 1.0,
        "initial": done,
        "bar_format": "{desc} |{bar}|",
        "mininterval": 0.2,
    }
    if _in_notebook():
        from tqdm.notebook import tqdm as notebook_bar

        return notebook_bar(**shown)
    if not _in_terminal():
        return None
    return _Bar(file=sys.stderr, dynamic_ncols=True, **shown)


def _in_terminal() -> bool:
    return sys.stderr.isatty()


def _in_notebook() -> bool:
    """Whether a notebook shows widgets here."""
    shell = sys.modules.get("IPython")
    kernel = None if shell is None else getattr(shell.get_ipython(), "kernel", None)
    return kernel is not None and importlib.util.find_spec("ipywidgets") is not None


def short(number: float) -> str:
    """Format a number with four significant digits, without an exponent where it can be."""
    rounded = float(f"{number:.4g}")
    return f"{rounded + 0.0:.15g}"


def counted(number: float) -> str:
    """Format a large number with three digits and k, M or G."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= 0.9995 * size:
            return f"{float(f'{number / size:.3g}'):.15g}{letter}"
    return f"{float(f'{number:.3g}'):.15g}"
