"""Videos of policies."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from populora_envs.camera import MOST_TILES, Filming, Recording, film
from populora_envs.policy import Policy
from populora_envs.run_folder import RunFolder, load_policy
from populora_envs.settings import at_least

if TYPE_CHECKING:
    import os

SUFFIXES = (".mp4", ".gif")


def record_video(
    policy: Policy | Sequence[Policy] | str | os.PathLike[str],
    env: Any = None,
    path: str | os.PathLike[str] | None = None,
    *,
    num_episodes: int = 1,
    horizon: int | None = None,
    seed: int = 0,
    fps: float | None = None,
) -> Recording:
    """Film a policy in an environment of its own, without a screen; wants the extra ``video``.

    It plays in a fresh process, with MuJoCo's graphics from EGL or OSMesa where there is no screen. The
    episodes are those that `EnvInteractor.evaluate_policy` plays first with the same seed.

    Args:
        policy: what `evolve_with_env` returned, the folder of a run, or a file of `Policy.save`; several
            policies, at most 64, are shown side by side.
        env: an id, a class, a factory or an environment; of a list or dict the first one. None means the
            environment of the run, which its folder knows where it was an id.
        path: of the file, ``.mp4`` or ``.gif``; None means ``video/best.mp4`` in the run's folder.
        num_episodes: of a single policy, one after the other.
        horizon: most steps of an episode; None means the environment's limit, else 1000.
        seed: of the episodes.
        fps: frames per second; None means real time.

    Returns:
        Where the file is, how many frames it has (one for the start of an episode and one for each step),
        and the returns.

    Raises:
        ValueError: where the simulator draws no pictures, or there is no environment or path.
        ImportError: where the extra ``video`` is not installed.
    """
    policies, folder = _policies(policy)
    if env is None:
        env = None if folder is None else folder.env_id
    if env is None:
        message = "a film wants env=, an id, a factory or an environment, for the policy knows none"
        raise ValueError(message)
    if path is None and folder is None:
        message = "a film wants path=, a file that ends in .mp4 or .gif"
        raise ValueError(message)
    file = Path(path) if path is not None else folder.video  # type: ignore[union-attr]
    _check(policies, file, at_least("num_episodes", num_episodes, 1), fps)
    if horizon is not None:
        at_least("horizon", horizon, 1)
    elif folder is not None:
        horizon = folder.config().get("horizon")
    return film(Filming(policies, env, file, num_episodes, horizon, seed, fps))


def _policies(given: Any) -> tuple[list[Policy], RunFolder | None]:
    if isinstance(given, Policy):
        return [given], None
    if isinstance(given, Sequence) and not isinstance(given, str):
        return list(given), None
    path = Path(given)
    if path.is_dir():
        folder = RunFolder(path)
        return [folder.policy()], folder
    return [load_policy(path)], None


def _check(policies: list[Policy], path: Path, num_episodes: int, fps: float | None) -> None:
    if path.suffix not in SUFFIXES:
        message = f"a film is a file that ends in {' or '.join(SUFFIXES)}, not {path.name!r}"
        raise ValueError(message)
    if not 1 <= len(policies) <= MOST_TILES:
        message = f"a film shows 1 to {MOST_TILES} policies, not {len(policies)}: pass some of them"
        raise ValueError(message)
    if len(policies) > 1 and num_episodes > 1:
        message = f"several policies play one episode each, not num_episodes={num_episodes}"
        raise ValueError(message)
    if fps is not None and not 0 < fps <= 1000:
        message = f"fps must be in (0, 1000], not {fps}"
        raise ValueError(message)
