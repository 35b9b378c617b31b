"""Films: frames that differ and are not blank, as many as there are steps, without a screen."""

import ctypes.util
import os

import gymnasium
import numpy as np
import pytest
from torch import nn

from populora_envs import Policy, evolve_with_env, interact_with_env, record_video
from tests.tiny import Aim, linear

pytest.importorskip("imageio_ffmpeg", reason="the extra video is missing")

# the reader of these tests leaves its pipes to the garbage collector
pytestmark = pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")

SMALL = {"num_generations": 1, "pop_size": 4, "seed": 1, "horizon": 30}

needs_graphics = pytest.mark.skipif(
    not (os.environ.get("DISPLAY") or any(map(ctypes.util.find_library, ("EGL", "OSMesa")))),
    reason="no EGL, OSMesa or screen for MuJoCo to draw with",
)


def frames_of(path):
    import imageio.v2 as imageio

    with imageio.get_reader(path) as reader:
        return [np.asarray(frame) for frame in reader]


def check(recording, steps, size=None):
    frames = frames_of(recording.path)
    assert len(frames) == recording.frames == steps + 1
    assert all(frame.std() > 5 for frame in frames), "a frame is blank"
    assert np.abs(frames[0].astype(float) - frames[-1]).max() > 40, "nothing moves"
    assert size is None or frames[0].shape == size
    return frames


def evolved(env, folder, **settings):
    evolve_with_env(env, checkpoint_dir=folder, **{**SMALL, **settings})
    return folder


def test_a_run_is_filmed_from_its_folder(tmp_path):
    folder = evolved("CartPole-v1", tmp_path / "run")
    recording = record_video(folder)
    assert recording.path == folder / "video" / "best.mp4"
    steps = round(recording.returns[0])  # CartPole pays 1 for each
    check(recording, steps, (400, 600, 3))
    assert recording.fps == 50


def test_the_film_shows_an_episode_that_the_policy_is_scored_on(tmp_path):
    policy = evolve_with_env("CartPole-v1", **SMALL)
    recording = record_video(policy, "CartPole-v1", tmp_path / "a.mp4", num_episodes=2, seed=7)
    with interact_with_env("CartPole-v1", seed=7) as interactor:
        score = interactor.evaluate_policy(policy, num_episodes=2)
    assert list(recording.returns) == score.returns.tolist()
    check(recording, int(score.lengths.sum()) + 1)  # each episode has a frame for its start


@needs_graphics
@pytest.mark.parametrize("env", ["dm_control/cheetah-run", "HalfCheetah-v5"])
def test_mujoco_is_filmed_without_a_screen(env, tmp_path):
    folder = evolved(env, tmp_path / "run")
    assert "MUJOCO_GL" not in os.environ or os.environ["MUJOCO_GL"]
    check(record_video(folder), 30)


@needs_graphics
def test_instances_of_dm_control_are_filmed_and_left_as_they_are(tmp_path):
    suite = pytest.importorskip("dm_control.suite", reason="dm_control is missing")
    envs = [suite.load("pendulum", "swingup") for _ in range(2)]
    evolve_with_env(envs, checkpoint_dir=tmp_path, video=True, **SMALL)
    assert len(frames_of(tmp_path / "video" / "best.mp4")) == 31


@pytest.mark.filterwarnings("ignore:text observations are left out")
@pytest.mark.parametrize(
    ("env", "package"),
    [
        ("MiniGrid-Empty-5x5-v0", "minigrid"),
        ("pybullet/InvertedPendulumBulletEnv-v0", "pybullet_envs_gymnasium"),
        ("LunarLander-v3", "Box2D"),
    ],
)
def test_other_simulators_are_filmed(env, package, tmp_path):
    pytest.importorskip(package, reason="the simulator is missing")
    policy = evolve_with_env(env, **SMALL)
    recording = record_video(policy, env, tmp_path / "a.mp4", horizon=15)
    assert 2 <= len(frames_of(recording.path)) == recording.frames <= 16


def test_an_instance_is_made_again_with_pictures(tmp_path):
    env = gymnasium.make("CartPole-v1")
    policy = evolve_with_env("CartPole-v1", **SMALL)
    recording = record_video(policy, env, tmp_path / "a.gif", fps=10, horizon=12)
    assert recording.path.read_bytes().startswith(b"GIF89a")
    assert recording.frames == min(12, round(recording.returns[0])) + 1
    assert env.render_mode is None


