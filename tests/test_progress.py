"""What a run says while it goes on."""

import math
import subprocess
import sys
import threading
import time

import pytest

from populora_envs import progress as module
from populora_envs.progress import Progress, Status, counted, short


@pytest.fixture
def terminal(monkeypatch):
    """Stderr looks like a terminal."""
    monkeypatch.setattr(module, "_in_terminal", lambda: True)


def status(generations=12, done=0.48, best=812.3456, champion=-799.99, **other):
    numbers = {"steps_per_second": 12345.6, "share_env": 0.624, "most_generations": 25, **other}
    return Status(generations, done=done, best=best, champion=champion, **numbers)


def last_line(text):
    return text.replace("\r", "\n").rstrip().splitlines()[-1]


@pytest.mark.parametrize("place", ["terminal", "elsewhere"])
def test_no_progress_prints_nothing(place, capfd, request):
    if place == "terminal":
        request.getfixturevalue("terminal")
    with Progress(enabled=False) as progress:
        progress.update(status())
        progress.message("hello")
    progress.close()
    assert capfd.readouterr() == ("", "")


def test_the_numbers_stand_in_one_line_of_a_terminal(terminal, capsys):
    with Progress(enabled=True) as progress:
        progress.update(status())
    out, err = capsys.readouterr()
    assert out == ""
    line = last_line(err)
    assert line.startswith("gen 12/25: best")
    assert "best 812.3, champion -800, 12.3k steps/s, env 62%, 00:00 left" in line
    assert err.count("\n") == 1
    assert err.endswith("\n")


def test_a_line_without_a_limit_of_generations(terminal, capsys):
    with Progress(enabled=True) as progress:
        progress.update(status(most_generations=None))
    assert last_line(capsys.readouterr().err).startswith("gen 12: best")


def test_elsewhere_lines_come_every_few_seconds_and_at_the_end(capsys, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with Progress(enabled=True) as progress:
        for number in range(1, 10):
            now[0] += 1.0
            progress.update(status(number, done=number / 25))
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(":")[0] for line in lines] == [
        "gen 1/25",
        "gen 6/25",
        "gen 9/25",
    ]
    assert lines[-1].endswith("env 62%, 00:16 left")


def test_time_left_counts_what_this_run_has_done(capsys, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with Progress(enabled=True, done=0.5) as progress:
        now[0] = 10.0
        progress.update(status(done=0.75))
    assert "00:10 left" in capsys.readouterr().err


def test_close_twice_is_harmless(terminal, capsys):
    progress = Progress(enabled=True)
    progress.close()
    assert capsys.readouterr().err
    progress.close()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("place", ["terminal", "elsewhere"])
def test_the_last_numbers_stay_when_a_run_fails(place, capsys, request):
    if place == "terminal":
        request.getfixturevalue("terminal")

    def failing():
        with Progress(enabled=True) as progress:
            progress.update(status())
            progress.update(status(13))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        failing()
    err = capsys.readouterr().err
    assert "gen 13/25" in last_line(err)
    assert err.endswith("\n")


def test_a_message_is_a_line_of_its_own(terminal, capsys):
    with Progress(enabled=True) as progress:
        progress.message("saved best.pt")
        progress.update(status())
    assert "saved best.pt" in capsys.readouterr().err.replace("\r", "\n").splitlines()


def test_no_thread_is_started(terminal):
    num_threads = threading.active_count()
    with Progress(enabled=True):
        assert threading.active_count() == num_threads


def test_outside_of_notebooks_none_is_looked_for():
    assert not module._in_notebook()
    script = "import sys, populora_envs; assert 'IPython' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0.0, "0"),
        (-0.0, "0"),
        (800.0, "800"),
        (0.123456, "0.1235"),
        (12000, "12000"),
        (1234567.0, "1235000"),
        (-99999.0, "-100000"),
        (0.00012344, "0.0001234"),
        (math.nan, "nan"),
        (-math.inf, "-inf"),
    ],
)
def test_numbers_are_short_and_have_no_exponent(number, text):
    assert short(number) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0"), (7.26, "7.26"), (999.4, "999"), (999.6, "1k"), (12345, "12.3k"), (2.5e6, "2.5M")],
)
def test_large_numbers_have_a_letter(number, text):
    assert counted(number) == text
