"""The commands that look at runs, run them again, and list what there is."""

import json
import re
import shutil
import subprocess
import sys
import time

import pytest

from populora_envs import cli
from populora_envs.cli.presets import presets
from populora_envs.history import History

SMALL = ["--num-generations", "2", "--pop-size", "4", "--no-progress", "--no-report", "--no-video"]
EXACT = ["best_fitness", "mean_fitness", "champion_mean", "env_steps", "diversity"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "cartpole"
    command = ["evolve", "CartPole-v1", *SMALL, "--run", str(folder), "--num-workers", "0"]
    assert cli.main(command) == cli.DONE
    return folder


@pytest.fixture
def copy(run, tmp_path):
    return shutil.copytree(run, tmp_path / "copy")


def numbers(folder):
    return [[entry[name] for name in EXACT] for entry in History.from_csv(folder / "history.csv")]


def test_a_run_leaves_the_whole_folder(tmp_path, capsys):
    for package in ("matplotlib", "imageio_ffmpeg"):
        pytest.importorskip(package, reason="an extra is missing")
    folder = tmp_path / "run"
    command = ["evolve", "CartPole-v1", "--num-generations", "2", "--pop-size", "4"]
    assert cli.main([*command, "--run", str(folder), "--no-progress"]) == cli.DONE
    found = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert found == {
        *("latest.pt", "previous.pt", "best.pt", "policy.safetensors"),
        *("history.csv", "population.csv", "config.json", "report.html"),
        *(f"plots/{name}.png" for name in ("fitness", "population", "diversity", "lineage")),
        "video/best.mp4",
    }
    printed = capsys.readouterr()
    assert printed.out.splitlines()[-1] == f"run: {folder}, page: {folder / 'report.html'}"
    assert printed.err == ""


@pytest.mark.filterwarnings("default")
def test_missing_extras_are_named_and_the_rest_is_there(tmp_path, capsys, monkeypatch):
    for module in ("matplotlib.figure", "imageio_ffmpeg"):
        monkeypatch.setitem(sys.modules, module, None)
    folder = tmp_path / "run"
    command = ["evolve", "CartPole-v1", "--num-generations", "1", "--pop-size", "4"]
    assert cli.main([*command, "--run", str(folder), "--no-progress"]) == cli.DONE
    said = capsys.readouterr().err
    assert (
        'a video wants imageio_ffmpeg, which is not installed: pip install "populora-envs[video]"'
        in said
    )
    assert (
        'a plot wants matplotlib, which is not installed: pip install "populora-envs[plots]"'
        in said
    )
    assert (folder / "report.html").exists()


def test_a_config_runs_the_same_again(run, tmp_path):
    again = tmp_path / "again"
    command = ["evolve", "--config", str(run / "config.json"), "--run", str(again)]
    assert cli.main([*command, "--no-progress", "--no-report", "--no-video"]) == cli.DONE
    assert numbers(again) == numbers(run)


def test_options_beside_a_config_go_before_it(run, tmp_path):
    again = tmp_path / "again"
    command = ["evolve", f"--config={run / 'config.json'}", "--run", str(again), "--seed", "7"]
    assert cli.main([*command, "--no-progress", "--no-report", "--no-video"]) == cli.DONE
    config = json.loads((again / "config.json").read_text())
    assert (config["seed"], config["pop_size"]) == (7, 4)
    assert numbers(again) != numbers(run)


def test_settings_of_every_kind_come_back_from_a_config(tmp_path):
    first, again = tmp_path / "first", tmp_path / "again"
    command = ["evolve", "Pendulum-v1", *SMALL, "--horizon", "20", "--run", str(first)]
    command += ["--search", "ga", "--epsilon", "0.3", "--crossover-type", "average"]
    command += ["--search-settings", "tournament_size", "3", "--lora-targets", "0", "2"]
    command += ["--action", "beta", "--to-range", "-1", "1"]
    assert cli.main(command) == cli.DONE
    command = ["evolve", "--config", str(first / "config.json"), "--run", str(again)]
    assert cli.main([*command, "--no-progress", "--no-report", "--no-video"]) == cli.DONE
    assert numbers(again) == numbers(first)
    one, other = (json.loads((f / "config.json").read_text()) for f in (first, again))
    assert {k: v for k, v in one.items() if k != "checkpoint_dir"} == {
        k: v for k, v in other.items() if k != "checkpoint_dir"
    }


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"env": None}, "its environment was no id"),
        ({"model": "MyNet"}, "model= was a MyNet"),
        ({"fitness": "score"}, "fitness= was a score"),
        ({"action": "<lambda>"}, "action= was the function <lambda>"),
        ({"search": "MySearch"}, "search= was a MySearch"),
    ],
)
def test_what_no_file_can_hold_is_said(copy, changes, says, capsys):
    path = copy / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    assert cli.main(["evolve", "--config", str(path)]) == cli.FAILED
    assert says in capsys.readouterr().err