class Drawn(Aim):
    """Draws where the point is, or what else it is told to."""

    metadata = {"render_fps": 7}  # noqa: RUF012 - as gymnasium has it

    def __init__(self, picture=None):
        super().__init__()
        self.picture = picture

    def render(self):
        if self.picture is not None:
            return self.picture
        frame = np.zeros((37, 50, 3), np.uint8)
        frame[:, : self.count * 5 + 3] = 200
        return frame

    def reset(self, **settings):
        self.count = 0
        return super().reset(**settings)

    def step(self, action):
        self.count += 1
        return super().step(action)

    render_mode = "rgb_array"


def test_an_environment_of_ones_own_that_draws(tmp_path):
    policy = evolve_with_env(Aim, linear(), **SMALL)
    recording = record_video(policy, Drawn, tmp_path / "a.mp4", horizon=6)
    assert recording.fps == 7
    assert len(frames_of(recording.path)) == recording.frames


def test_several_policies_are_shown_side_by_side(tmp_path):
    with interact_with_env("CartPole-v1", seed=2) as interactor:
        population = interactor.population(pop_size=5)
        policies = [interactor.policy(population.merge_(i)) for i in range(5)]
    recording = record_video(policies, "CartPole-v1", tmp_path / "grid.mp4", horizon=20)
    assert len(recording.returns) == 5
    frames = frames_of(recording.path)
    assert len(frames) == recording.frames == round(max(recording.returns)) + 1
    height, width, _ = frames[0].shape
    assert (width, height) == (3 * 426, 2 * 284)
    assert frames[0][height // 2 :, 2 * width // 3 :].max() < 20, "the sixth place is empty"


@pytest.mark.parametrize(
    ("picture", "says"),
    [
        (np.zeros((5, 5)), r"shape \(5, 5\) and dtype float64"),
        ("text", "render gave str"),
        (np.zeros((5, 5, 3)), "dtype float64"),
    ],
)
def test_what_is_no_picture_says_so_and_leaves_no_file(picture, says, tmp_path):
    policy = evolve_with_env(Aim, linear(), **SMALL)
    with pytest.raises(ValueError, match=says):
        record_video(policy, lambda: Drawn(picture), tmp_path / "a.mp4")
    assert list(tmp_path.iterdir()) == []


def test_a_simulator_that_cannot_draw_says_why_and_the_run_goes_on(tmp_path):
    with pytest.warns(UserWarning, match=r"the film could not be made: .*no spec"):
        policy = evolve_with_env(Aim, linear(), checkpoint_dir=tmp_path, video=True, **SMALL)
    assert isinstance(policy, Policy)
    assert not (tmp_path / "video").exists()


def test_a_process_that_dies_while_it_films_is_an_error(tmp_path):
    policy = evolve_with_env(Aim, linear(), **SMALL)
    with pytest.raises(RuntimeError, match="the process that films was killed by SIGKILL"):
        record_video(policy, lambda: os.kill(os.getpid(), 9), tmp_path / "a.mp4")


@pytest.mark.parametrize(
    ("arguments", "settings", "says"),
    [
        (("policy", None, "a.mp4"), {}, "wants env="),
        (("policy", "CartPole-v1", None), {}, "wants path="),
        (("policy", "CartPole-v1", "a.avi"), {}, r"ends in \.mp4 or \.gif"),
        (("policy", "CartPole-v1", "a.mp4"), {"fps": 0}, r"fps must be in \(0, 1000\]"),
        (("policy", "CartPole-v1", "a.mp4"), {"num_episodes": 0}, "num_episodes must be at least"),
        (("policy", "CartPole-v1", "a.mp4"), {"horizon": 0}, "horizon must be at least 1"),
        (("policy", "Acrobot-v1", "a.mp4"), {}, "was made for observations"),
        (("policy", "envpool/CartPole-v1", "a.mp4"), {}, "draws no pictures here"),
        (([], "CartPole-v1", "a.mp4"), {}, "shows 1 to 64 policies, not 0"),
        (("nowhere", "CartPole-v1", "a.mp4"), {}, "neither a run nor a policy"),
    ],
)
def test_wrong_inputs(arguments, settings, says, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if "envpool" in str(arguments[1]):
        pytest.importorskip("envpool", reason="EnvPool is missing")
    if arguments[0] == "policy":
        model = nn.Linear(4, 2)
        with interact_with_env("CartPole-v1") as interactor:
            arguments = (interactor.policy(model), *arguments[1:])
    with pytest.raises(ValueError, match=says):
        record_video(*arguments, **settings)


def test_a_missing_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("populora_envs.camera.Spawned", None)  # nothing may be started for it
    monkeypatch.setitem(__import__("sys").modules, "imageio_ffmpeg", None)
    policy = evolve_with_env(Aim, linear(), **SMALL)
    with pytest.raises(ImportError, match=r'pip install "populora-envs\[video\]"'):
        record_video(policy, Drawn, tmp_path / "a.mp4")
