"""``evolve`` and ``resume``: run an evolution, also one that a config.json or a preset describes."""

from __future__ import annotations

import dataclasses
import json
import sys
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import tyro

from populora_envs.cli.presets import preset
from populora_envs.description import versions
from populora_envs.distributed import is_main_rank
from populora_envs.evolution import evolve_with_env
from populora_envs.rerun import options_of
from populora_envs.run_folder import RunFolder
from populora_envs.settings import EvolveSettings, GeneticSettings, OperatorChoice

_GENETIC = [field.name for field in dataclasses.fields(GeneticSettings)] + ["epsilon"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evolve(EvolveSettings):
    """Evolve a policy for an environment and report its score on fresh episodes."""

    env: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ENV")] = tyro.MISSING
    """Id of the environment, such as CartPole-v1 or dm_control/cartpole-balance."""
    config: str | None = None
    """A config.json of a run, to run the same again; options given beside it go before it."""
    preset: bool = False
    """Use settings that were tried on this environment; options given beside it go before them."""
    action: str | None = None
    """Action head: categorical, squashed_gaussian or beta; None means the deterministic action."""
    init_from: str | None = None
    """Where everyone begins: a run's folder, a saved individual, or a folder of PEFT's."""
    selection_type: OperatorChoice | None = None
    """Of ga, who survives: deterministic (the default), or another that list names."""
    survive_frac: float | None = None
    """Of ga, the share of the population that survives and has children; 0.5 where not given."""
    elite_frac: float | None = None
    """Of ga, the share of the population that goes on unchanged; 0.25 where not given."""
    parent_selection_type: OperatorChoice | None = None
    """Of ga, which survivors have children: tournament (the default), or another that list names."""
    num_parents_per_child: int | None = None
    """Of ga, parents of each child; 2 where not given."""
    crossover_type: OperatorChoice | None = None
    """Of ga, how parents mix: clone (the default), or another that the command list names."""
    mutation_type: OperatorChoice | None = None
    """Of ga, how children vary: full_gaussian (the default), or another that list names."""
    epsilon: float | None = None
    """Of ga, the size of a mutation, in units of 1/sqrt(fan-in); 0.7 where not given."""
    search_settings: dict[str, int | float] = dataclasses.field(default_factory=dict)
    """Further settings of the search by name, such as: scale 1.0 half_life 20."""
    num_workers: int | str = "auto"
    """Processes that play episodes; 0 means this one, auto what the first episodes show to be faster."""
    checkpoint_dir: Annotated[
        str | None, tyro.conf.arg(name="run", aliases=["--checkpoint-dir"])
    ] = None
    """Folder of the run: checkpoints, history.csv, population.csv, config.json, plots, film, report.html."""
    progress: bool = True
    """Show one line with best and champion, env-steps/s, the environment's share of the time, time left."""
    report: bool = True
    """Draw plots and write report.html into the run's folder at the end, where there is one."""
    video: bool = True
    """Film the returned policy at the end, into video/best.mp4 of the run's folder, where there is one."""

    def run(self) -> None:
        """Evolve, then print what the returned policy scores."""
        settings = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        env, further = settings.pop("env"), settings.pop("search_settings")
        del settings["config"], settings["preset"]
        for name in _GENETIC:
            if settings[name] is None:
                del settings[name]
        has_folder = self.checkpoint_dir is not None
        settings |= {name: settings[name] and has_folder for name in ("report", "video")}
        _, history = evolve_with_env(env, return_history=True, **settings, **further)
        if not is_main_rank():
            return
        last = history[-1]
        print(f"{last['env_steps']} env steps in {len(history)} generations")
        print(
            f"{env}: mean return {last['champion_mean']:.4g} +- {last['champion_se']:.2g} (standard "
            f"error) over {last['champion_episodes']} fresh episodes"
        )
        if has_folder:
            print(f"run: {self.checkpoint_dir}{_page(str(self.checkpoint_dir))}")


def _page(folder: str) -> str:
    page = Path(folder) / "report.html"
    return f", page: {page}" if page.exists() else ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Resume:
    """Go on with a run from its last checkpoint, or with a larger budget than it had."""

    run_folder: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folder of the run."""
    num_generations: int | None = None
    """Generations in all; None means as many as the run was to have."""
    max_env_steps: int | None = None
    """Environment steps in all; None means as many as the run was to have."""
    max_seconds: float | None = None
    """Seconds from now on; None means as many as the run was to have."""
    target_fitness: float | None = None
    """Stop once the champion reaches at least this; None means what the run was to reach."""
    num_workers: int | str | None = None
    """Processes that play episodes; None means as the run had it."""
    progress: bool = True
    """Show how far the run is."""

    def run(self) -> None:
        """Resume, then print what the returned policy scores."""
        folder = RunFolder(self.run_folder)
        saved = evolve_of(folder.config(), str(folder.path / "config.json"))
        given = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        del given["run_folder"]
        changed = {name: value for name, value in given.items() if value is not None}
        dataclasses.replace(saved, **changed, checkpoint_dir=self.run_folder, resume=True).run()


def evolve_of(config: dict[str, Any], where: str) -> Evolve:
    """Return the command that a config.json describes; ValueError where a command cannot say it."""
    options = options_of(config, where)
    choices = options.pop("choices")
    own = {name: choices.pop(name) for name in _GENETIC if name in choices}
    known = {field.name for field in dataclasses.fields(Evolve)}
    settings = {name: value for name, value in options.items() if name in known}
    new_run = {"checkpoint_dir": None, "resume": False, "progress": True, "report": True}
    return Evolve(**{**settings, **own, **new_run, "video": True, "search_settings": choices})


def prepared(arguments: list[str]) -> Any:
    """Return the command ``evolve`` with the defaults that ``--config`` or ``--preset`` give."""
    words = arguments[1:] if arguments[:1] == ["evolve"] else []
    config = _value_of("--config", words)
    default = Evolve()
    if config is not None:
        told = json.loads(Path(config).read_text(encoding="utf-8"))
        default = evolve_of(told, config)
        _compare(told.get("versions", {}))
    elif "--preset" in words:
        env = next((w for w in words if not w.startswith("-")), "")
        default = Evolve(env=env, **preset(env))
    return Annotated[Evolve, tyro.conf.subcommand("evolve", default=default)]


def _value_of(option: str, words: list[str]) -> str | None:
    for word, following in pairwise([*words, ""]):
        if word == option and following:
            return following
        if word.startswith(f"{option}="):
            return word.partition("=")[2]
    return None


def _compare(saved: dict[str, str]) -> None:
    """Say where other versions may give other numbers."""
    now = versions()
    others = [f"{n} {v} (here {now[n]})" for n, v in saved.items() if now.get(n, v) != v]
    if others:
        text = f"the run was made with {', '.join(others)}: numbers may differ"
        print(f"note: {text}", file=sys.stderr)
