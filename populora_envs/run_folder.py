"""What a run leaves in its folder, for those who come later."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from populora_envs.history import History
from populora_envs.policy import Policy
from populora_envs.population_table import read_population

if TYPE_CHECKING:
    import os


class RunFolder:
    """The folder of a run, as `evolve_with_env` writes it with `checkpoint_dir`.

    Args:
        path: of the folder.

    Attributes:
        plots: folder of its pictures.
        video: film of its best policy.
        report: its page.

    Raises:
        ValueError: where there is no run.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.plots = self.path / "plots"
        self.video = self.path / "video" / "best.mp4"
        self.report = self.path / "report.html"
        if not (self.path / "config.json").is_file():
            message = f"{self.path} holds no run: it has no config.json"
            raise ValueError(message)

    def config(self) -> dict[str, Any]:
        """Return settings, versions and machine of the run."""
        told: dict[str, Any] = json.loads((self.path / "config.json").read_text(encoding="utf-8"))
        return told

    @property
    def env_id(self) -> str | None:
        """The id of the environment, None where the run was given something else."""
        return self.config().get("env")

    def history(self) -> History:
        """Return the history so far; empty before the first checkpoint."""
        path = self.path / "history.csv"
        return History.from_csv(path) if path.exists() else History()

    def population(self) -> list[dict[str, Any]]:
        """Return the fitness of every individual, a row each; see `read_population`."""
        path = self.path / "population.csv"
        return read_population(path) if path.exists() else []

    def policy(self) -> Policy:
        """Return the best policy of the run.

        Raises:
            ValueError: where there is none yet, or its file wants a model or an action function, which
                `Policy.load` takes.
        """
        path = self.path / POLICY
        if not path.exists():
            message = (
                f"{self.path} has no {POLICY}: the run has found no policy yet, or one that a file cannot "
                "describe"
            )
            raise ValueError(message)
        return Policy.load(path)


def load_policy(path: str | os.PathLike[str]) -> Policy:
    """Return the policy in a run's folder, or in a file; ValueError where there is neither."""
    path = Path(path)
    if not path.exists():
        message = f"there is neither a run nor a policy at {path}"
        raise ValueError(message)
    return RunFolder(path).policy() if path.is_dir() else Policy.load(path)


POLICY = "policy.safetensors"
"""File of the best policy."""
