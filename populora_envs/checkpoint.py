"""The folder of a run: ``latest.pt``, ``previous.pt``, ``best.pt`` and ``config.json``."""

from __future__ import annotations

import json
import warnings
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from populora_envs.files import (
    PARTIAL,
    Content,
    DamagedFile,
    load_file,
    plain_content,
    replace_file,
    serialise,
    write_text,
)

if TYPE_CHECKING:
    import os
    from collections.abc import Collection, Iterator


class Checkpoints:
    """The files of one run in one folder, which is made at the first write.

    Args:
        folder: the ``checkpoint_dir`` of the run; one process writes to it.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.latest = self.folder / "latest.pt"
        self.previous = self.folder / "previous.pt"
        self.best = self.folder / "best.pt"
        self.config = self.folder / "config.json"
        self._latest_is_damaged = False
        self._is_prepared = False

    def save_latest(self, content: Content) -> None:
        """Write ``latest.pt``; the one before becomes ``previous.pt``."""
        data = serialise(content)
        # a damaged file must not take the place of the good one before it
        keep_old_as = None if self._latest_is_damaged else self.previous
        with self._writing():
            replace_file(self.latest, data, keep_old_as)
        self._latest_is_damaged = False

    def load_latest(self) -> Content | None:
        """Return the newest checkpoint that can be read, or None where there is none.

        A missing or damaged ``latest.pt`` gives ``previous.pt`` and a warning.

        Raises:
            DamagedFile: where there are files but none can be read.
        """
        try:
            return load_file(self.latest)
        except FileNotFoundError:
            problem = f"{self.latest} is missing"
            if not self.previous.exists():
                return None
        except DamagedFile as error:
            self._latest_is_damaged = True
            problem = str(error)
            if not self.previous.exists():
                raise
        return self._load_previous(problem)

    def save_best(self, content: Content) -> None:
        """Write ``best.pt``."""
        data = serialise(content)
        with self._writing():
            replace_file(self.best, data)

    def load_best(self) -> Content | None:
        """Return the content of ``best.pt``, or None where there is none."""
        return load_file(self.best) if self.best.exists() else None

    def save_config(self, config: Content) -> None:
        """Write plain settings to ``config.json`` for people to read."""
        text = json.dumps(plain_content(config, "config"), indent=2) + "\n"
        with self._writing():
            write_text(self.config, text)

    def holds_run(self) -> bool:
        """Whether the folder has a checkpoint or a best individual of an earlier run."""
        return any(path.exists() for path in (self.latest, self.previous, self.best))

    def _load_previous(self, problem: str) -> Content:
        try:
            content = load_file(self.previous)
        except DamagedFile as error:
            message = f"{problem}; and {error}"
            raise DamagedFile(message) from error
        message = f"{problem}: {self.previous.name}, the checkpoint before it, is used"
        warnings.warn(message, stacklevel=3)
        return content

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            self._prepare()
            yield
        except OSError as error:
            error.add_note(f"while writing to checkpoint_dir {str(self.folder)!r}")
            raise

    def _prepare(self) -> None:
        """Make the folder, and remove what a killed process left half written in it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if not self._is_prepared:
            for partial in self.folder.glob(f".*{PARTIAL}"):
                partial.unlink(missing_ok=True)
        self._is_prepared = True


def check_settings(saved: Content, now: Content, may_differ: Collection[str]) -> None:
    """Raise a ValueError that names every setting in which a run would not be the saved one.

    A list equals a tuple of the same values, and nan equals nan.

    Args:
        saved: the settings in the checkpoint.
        now: the settings of the run that wants to go on from it.
        may_differ: names of settings that do not change the meaning of what was saved.
    """
    names = [name for name in saved | now if name not in may_differ]
    differing = [name for name in names if not _is_same_setting(name, saved, now)]
    if differing:
        message = (
            f"{'; '.join(_say_difference(name, saved, now) for name in differing)}: "
            f"use the saved values to resume, or another checkpoint_dir to start anew"
        )
        raise ValueError(message)


def _is_same_setting(name: str, saved: Content, now: Content) -> bool:
    return name in saved and name in now and _is_same(saved[name], now[name])


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) or isinstance(other, Tensor):
        return _is_same_tensor(one, other)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_is_same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(_is_same, one, other))
    are_both_nan = one != one and other != other
    return bool(are_both_nan or one == other)


def _is_same_tensor(one: Any, other: Any) -> bool:
    if not (isinstance(one, Tensor) and isinstance(other, Tensor)):
        return False
    return one.dtype == other.dtype and torch.equal(one.cpu(), other.cpu())


def _say_difference(name: str, saved: Content, now: Content) -> str:
    was = repr(saved[name]) if name in saved else "not set"
    current = repr(now[name]) if name in now else "not set"
    return f"{name} was {was} in the checkpoint and is {current} now"
