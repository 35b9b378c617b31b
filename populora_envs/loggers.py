"""Loggers: where the numbers of each generation go beside history.csv.

A logger is any object with ``log(metrics, step)``; one with ``close()`` is closed at the end, also when
the run fails, if it was opened here.
"""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from populora_envs.extras import wanted
from populora_envs.registry import near_names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


class Logger(Protocol):
    """Takes the numbers of a generation."""

    def log(self, metrics: Mapping[str, float | int], step: int) -> None:
        """Take an entry of the history; `step` is the number of its generation."""
        ...


class TensorBoard:
    """Writes event files into the folder ``tensorboard`` of a run.

    Args:
        folder: of the run.
        config: unused.
        first: the first generation that will be logged; later ones of an earlier run are hidden.
    """

    def __init__(self, folder: Path, config: Mapping[str, Any], first: int) -> None:
        with wanted("tensorboard", 'log="tensorboard"'):
            from torch.utils.tensorboard import SummaryWriter
        make: Any = SummaryWriter
        self._writer = make(str(folder / "tensorboard"), purge_step=first)

    def log(self, metrics: Mapping[str, float | int], step: int) -> None:
        """Write one scalar per number, in double precision."""
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step, new_style=True, double_precision=True)

    def close(self) -> None:
        """Write what is still buffered."""
        self._writer.close()


class Tracker:
    """Logs a run with Weights & Biases, or trackio, which has the same interface.

    Their own environment variables (such as ``WANDB_PROJECT`` and ``WANDB_MODE``) apply.
    """

    def __init__(self, package: Any, folder: Path, config: Mapping[str, Any]) -> None:
        settings = {"project": "populora-envs", "name": folder.name, "config": dict(config)}
        if package.__name__ == "wandb":
            folder.mkdir(parents=True, exist_ok=True)
            settings |= {"dir": str(folder)}
        self._run = package.init(**settings)

    def log(self, metrics: Mapping[str, float | int], step: int) -> None:
        """Log the numbers of one generation."""
        self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        """End the run."""
        self._run.finish()


def _wandb(folder: Path, config: Mapping[str, Any], first: int) -> Tracker:
    with wanted("wandb", 'log="wandb"'):
        import wandb
    return Tracker(wandb, folder, config)


def _trackio(folder: Path, config: Mapping[str, Any], first: int) -> Tracker:
    with wanted("trackio", 'log="trackio"'):
        import trackio
    return Tracker(trackio, folder, config)


_NAMED: dict[str, Callable[[Path, Mapping[str, Any], int], Any]] = {
    "tensorboard": TensorBoard,
    "trackio": _trackio,
    "wandb": _wandb,
}


LOGGERS = ("csv", *_NAMED)
"""Names of loggers."""


def check_log(log: Any, folder: Any) -> tuple[Any, ...]:
    """Return loggers and names as a tuple.

    Args:
        log: a name, a logger, or several; ``"csv"`` names the table that every run folder has.
        folder: of the run, None where it has none.

    Raises:
        ValueError: for an unknown name, or one that wants a folder where there is none.
        TypeError: for what is no logger.
    """
    several = tuple(log) if isinstance(log, (list, tuple)) else (() if log is None else (log,))
    for one in several:
        if isinstance(one, str):
            _check_name(one, folder)
        elif not callable(getattr(one, "log", None)):
            message = f"a logger is a name or has log(metrics, step), and {one!r} has no log"
            raise TypeError(message)
    return tuple(one for one in several if one != "csv")


def _check_name(name: str, folder: Any) -> None:
    if name not in LOGGERS:
        message = f"no logger is called {name!r}; {near_names(name, LOGGERS)}"
        raise ValueError(message)
    if folder is None:
        message = f"log={name!r} wants checkpoint_dir=, the folder of the run"
        raise ValueError(message)


@contextmanager
def opened(
    log: tuple[Any, ...], folder: Any, config: Mapping[str, Any], first: int
) -> Iterator[list[Logger]]:
    """Open what has a name; close that at the end.

    Args:
        log: what `check_log` returned.
        folder: of the run.
        config: what the run is, as plain values.
        first: number of the first generation that will be logged.
    """
    own: list[Any] = []
    loggers: list[Any] = []
    try:
        for one in log:
            if isinstance(one, str):
                own.append(_NAMED[one](Path(folder), config, first))
            loggers.append(own[-1] if isinstance(one, str) else one)
        yield cast("list[Logger]", loggers)
    finally:
        for logger in own:
            logger.close()
