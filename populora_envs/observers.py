"""Everything that watches a run: callbacks, loggers, the progress line and the population's table."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from populora_envs import loggers
from populora_envs.callbacks import tell
from populora_envs.population_table import PopulationTable
from populora_envs.progress import Progress, Status

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor

    from populora_envs.population import Population


class Observers:
    """Watches one run, from its first generation here to its end; it is a context manager.

    Args:
        callbacks: objects with some of the methods of `Callback`.
        log: what `loggers.check_log` returned.
        progress: whether to show the line.
        folder: of the run, None on ranks that write nothing.
        config: what the run is, as plain values, for loggers.
        generations: that lie behind the run.
        done: share of the budget that lies behind it.
    """

    def __init__(
        self,
        callbacks: tuple[Any, ...],
        log: tuple[Any, ...],
        *,
        progress: bool,
        folder: Path | None,
        config: Mapping[str, Any],
        generations: int,
        done: float,
    ) -> None:
        self._callbacks = callbacks
        self._stack = ExitStack()
        self._opens = partial(loggers.opened, log, folder, config, generations)
        self._shows = progress, done
        self._rows: list[dict[str, Any]] = []
        table = None if folder is None else PopulationTable(folder / "population.csv", generations)
        self._table = table

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._loggers = stack.enter_context(self._opens())
            self._progress = stack.enter_context(Progress(*self._shows))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def before(self, population: Population) -> None:
        """See a generation before it is scored."""
        tell(self._callbacks, "before_evaluation", population)

    def after(self, population: Population, fitnesses: Tensor, generation: int) -> None:
        """See the fitnesses of a generation, before the search learns from them."""
        self._rows = [
            {"generation": generation, "individual": i, **row, "parents": _joined(row["parents"])}
            for i, row in enumerate(population.lineage.rows(fitnesses))
        ]
        tell(self._callbacks, "after_evaluation", population, fitnesses)

    def generation(self, population: Population, entry: dict[str, Any], status: Status) -> None:
        """See the end of a generation."""
        if self._table is not None:
            self._table.add(self._rows)
        for logger in self._loggers:
            logger.log(entry, entry["generation"])
        self._progress.update(status)
        tell(self._callbacks, "on_generation", population, entry)


def _joined(ids: tuple[int, ...]) -> str:
    return " ".join(map(str, ids))
