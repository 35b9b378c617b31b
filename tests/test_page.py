"""report.html in a real browser, and what it says without one."""

import shutil

import pytest

from populora_envs import evolve_with_env
from populora_envs.page import write_page
from populora_envs.report import draw_plots
from populora_envs.run_folder import RunFolder
from tests.tiny import Aim, linear

WIDTHS = (1280, 390)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run with everything that is installed here."""
    folder = tmp_path_factory.mktemp("runs") / "a <b>run</b>"
    settings = {"num_generations": 3, "pop_size": 4, "horizon": 40, "search": "ga", "seed": 1}
    evolve_with_env("CartPole-v1", checkpoint_dir=folder, **settings)
    return RunFolder(folder)


@pytest.fixture
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is missing")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("chromium is missing")
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield opened
        opened.close()


def filmed(run):
    pytest.importorskip("imageio_ffmpeg", reason="the extra video is missing")
    from populora_envs import record_video

    if not run.video.exists():
        record_video(run.path)


@pytest.mark.parametrize("width", WIDTHS)
def test_the_page_in_a_browser(run, browser, width):
    pytest.importorskip("matplotlib", reason="the extra plots is missing")
    filmed(run)
    draw_plots(run)
    page = browser.new_page(viewport={"width": width, "height": 900})
    said = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("requestfailed", lambda request: said.append(request.url[:80]))
    page.goto(write_page(run).as_uri())
    page.wait_for_function("document.querySelector('video').readyState >= 2")
    assert said == []
    sizes = page.evaluate("[...document.images].map(i => i.naturalWidth)")
    assert len(sizes) == 4
    assert all(sizes)
    score = page.locator("#score")
    assert score.is_visible()
    box = score.bounding_box()
    assert box["y"] + box["height"] < 300
    assert box["x"] + box["width"] <= width
    assert page.evaluate("document.documentElement.scrollWidth") <= width, "it scrolls sideways"
    assert page.locator("h2").all_inner_texts() == [
        "The policy",
        "Plots",
        "Run",
        "Settings",
    ]


def test_the_page_shows_the_score_of_the_history_and_escapes_names(run):
    text = write_page(run).read_text()
    last = run.history()[-1]
    assert f">{last['champion_mean']:.4g}" in text
    assert f"{last['champion_episodes']} fresh episodes" in text
    assert "<b>run</b>" not in text
    assert "http://" not in text
    assert "https://" not in text


def test_a_run_without_environment_id_bears_the_name_of_its_folder(tmp_path):
    folder = tmp_path / "my run"
    evolve_with_env(Aim, linear(), num_generations=1, pop_size=2, horizon=4, checkpoint_dir=folder)
    assert "<title>my run</title>" in write_page(RunFolder(folder)).read_text()


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"holds no run: it has no config\.json"):
        RunFolder(tmp_path)


def test_a_run_without_a_generation_has_no_page_yet(run, tmp_path):
    shutil.copy(run.path / "config.json", tmp_path)
    with pytest.raises(ValueError, match="has no generation yet"):
        write_page(RunFolder(tmp_path))
