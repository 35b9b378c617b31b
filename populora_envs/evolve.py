"""The generation loop: judge, look for a champion, note, save, evolve."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

from populora_envs.champion import Contest
from populora_envs.checkpoint import Checkpoints, check_settings
from populora_envs.diversity import diversity
from populora_envs.history import History
from populora_envs.invariance import one_thread
from populora_envs.lockstep import check_equal
from populora_envs.observers import Observers
from populora_envs.progress import Status
from populora_envs.ranks import broadcast, ranks

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from torch import Tensor, nn

    from populora_envs.judges import Judge, Judged
    from populora_envs.search import Search
    from populora_envs.settings import EvolveSettings

MAY_DIFFER = frozenset(
    {
        "num_generations",
        "max_env_steps",
        "max_seconds",
        "target_fitness",
        "env",
        "progress",
        "log",
        "report",
        "video",
        "checkpoint_dir",
        "checkpoint_every",
        "resume",
        "device",
        "num_envs",
        "num_workers",
    }
)
"""Settings that may be others when a run goes on."""

MAY_DIFFER_BY_RANK = frozenset(
    {"progress", "log", "report", "video", "checkpoint_dir", "device", "num_envs", "num_workers"}
)
"""Settings that each rank may have to itself; files are written and the bar is drawn by rank 0."""


@dataclass
class Plan:
    """What a run does.

    Attributes:
        settings: of the run.
        described: everything that must be the same when the run goes on, as plain values.
        machine: returns versions and the machine, for config.json, which is renewed when it changes.
        callbacks: objects with some of the methods of `Callback`.
        log: loggers and names of such, as `loggers.check_log` returns them.
        save_policy: writes a plain module as the best policy into the run's folder; None where there is
            no environment for it to act in.
    """

    settings: EvolveSettings
    described: dict[str, Any]
    machine: Callable[[], dict[str, Any]]
    callbacks: tuple[Any, ...] = ()
    log: tuple[Any, ...] = ()
    save_policy: Callable[[Path, nn.Module], None] | None = None


class Run:
    """One run from the first generation, or from a checkpoint, to its champion.

    What the end of a run adds (a last look) is kept apart from the state after the last generation, so
    that a run of 10 generations that goes on to 20 equals one of 20.

    Args:
        search: leads from one generation to the next, from the first one on.
        judge: scores them.
        plan: what to do.

    Raises:
        ValueError: where the checkpoint folder holds a run and `resume` is off, or holds one that
            was made with other settings.
    """

    def __init__(self, search: Search, judge: Judge, plan: Plan) -> None:
        self.search, self.judge, self.plan = search, judge, plan
        self.population = search.population
        self.history = History()
        self.env_steps = 0
        self._began = perf_counter()
        self.stopped = self.warned_of_nonfinite = self._is_late = False
        self.final: dict[str, Any] | None = None
        self.ranks = ranks()
        self._check_ranks()
        self.contest = Contest(judge, search, plan.settings.target_fitness)
        folder = plan.settings.checkpoint_dir
        self.files = None if folder is None or not self._is_main else Checkpoints(folder)
        saved = self._saved() if self.ranks is None else self.ranks.on_main(self._saved)
        if saved is None:
            self.contest.start_()
        else:
            check_settings(saved["settings"], plan.described, MAY_DIFFER)
            self._restore(saved)
        self._machine: dict[str, Any] = {}
        self._note_machine()

    def _check_ranks(self) -> None:
        if self.ranks is not None:
            described = self.plan.described.items()
            check_equal(self.ranks, {k: v for k, v in described if k not in MAY_DIFFER_BY_RANK})

    @property
    def _is_main(self) -> bool:
        return self.ranks is None or self.ranks.is_main

    def _note_machine(self) -> None:
        """Write config.json, where it would say something else than it does."""
        machine = self.plan.machine()
        if self.files is not None and machine != self._machine:
            self._machine = machine
            self.files.save_config({**self.plan.described, **machine})

    def _saved(self) -> dict[str, Any] | None:
        if self.files is None:
            return None
        if self.plan.settings.resume:
            return self.files.load_latest()
        if self.files.holds_run():
            message = (
                f"checkpoint_dir {str(self.files.folder)!r} holds a run: pass resume=True to go on "
                "with it, or choose another folder"
            )
            raise ValueError(message)
        return None

    def _restore(self, saved: dict[str, Any]) -> None:
        self.population.load_state_(saved["population"])
        self.search.load_state_(saved["search"])
        self.contest.load_state_(saved["contest"])
        self.env_steps = saved["env_steps"]
        self.history, self.final = History(saved["history"]), saved["final"]
        self.stopped = self.contest.is_certified

    @property
    def is_over(self) -> bool:
        """Whether a stop rule holds."""
        return self.stopped or self._is_late or self._used(time=False) >= 1

    def _used(self, *, time: bool) -> float:
        """Return the share of the budget that is used up; of several the one nearest to its end."""
        settings = self.plan.settings
        budgets: list[tuple[float, float | None]] = [
            (len(self.history), settings.most_generations),
            (self.env_steps + self.contest.env_steps, settings.max_env_steps),
        ]
        if time:  # which each rank sees otherwise
            budgets.append((perf_counter() - self._began, settings.max_seconds))
        return max((used / most for used, most in budgets if most is not None), default=0.0)

    def _look_at_the_clock(self) -> None:
        """Note whether the seconds are used up, as rank 0 sees it."""
        most = self.plan.settings.max_seconds
        if most is not None:
            self._is_late = broadcast(perf_counter() - self._began >= most)

    def play(self) -> tuple[nn.Module, History]:
        """Play until a stop rule holds; return the champion as a plain module, and the history."""
        if self.final is not None and self.is_over:
            self.contest.load_state_(self.final["contest"])
            return self.contest.merged(), History(self.final["history"])
        with self._observers() as observers:
            while not self.history or not self.is_over:
                self._generation(observers)
        self._finish()
        return self.contest.merged(), self.history

    def _observers(self) -> Observers:
        return Observers(
            self.plan.callbacks,
            self.plan.log if self._is_main else (),
            progress=self.plan.settings.progress and self._is_main,
            folder=self._folder,
            config=self.plan.described,
            generations=len(self.history),
            done=self._used(time=False),
        )

    @property
    def _folder(self) -> Path | None:
        return None if self.files is None else self.files.folder

    def _generation(self, observers: Observers) -> None:
        start = perf_counter()
        before = self.env_steps + self.contest.env_steps
        self.search.ask()
        seconds_evolution = perf_counter() - start
        observers.before(self.population)
        judged = self.judge.judge(self.population)
        self._warn_of_nonfinite(judged.fitnesses)
        observers.after(self.population, judged.fitnesses, len(self.history))
        self.env_steps += judged.env_steps
        with one_thread():  # other sums would differ with the number of threads
            spread = diversity(self.population)
        planned = self.contest.plan(judged)
        start_of_learning = perf_counter()
        self.search.tell(judged.fitnesses, judged.evaluated)
        seconds_evolution += perf_counter() - start_of_learning
        has_new_champion = self.contest.look(planned)
        self.stopped = self.contest.is_certified
        entry = self._entry(judged, spread, seconds_evolution)
        self.history.append(entry)
        self._save(has_new_champion)
        self._note_machine()
        played = self.env_steps + self.contest.env_steps - before
        observers.generation(
            self.population, entry, self._status(entry, played, perf_counter() - start)
        )
        self._look_at_the_clock()

    def _status(self, entry: dict[str, Any], played: int, seconds: float) -> Status:
        lanes = max(1, self._machine.get("workers", 0)) * (self.ranks.size if self.ranks else 1)
        return Status(
            len(self.history),
            self.plan.settings.most_generations,
            1.0 if self.stopped else self._used(time=True),
            entry["best_fitness"],
            entry["champion_mean"],
            played / seconds,
            min(1.0, entry["seconds_env"] / (seconds * lanes)),
        )

    def _warn_of_nonfinite(self, fitnesses: Tensor) -> None:
        bad = (~fitnesses.isfinite()).nonzero().flatten().tolist()
        if bad and not self.warned_of_nonfinite:
            self.warned_of_nonfinite = True
            warnings.warn(
                f"generation {self.population.generation}: the fitness of individuals {bad} is not "
                "finite: they rank last; num_nonfinite in the history counts them from here on",
                stacklevel=5,
            )

    def _entry(self, judged: Judged, spread: float, seconds_evolution: float) -> dict[str, Any]:
        finite = judged.fitnesses[judged.fitnesses.isfinite()].double()
        nothing = float("nan")
        entry = {
            "generation": len(self.history),
            "best_fitness": float(judged.fitnesses.max()),
            "mean_fitness": float(finite.mean()) if len(finite) else nothing,
            "median_fitness": float(finite.quantile(0.5)) if len(finite) else nothing,
            "std_fitness": float(finite.std(correction=0)) if len(finite) else nothing,
            "diversity": spread,
            **self._champion(),
            "seconds_env": judged.seconds_env,
            "seconds_forward": judged.seconds_forward,
            "seconds_evolution": seconds_evolution,
            "num_nonfinite": int((~judged.fitnesses.isfinite()).sum()),
        }
        if not self.history:
            entry["base_fitness"] = self.contest.base_mean
        return entry

    def _champion(self) -> dict[str, Any]:
        """Return what the history says of the champion and of all steps so far."""
        return {
            "champion_mean": self.contest.champion.mean,
            "champion_se": self.contest.champion.standard_error,
            "champion_episodes": len(self.contest.champion.scores),
            "env_steps": self.env_steps + self.contest.env_steps,
            "env_steps_validation": self.contest.env_steps,
        }

    def _finish(self) -> None:
        """Let the contenders meet and the champion report its score."""
        state = None if self.files is None else self._state()
        self.contest.finish()
        self.history = History([*self.history[:-1], {**self.history[-1], **self._champion()}])
        if self.files is None or state is None:
            return
        state["final"] = {"contest": self.contest.state(), "history": list(self.history)}
        self.files.save_latest(state)
        self.history.to_csv(self.files.folder / "history.csv")
        self._save_best()

    def _state(self) -> dict[str, Any]:
        return {
            "kind": "run",
            "settings": self.plan.described,
            "population": self.population.state(),
            "search": self.search.state(),
            "env_steps": self.env_steps,
            "history": list(self.history),
            "contest": self.contest.state(),
            "final": None,
        }

    def _save(self, has_new_champion: bool) -> None:
        if self.files is None:
            return
        if has_new_champion:
            self._save_best()
        # The end of the run writes this generation together with what it adds.
        if len(self.history) % self.plan.settings.checkpoint_every == 0 and not self.is_over:
            self.files.save_latest(self._state())
            self.history.to_csv(self.files.folder / "history.csv")

    def _save_best(self) -> None:
        assert self.files is not None
        self.files.save_best({**self.contest.content(), "settings": self.plan.described})
        if self.plan.save_policy is not None:
            self.plan.save_policy(self.files.folder, self.contest.merged())
