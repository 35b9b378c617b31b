"""``evaluate``, ``video`` and ``plot``: what was evolved, looked at afterwards."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from populora_envs import plots
from populora_envs.grid import individuals_of
from populora_envs.interactor import EnvInteractor
from populora_envs.page import write_page
from populora_envs.progress import short
from populora_envs.report import draw_plots
from populora_envs.run_folder import RunFolder, load_policy
from populora_envs.video import record_video

if TYPE_CHECKING:
    from populora_envs.camera import Recording
    from populora_envs.policy import Policy

_Source = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN|POLICY")]
_Env = Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="ENV")]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluate:
    """Score a policy on fresh episodes."""

    source: _Source
    """Folder of a run, or a file that Policy.save wrote."""
    env: _Env = None
    """Id of the environment; None means the one of the run."""
    num_episodes: int = 100
    """Episodes to play."""
    horizon: int | None = None
    """Most steps of an episode; None means that of the run, or the environment's own limit."""
    seed: int = 0
    """Seed of the episodes; that of the run gives those it has reported, and more."""
    num_workers: int | str = 0
    """Processes that play episodes."""

    def run(self) -> None:
        """Play, then print the mean return and its standard error."""
        policy, env, horizon = _loaded(self.source, self.env)
        horizon = horizon if self.horizon is None else self.horizon
        with EnvInteractor(env, seed=self.seed, num_workers=self.num_workers) as interactor:
            score = interactor.evaluate_policy(
                policy, num_episodes=self.num_episodes, horizon=horizon
            )
        lengths = score.lengths.double()
        print(
            f"{env}: mean return {short(score.mean)} +- {score.standard_error:.2g} (standard error) over "
            f"{self.num_episodes} episodes, from {short(float(score.returns.min()))} to "
            f"{short(float(score.returns.max()))}, {short(float(lengths.mean()))} steps on average"
        )


def _loaded(source: str, env: str | None) -> tuple[Policy, str, int | None]:
    """Return a policy, the id of its environment, and the horizon of its run."""
    policy, horizon = load_policy(source), None
    if Path(source).is_dir():
        folder = RunFolder(source)
        env, horizon = env or folder.env_id, folder.config().get("horizon")
    if env is None:
        message = f"{source} does not know its environment: name its id as ENV"
        raise ValueError(message)
    return policy, env, horizon


@dataclasses.dataclass(frozen=True, kw_only=True)
class Video:
    """Film a policy, or a whole population side by side."""

    source: _Source
    """Folder of a run, or a file that Policy.save wrote."""
    env: _Env = None
    """Id of the environment; None means the one of the run."""
    path: str | None = None
    """File, .mp4 or .gif; None means video/best.mp4 (or grid.mp4) in the folder of the run."""
    grid: bool = False
    """Show the individuals of the run's last generation side by side, at most 64."""
    num_episodes: int = 1
    """Episodes, one after the other."""
    horizon: int | None = None
    """Most steps of an episode; None means that of the run, or the environment's own limit."""
    seed: int = 0
    """Seed of the episodes."""
    fps: float | None = None
    """Frames per second; None means real time."""

    def run(self) -> None:
        """Film, then print where the file is."""
        done = self._film()
        returns = ", ".join(map(short, done.returns[:16]))
        print(f"{done.path}: {done.frames} frames, {short(done.fps)} per second, return {returns}")

    def _film(self) -> Recording:
        settings: dict[str, Any] = {
            "num_episodes": self.num_episodes,
            "horizon": self.horizon,
            "seed": self.seed,
            "fps": self.fps,
        }
        if not self.grid:
            return record_video(self.source, self.env, self.path, **settings)
        folder = RunFolder(self.source)
        env = self.env or folder.env_id
        path = self.path or folder.path / "video" / "grid.mp4"
        settings["horizon"] = self.horizon or folder.config().get("horizon")
        return record_video(individuals_of(folder), env, path, **settings)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plot:
    """Draw the plots of a run and write its page, or compare the champions of several runs."""

    runs: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folders of runs."""
    path: str = "comparison.png"
    """Picture of several runs; its ending says the format."""

    def run(self) -> None:
        """Draw, then print where the files are."""
        folders = [RunFolder(run) for run in self.runs]
        if not folders:
            message = "plot wants the folder of a run, or of several"
            raise ValueError(message)
        if len(folders) == 1:
            for path in [*draw_plots(folders[0]), write_page(folders[0])]:
                print(path)
            return
        plots.fitness_figure({str(f.path): f.history() for f in folders}).savefig(self.path)
        print(self.path)
