"""Films policies, in a process of its own: pictures want graphics libraries chosen before a simulator loads."""

from __future__ import annotations

import ctypes.util
import dataclasses
import math
import os
import sys
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, NamedTuple

import cloudpickle
import numpy as np

from populora_envs import simulators
from populora_envs.adapter import team_of
from populora_envs.extras import wanted
from populora_envs.files import PARTIAL
from populora_envs.processes import Spawned, describe_exit, end_all, leave_interrupts_to_parent
from populora_envs.scenes import set_scene
from populora_envs.seeds import Purpose, job_seeds

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from populora_envs.adapter import Adapter
    from populora_envs.policy import Policy
    from populora_envs.scenes import Scene

DEFAULT_HORIZON = 1000
"""Steps of an episode that neither the user nor the environment ends."""

MOST_TILES = 64
"""Policies side by side in one video."""

GRID_WIDTH = 1280
"""Pixels of a row of several policies, at most."""


class Recording(NamedTuple):
    """What was filmed."""

    path: Path
    frames: int
    """Per episode one for its start and one for each step; of several policies those of the longest."""
    fps: float
    returns: tuple[float, ...]
    """Of each policy, or of each episode of a single one."""


@dataclasses.dataclass(frozen=True)
class Filming:
    """What to film.

    Attributes:
        policies: one, or several for pictures side by side.
        source: an id, a class, a factory or an environment.
        path: of the file, ``.mp4`` or ``.gif``.
        num_episodes: of a single policy, one after the other.
        horizon: most steps of an episode; None means the environment's limit, else 1000.
        seed: of the episodes.
        fps: frames per second; None means real time.
    """

    policies: Sequence[Policy]
    source: Any
    path: Path
    num_episodes: int
    horizon: int | None
    seed: int
    fps: float | None

    def shoot(self) -> Recording:
        """Play and write the file, which is there whole or not at all."""
        scene = set_scene(self.source)
        try:
            fps = self.fps or scene.fps
            seeds = job_seeds(self.seed, Purpose.REPORT, 0, range(self.num_episodes))
            episodes = [
                Episode(p, scene, seed, self.horizon) for p in self.policies for seed in seeds
            ]
            if len(self.policies) > 1:
                tile = math.ceil(math.sqrt(len(episodes)))
                films = [[_shrunk(f, GRID_WIDTH // tile) for f in episode] for episode in episodes]
                frames: Iterator[np.ndarray] = _side_by_side(films, tile)
            else:
                frames = (frame for episode in episodes for frame in episode)
            count = _write(self.path, frames, fps)
            return Recording(self.path, count, fps, tuple(e.total for e in episodes))
        finally:
            if scene.env is not self.source:
                scene.env.close()


class Episode:
    """One episode of a policy as an iterator of pictures, the first of its start.

    Attributes:
        total: the return so far.
    """

    def __init__(self, policy: Policy, scene: Scene, seed: int, horizon: int | None) -> None:
        self.policy, self.scene, self.seed, self.horizon = policy, scene, seed, horizon
        self.total = 0.0

    def __iter__(self) -> Iterator[np.ndarray]:
        adapter = simulators.adapt([self.scene.env])
        team = np.array(team_of(adapter))
        count = _one_world(adapter, len(team))
        self.policy.check_fits(adapter.observation_space, adapter.action_space)
        observation = adapter.reset([self.seed] * count if adapter.seeds_slots else None)
        yield self.scene.draw()
        for _ in range(self.horizon or adapter.time_limit or DEFAULT_HORIZON):
            transition = adapter.step(self.policy.act(observation))
            observation = transition.observation
            self.total += float(team @ transition.reward)
            yield self.scene.draw()
            if (transition.terminated | transition.truncated).all():
                break


def _one_world(adapter: Adapter, agents: int) -> int:
    if adapter.num_slots != agents:
        message = (
            f"a film shows one environment, and this is a batch of {adapter.num_slots}: pass an id or a "
            "factory of a single one"
        )
        raise ValueError(message)
    return agents


def _shrunk(frame: np.ndarray, width: int) -> np.ndarray:
    from PIL import Image

    if frame.shape[1] <= width:
        return frame
    height = round(frame.shape[0] * width / frame.shape[1])
    return np.asarray(Image.fromarray(frame).resize((width, height)))


def _side_by_side(films: list[list[np.ndarray]], columns: int) -> Iterator[np.ndarray]:
    """Yield pictures of all films together; one that is over stays as it ended, darker."""
    films = films + [[np.zeros_like(films[0][0])]] * (-len(films) % columns)
    for step in range(max(map(len, films))):
        tiles = [film[step] if step < len(film) else film[-1] // 2 for film in films]
        rows = [np.concatenate(tiles[i : i + columns], 1) for i in range(0, len(tiles), columns)]
        yield np.concatenate(rows)


def _encoder() -> Any:
    """Return what opens a file for frames; ImportError where the extra is missing."""
    with wanted("imageio_ffmpeg", "a video"):
        import imageio.v2 as imageio
        import imageio_ffmpeg  # noqa: F401 - without it the first frame would fail
    return imageio.get_writer


def _write(path: Path, frames: Iterator[np.ndarray], fps: float) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    is_gif = path.suffix == ".gif"
    settings = (
        {"duration": 1000 / fps, "loop": 0} if is_gif else {"fps": fps, "macro_block_size": 2}
    )
    partial = path.with_name(f".{path.stem}{PARTIAL}{path.suffix}")
    count = 0
    try:
        with _encoder()(partial, **settings) as writer:
            for frame in frames:
                writer.append_data(frame)
                count += 1
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return count


def film(job: Filming) -> Recording:
    """Film in a fresh process, or in this one where the environment cannot be sent to another.

    Raises:
        RuntimeError: where that process dies.
        Exception: what the simulator raises.
    """
    _encoder()
    try:
        sent = cloudpickle.dumps(job)
    except Exception:  # environments fail at this in every possible way
        with _graphics():
            return job.shoot()
    worker = Spawned(__name__)
    try:
        worker.channel.send_bytes(sent)
        reply = cloudpickle.loads(worker.channel.recv_bytes())
    except EOFError as error:
        message = f"the process that films {describe_exit(worker.wait(1.0))}"
        raise RuntimeError(message) from error
    finally:
        end_all([worker])
    if isinstance(reply, Exception):
        raise reply
    return reply  # type: ignore[no-any-return]


def run_spawned(descriptor: int) -> None:
    """Film what the process that has spawned this one sends, and answer it."""
    channel = Connection(descriptor)
    leave_interrupts_to_parent()
    sent = channel.recv_bytes()
    with _graphics():
        try:
            reply: Any = cloudpickle.loads(sent).shoot()
        except Exception as error:
            reply = error
    try:
        answer = cloudpickle.dumps(reply)
    except Exception:
        answer = cloudpickle.dumps(RuntimeError(f"{type(reply).__name__}: {reply}"))
    channel.send_bytes(answer)
    channel.close()
    # graphics libraries complain when an interpreter takes them down
    os._exit(0)


@contextmanager
def _graphics() -> Iterator[None]:
    """Choose what MuJoCo and pygame draw with where there is no screen and the user has not chosen."""
    chosen = {"PYGAME_HIDE_SUPPORT_PROMPT": "1"}
    if sys.platform == "linux" and not os.environ.get("DISPLAY"):
        chosen["SDL_VIDEODRIVER"] = "dummy"
        library = next((n for n in ("EGL", "OSMesa") if ctypes.util.find_library(n)), None)
        if library is not None:
            chosen["MUJOCO_GL"] = library.lower()
    own = {name: value for name, value in chosen.items() if name not in os.environ}
    os.environ.update(own)
    try:
        yield
    finally:
        for name in own:
            del os.environ[name]