def test_resume_goes_on_and_equals_one_run(copy, tmp_path, capsys):
    command = ["resume", str(copy), "--num-generations", "3", "--no-progress"]
    assert cli.main(command) == cli.DONE
    whole = tmp_path / "whole"
    long = [*SMALL[2:], "--num-generations", "3", "--run", str(whole), "--num-workers", "0"]
    assert cli.main(["evolve", "CartPole-v1", *long]) == cli.DONE
    assert numbers(copy) == numbers(whole)
    assert "in 3 generations" in capsys.readouterr().out


def test_evaluate_plays_fresh_episodes(run, capsys):
    assert cli.main(["evaluate", str(run), "--num-episodes", "7"]) == cli.DONE
    first = capsys.readouterr().out
    pattern = (
        r"CartPole-v1: mean return [\d.]+ \+- [\d.]+ \(standard error\) over 7 episodes, from \d+ to "
        r"\d+, [\d.]+ steps on average\n"
    )
    assert re.fullmatch(pattern, first)
    file = str(run / "policy.safetensors")
    assert cli.main(["evaluate", file, "CartPole-v1", "--num-episodes", "7"]) == cli.DONE
    assert capsys.readouterr().out == first


def test_the_score_of_a_run_is_found_again(run, capsys):
    last = History.from_csv(run / "history.csv")[-1]
    count = str(last["champion_episodes"])
    assert cli.main(["evaluate", str(run), "--num-episodes", count]) == cli.DONE
    assert f"mean return {last['champion_mean']:.4g} " in capsys.readouterr().out


def test_plots_of_one_run_and_of_several(copy, run, tmp_path, capsys):
    pytest.importorskip("matplotlib", reason="the extra plots is missing")
    assert cli.main(["plot", str(copy)]) == cli.DONE
    written = capsys.readouterr().out.splitlines()
    assert [path.rpartition("/")[2] for path in written] == [
        "fitness.png",
        "diversity.png",
        "population.png",
        "lineage.png",
        "report.html",
    ]
    picture = tmp_path / "both.png"
    assert cli.main(["plot", str(copy), str(run), "--path", str(picture)]) == cli.DONE
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_the_last_generation_is_filmed_side_by_side(copy, capsys):
    pytest.importorskip("imageio_ffmpeg", reason="the extra video is missing")
    assert cli.main(["video", str(copy), "--grid", "--horizon", "8"]) == cli.DONE
    assert re.search(
        r"grid\.mp4: 9 frames, 50 per second, return 8, 8, 8, 8\n", capsys.readouterr().out
    )


def test_list_names_what_there_is(capsys):
    assert cli.main(["list"]) == cli.DONE
    said = capsys.readouterr().out
    for word in (
        "gymnasium: ",
        "searches: ",
        "es",
        "crossovers: average",
        "heads: beta",
        "loggers: csv",
    ):
        assert word in said
    assert cli.main(["list", "cartpole"]) == cli.DONE
    assert "CartPole-v1" in capsys.readouterr().out.splitlines()
    assert cli.main(["list", "nothing like it"]) == cli.FAILED
    assert "holds 'nothing like it'" in capsys.readouterr().err


