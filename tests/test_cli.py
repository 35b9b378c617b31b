"""The command line, in this process and as a command."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest

from populora_envs import cli
from populora_envs.settings import EvolveSettings, GeneticSettings

SMALL = ["--num-generations", "2", "--pop-size", "4", "--no-progress"]


def test_evolve_prints_steps_and_the_score_over_fresh_episodes(capsys):
    assert cli.main(["evolve", "CartPole-v1", *SMALL]) == cli.DONE
    printed = capsys.readouterr()
    assert "env steps in 2 generations" in printed.out
    last = printed.out.splitlines()[-1]
    assert re.fullmatch(
        r"CartPole-v1: mean return [\d.]+ \+- [\d.]+ \(standard error\) over 30 fresh episodes",
        last,
    )
    assert printed.err == ""


def test_evolve_writes_a_run_and_resumes_it(tmp_path, capsys):
    folder = str(tmp_path / "run")
    command = ["evolve", "CartPole-v1", *SMALL, "--checkpoint-dir", folder]
    assert cli.main(command) == cli.DONE
    first = capsys.readouterr().out
    assert cli.main(command) == cli.FAILED
    assert "resume=True" in capsys.readouterr().err
    assert cli.main([*command, "--resume"]) == cli.DONE
    assert capsys.readouterr().out == first
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["pop_size"] == 4
    assert config["versions"]["torch"]


def config_of(folder, arguments):
    """What config.json says after a run of two generations."""
    command = ["evolve", "CartPole-v1", *SMALL, "--checkpoint-dir", str(folder), *arguments]
    assert cli.main(command) == cli.DONE
    return json.loads((folder / "config.json").read_text())


@pytest.mark.parametrize(
    ("arguments", "search", "choices"),
    [
        ([], "EvolutionStrategy", {}),
        (["--epsilon", "0.5"], "GeneticAlgorithm", {"epsilon": 0.5}),
        (["--search", "ga"], "GeneticAlgorithm", {}),
        (["--search", "snes"], "SeparableNES", {}),
        (
            ["--search-settings", "scale", "1.5", "half_life", "20"],
            "EvolutionStrategy",
            {"scale": 1.5, "half_life": 20},
        ),
        (
            ["--search", "pgpe", "--search-settings", "max_speed", "0.2"],
            "PGPE",
            {"max_speed": 0.2},
        ),
    ],
)
def test_searches_and_their_settings(arguments, search, choices, tmp_path, capsys):
    config = config_of(tmp_path, arguments)
    assert (config["search"], config["choices"]) == (search, choices)
    assert "fresh episodes" in capsys.readouterr().out


def test_a_budget_of_steps_takes_the_place_of_generations(capsys):
    command = ["evolve", "CartPole-v1", "--max-env-steps", "2000", "--no-progress"]
    assert cli.main([*command, "--pop-size", "4"]) == cli.DONE
    steps = int(capsys.readouterr().out.split()[0])
    assert steps >= 2000


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["CartPole-v1", "--search", "openaies"], "near names: openai_es"),
        (["CartPole-v1", "--search-settings", "scales", "1.0"], "near names: scale"),
        (["CartPole-v1", "--search", "es", "--epsilon", "0.5"], "unknown option 'epsilon'"),
        (["CartPole-v1", "--max-env-steps", "0"], "max_env_steps must be at least 1, not 0"),
        (["CartPole-v1", "--max-seconds", "-1"], "max_seconds must be above 0, not -1"),
        (["CartPol-v1"], "CartPole-v1"),
        (["dm_control/cartpole-balanc"], "cartpole-balance"),
        (["CartPole-v1", "--mutation-type", "full_gausian"], "full_gaussian"),
        (["CartPole-v1", "--action", "categorcal"], "categorical"),
        (["CartPole-v1", "--pop-size", "0"], "pop_size must be at least 1, not 0"),
        (["CartPole-v1", "--lora-targets", "nothing"], "'nothing'"),
        (["CartPole-v1", "--resume"], "checkpoint_dir"),
    ],
)
def test_wrong_values_give_one_sentence_and_exit_code_1(arguments, says, capsys):
    assert cli.main(["evolve", *arguments]) == cli.FAILED
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert says in error
    assert "Traceback" not in error


@pytest.mark.parametrize(
    "arguments",
    [[], ["evolve"], ["check"], ["evolv", "CartPole-v1"], ["evolve", "--x"], ["check", "--x"]],
)
def test_wrong_usage_exits_with_2(arguments, capsys):
    with pytest.raises(SystemExit) as error:
        cli.main(arguments)
    assert error.value.code == cli.WRONG_USAGE
    assert capsys.readouterr()


def test_every_setting_is_an_option_with_a_help_text(capsys):
    with pytest.raises(SystemExit) as done:
        cli.main(["evolve", "--help"])
    assert done.value.code == 0
    text = capsys.readouterr().out
    for field in [*dataclasses.fields(EvolveSettings), *dataclasses.fields(GeneticSettings)]:
        assert f"--{field.name.replace('_', '-')}" in text


def test_ctrl_c_ends_with_130_and_the_checkpoint_intact(tmp_path):
    folder = tmp_path / "run"
    command = [sys.executable, "-m", "populora_envs", "evolve", "CartPole-v1"]
    command += ["--num-generations", "100000", "--checkpoint-dir", str(folder)]
    run = subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": _path()}
    )
    until = time.monotonic() + 60
    while not (folder / "previous.pt").exists() and time.monotonic() < until:
        time.sleep(0.05)
    run.send_signal(signal.SIGINT)
    _, error = run.communicate(timeout=30)
    assert run.returncode == cli.INTERRUPTED
    assert f"interrupted; {folder} holds the run" in error
    assert "Traceback" not in error
    resumed = [*command, "--resume", "--no-progress"]
    resumed[resumed.index("100000")] = "1"
    done = subprocess.run(
        resumed, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": _path()}
    )
    assert done.returncode == cli.DONE, done.stderr


def _path() -> str:
    return os.pathsep.join(sys.path)


@pytest.mark.filterwarnings("default")
def test_a_warning_is_one_line_and_comes_once(capsys):
    assert cli.main(["evolve", "CliffWalking-v1", *SMALL]) == cli.DONE
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("note: the environment names no time limit")
