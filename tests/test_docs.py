"""What the documentation shows is true: its Python runs, its commands and options exist."""

from __future__ import annotations

import contextlib
import functools
import io
import re
import shlex
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

import populora_envs
from populora_envs.cli import main

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs").glob("*.md"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SMALLER = 10
"""Generations, budgets and ranges of a page are divided by this, so that their order stays."""


def blocks(path, language):
    return re.findall(
        rf"^```{language}\n(.*?)^```", path.read_text(), flags=re.DOTALL | re.MULTILINE
    )


def commands(path):
    lines = "".join(blocks(path, "sh")).replace("\\\n", " ").splitlines()
    words = [shlex.split(part) for line in lines for part in line.split("&&")]
    return [command for command in words if command]


def small(evolve):
    """The same call with a tenth of the generations and steps and with short episodes."""

    @functools.wraps(evolve)
    def run(*args, **settings):
        budget = settings.get("max_env_steps")
        generations = settings.get("num_generations") or (100 if budget else 25)
        settings["num_generations"] = max(1, generations // SMALLER)
        settings["max_env_steps"] = budget and budget // SMALLER
        settings["horizon"] = min(settings.get("horizon") or 20, 20)
        return evolve(*args, **settings)

    return run


def shorter(code):
    return re.sub(r"range\((\d+)\)", lambda n: f"range({max(1, int(n[1]) // SMALLER)})", code)


WITH_PYTHON = [path for path in PAGES if blocks(path, "python")]
OPTIONAL = {"layers": ["transformers"], "runs": ["matplotlib", "imageio"]}
"""By page, the packages that its Python wants and the extra `test` does not bring."""


@pytest.mark.parametrize("path", WITH_PYTHON, ids=lambda path: path.stem)
def test_python_of_a_page_runs_from_top_to_bottom(path, tmp_path, monkeypatch, capsys):
    for package in OPTIONAL.get(path.stem, []):
        pytest.importorskip(package, reason=f"{package} is not installed")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(populora_envs, "evolve_with_env", small(populora_envs.evolve_with_env))
    names = {}
    for code in blocks(path, "python"):
        exec(compile(shorter(code), path.name, "exec"), names)


def test_pages_with_python_were_found():
    assert {"quickstart", "loop", "files", "search"} <= {path.stem for path in WITH_PYTHON}


@functools.cache
def options_of(command):
    """What the help of a command names, None where there is no such command."""
    said = io.StringIO()
    with (
        contextlib.redirect_stdout(said),
        contextlib.redirect_stderr(said),
        pytest.raises(SystemExit) as end,
    ):
        main([command, "--help"])
    there_is_one = end.value.code == 0 and f"usage: populora-envs {command}" in said.getvalue()
    return set(re.findall(r"--[a-z][\w-]*", said.getvalue())) if there_is_one else None


def extras(words):
    return set(re.findall(r"\[([\w,-]+)\]", " ".join(words)))


def wrong_in(words):
    """Say what does not exist in a command of the documentation, "" where all does."""
    program, *rest = words
    if program == "populora-envs":
        known = options_of(rest[0])
        given = {word.partition("=")[0] for word in rest if word.startswith("--")}
        if known is None:
            return f"there is no command {rest[0]}"
        return " ".join(sorted(given - known))
    if program == "pip":
        named = {name for group in extras(rest) for name in group.split(",")} - {"cpu"}
        return " ".join(sorted(named - set(PROJECT["project"]["optional-dependencies"])))
    if program == "python" and "-m" in rest:
        module = rest[rest.index("-m") + 1]
        return "" if find_spec(module) else f"there is no module {module}"
    if program not in {"bash", "python", "torchrun"}:
        return ""
    files = [word for word in rest if re.fullmatch(r"[\w./-]+\.(py|sh)", word)]
    return " ".join(name for name in files if not (ROOT / name).exists())


@pytest.mark.parametrize("path", [ROOT / "README.md", *PAGES], ids=lambda path: path.stem)
def test_commands_options_and_files_that_a_page_names_exist(path):
    for words in commands(path):
        assert not wrong_in(words), f"{shlex.join(words)}: {wrong_in(words)}"


@pytest.mark.parametrize(
    "command",
    [
        "populora-envs evolv CartPole-v1",
        "populora-envs evolve CartPole-v1 --popsize 3",
        'pip install "populora-envs[mujocco]"',
        "python -m tests.benchmarks.nothing",
        "torchrun --nproc-per-node=2 examples/nothing.py",
    ],
)
def test_a_command_that_does_not_exist_is_noticed(command):
    assert wrong_in(shlex.split(command))


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_a_page_stands_in_the_navigation(path):
    assert f": {path.name}" in (ROOT / "mkdocs.yml").read_text()


def test_every_public_name_is_in_the_reference():
    page = (ROOT / "docs" / "api.md").read_text()
    shown = re.findall(r"^::: populora_envs\.(\w+)$", page, flags=re.MULTILINE)
    assert sorted(shown) == sorted(populora_envs.__all__)