def test_bench_compares_with_the_simulator_alone(capsys):
    assert cli.main(["bench", "CartPole-v1", "--num-envs", "2", "--seconds", "0.2"]) == cli.DONE
    lines = capsys.readouterr().out.splitlines()
    assert "simulator alone" in lines[1]
    assert re.search(r"this process: [\d.]+k? steps/s, [\d.]+ of that", lines[2])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["evaluate", "nowhere"], "neither a run nor a policy at nowhere"),
        (["video", "nowhere"], "neither a run nor a policy at nowhere"),
        (["plot", "nowhere"], "nowhere holds no run"),
        (["resume", "nowhere"], "nowhere holds no run"),
        (["evolve", "--config", "nowhere.json"], "nowhere.json"),
        (["evolve", "CartPol-v1", "--preset"], "near names: CartPole-v1"),
        (["bench", "--seconds", "0"], "seconds must be above 0"),
        (["bench", "CartPol-v1"], "CartPole-v1"),
    ],
)
def test_wrong_values_give_one_sentence(arguments, says, capsys):
    assert cli.main(arguments) == cli.FAILED
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert says in error


@pytest.mark.parametrize(
    "arguments",
    [["evaluate"], ["video"], ["resume"], ["plot", "--x"], ["evolve", "A", "--pop-size", "x"]],
)
def test_wrong_usage_exits_with_2(arguments, capsys):
    with pytest.raises(SystemExit) as error:
        cli.main(arguments)
    assert error.value.code == cli.WRONG_USAGE
    assert capsys.readouterr()


def test_presets_are_settings_and_say_what_they_reached():
    for env, preset in presets().items():
        assert set(preset) == {"settings", "reached"}
        assert re.search(r"-?\d+ \+- \d", preset["reached"]), env


def test_a_preset_solves_what_it_is_for(capsys):
    assert cli.main(["evolve", "CartPole-v1", "--preset", "--no-progress"]) == cli.DONE
    score = re.search(r"mean return ([\d.]+)", capsys.readouterr().out)
    assert float(score[1]) >= 475


def test_the_line_fits_a_terminal_of_80_columns_and_stays_one():
    if shutil.which("tmux") is None:
        pytest.skip("tmux is missing")
    name = f"populora-{time.monotonic_ns()}"
    evolve = f"{sys.executable} -m populora_envs evolve Acrobot-v1 --num-generations 12"
    path = ":".join(sys.path)
    tmux = ["tmux", "-L", name]
    shell = f"PYTHONPATH={path} {evolve}; echo finished; sleep 60"
    subprocess.run([*tmux, "new-session", "-d", "-x", "80", "-y", "24", shell], check=True)
    try:
        shown = ""
        until = time.monotonic() + 60
        while "finished" not in shown and time.monotonic() < until:
            time.sleep(0.2)
            # -J joins what was wrapped: a line that is too long would show as one of more than 80
            shown = subprocess.run(
                [*tmux, "capture-pane", "-p", "-J"], capture_output=True, text=True, check=True
            ).stdout
        lines = [line.rstrip() for line in shown.splitlines()]
        moving = [line for line in lines if line.startswith("gen ")]
        assert len(moving) == 1, shown
        assert re.match(r"gen 12/12: best -\d", moving[0])
        assert 60 < len(moving[0]) <= 80
        assert any("env steps in 12 generations" in line for line in lines)
    finally:
        subprocess.run([*tmux, "kill-server"], check=False)


def test_where_there_is_no_terminal_lines_are_plain_and_few(tmp_path):
    command = [sys.executable, "-m", "populora_envs", "evolve", "CartPole-v1"]
    done = subprocess.run(
        [*command, "--num-generations", "8", "--pop-size", "4"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"PYTHONPATH": ":".join(sys.path), "PATH": ""},
        check=True,
    )
    lines = done.stderr.splitlines()
    assert 1 <= len(lines) <= 4
    assert "\r" not in done.stderr
    assert re.fullmatch(
        r"gen 8/8: best [\d.]+, champion [\d.]+, [\d.]+k? steps/s, env \d+%, 00:00 left", lines[-1]
    )
