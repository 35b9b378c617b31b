"""The command line: ``populora-envs evolve CartPole-v1``, and what looks at runs afterwards."""

from __future__ import annotations

import sys
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Union

import tyro

from populora_envs.cli.about import Bench, Check, List
from populora_envs.cli.evolve import Resume, prepared
from populora_envs.cli.runs import Evaluate, Plot, Video

if TYPE_CHECKING:
    from collections.abc import Iterator

DONE, FAILED, WRONG_USAGE, INTERRUPTED = 0, 1, 2, 130

_ABOUT = "Evolve policies in any environment, and look at what has been evolved."

_COMMANDS = {
    "resume": Resume,
    "evaluate": Evaluate,
    "video": Video,
    "plot": Plot,
    "check": Check,
    "bench": Bench,
    "list": List,
}


@contextmanager
def _plain_warnings() -> Iterator[None]:
    """Print each warning once, as one line without its place in the code."""
    said: set[str] = set()

    def say(message: Warning | str, *_: Any, **__: Any) -> None:
        if str(message) not in said:
            said.add(str(message))
            print(f"note: {message}", file=sys.stderr)

    with warnings.catch_warnings():
        warnings.showwarning = say
        yield


def _say(error: Exception) -> int:
    print("\n".join([f"error: {error}", *getattr(error, "__notes__", [])]), file=sys.stderr)
    return FAILED


_ERRORS = (ValueError, TypeError, NotImplementedError, ImportError, OSError, RuntimeError)


def _commands(given: list[str]) -> Any:
    """Return the commands as one type, ``evolve`` with the defaults that the words name."""
    named = [Annotated[kind, tyro.conf.subcommand(name)] for name, kind in _COMMANDS.items()]
    return Union[prepared(given), *named]


def main(arguments: list[str] | None = None) -> int:
    """Run a command and return its exit code: 0 done, 1 failed, 2 wrong usage, 130 interrupted."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    try:
        commands = _commands(given)
    except _ERRORS as error:
        return _say(error)
    with warnings.catch_warnings():
        # names of operators stand for functions, which the types of the defaults know alone
        warnings.filterwarnings("ignore", message=".*does not match any type in Union")
        command: Any = tyro.cli(commands, prog="populora-envs", description=_ABOUT, args=given)
    try:
        with _plain_warnings():
            command.run()
    except KeyboardInterrupt:
        folder = getattr(command, "checkpoint_dir", None) or getattr(command, "run_folder", None)
        where = f"; {folder} holds the run" if folder else ""
        print(f"interrupted{where}", file=sys.stderr)
        return INTERRUPTED
    except _ERRORS as error:
        return _say(error)
    return DONE
