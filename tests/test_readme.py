"""The README's commands and examples are true."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import torch
from torch import nn

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PYTHON = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


def test_test_command_is_the_one_that_ci_looks_for():
    commands = re.findall(r"^pip install -e .*&& pytest", README, flags=re.MULTILINE)
    assert commands == ['pip install -e ".[test]" && pytest']


def test_extras_that_the_readme_names_exist():
    named = re.findall(r"populora-envs\[([\w-]+)\]", README)
    assert named
    assert set(named) <= set(PROJECT["project"]["optional-dependencies"])


NAMES = ["one_call", "own_loop", "own_fitness", "workers", "searches", "files"]


@pytest.mark.parametrize("code", PYTHON, ids=NAMES)
def test_python_of_the_readme_runs(code, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if "export_onnx" in code:
        pytest.importorskip("onnxruntime", reason="what exports is not installed")
        code = code.replace("init_from=policy)", "init_from=policy, num_generations=1)")
    code = code.replace("num_generations=25", "num_generations=2").replace(
        "horizon=1000", "horizon=20"
    )
    code = code.replace("num_workers=2", "num_workers=2, num_generations=1, pop_size=4")
    code = code.replace("max_env_steps=300_000", "max_env_steps=3_000, horizon=50")
    code = code.replace("epsilon=0.5)  # the", "epsilon=0.5, num_generations=1, horizon=50)  # the")
    code = code.replace("range(30)", "range(2)").replace("progress=True", "progress=False")
    names = {
        "observation": {"position": [0.0, 1.0, 0.0], "velocity": [0.0, 0.0]},
        "model": nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1)),
        "x": torch.ones(1, 4, 2),
        "y": torch.ones(1, 4, 1),
    }
    exec(code, names)
    if "action" in names:
        assert names["action"].shape == (1,)


def test_version_is_the_one_of_the_changelog():
    assert f"## {PROJECT['project']['version']}" in (ROOT / "CHANGELOG.md").read_text()


def test_loop_in_the_documentation_of_searches_runs(capsys):
    codes = re.findall(
        r"```python\n(.*?)```", (ROOT / "docs" / "search.md").read_text(), flags=re.DOTALL
    )
    (loop,) = [code for code in codes if "make_search" in code]
    exec(loop.replace("range(20)", "range(1)"), {})
    assert "PolicyScore" in capsys.readouterr().out
