"""ManiSkill: environments on the CPU one by one, batches on the GPU, and its own vector environment."""

from __future__ import annotations

import gc
import importlib
import itertools
import logging
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import SyncVectorEnv

from populora_adapters.duck import DuckEnvs
from populora_adapters.gymnasium import members
from populora_adapters.tensors import (
    BatchBySlots,
    BatchInWaves,
    TensorBatch,
    layers,
    longest_episode,
    single_space,
)
from populora_envs.adapter import Autoreset, close_all
from populora_envs.registry import near_names
from populora_envs.spaces import to_numpy

if TYPE_CHECKING:
    from populora_envs.adapter import Adapter

FIRST_SEED = 2022
"""From this ManiSkill builds the scene of an environment when it is made."""

COLLECT_EVERY = 32
"""Scenes that are built anew until the memory of the old ones is freed, 0.5 to 2 MB each."""

_rebuilds = itertools.count(1)

_SETTINGS = {
    "obs_mode": "state",
    "render_mode": None,
    "sim_backend": "cpu",
    "render_backend": "none",
    "num_envs": 1,
}
_WITHOUT_DRIVER = ("vk::", "vulkan", "rendering device")


def adapt(envs: list[Any]) -> Adapter:
    """Return one adapter over environments on the CPU, also those in a `SyncVectorEnv`, or over one batch.

    Raises:
        ValueError: for a batch among others, for one whose scene is rebuilt now and then, and for a
            wrapper around a `SyncVectorEnv`.
    """
    if len(envs) == 1 and type(envs[0]) is SyncVectorEnv:
        envs = members(envs)
    if any(isinstance(env.unwrapped, SyncVectorEnv) for env in envs):
        message = (
            "pass the environments in a SyncVectorEnv as a list, or it alone without a wrapper"
        )
        raise ValueError(message)
    batches = [env for env in envs if _is_batch(env)]
    if not batches:
        return ManiSkillEnvs([CpuEnv(env) for env in envs])
    if len(envs) > 1:
        message = (
            "a list may hold ManiSkill environments on the CPU, not batches: pass one batch, with as "
            "many sub-environments as you need"
        )
        raise ValueError(message)
    return _adapt_batch(batches[0])


def make(env_id: str) -> Any:
    """Make ``"maniskill/PickCube-v1"`` on the CPU, with the observation mode "state" and no pictures.

    Raises:
        ValueError: for an unknown name, with near ones.
        ImportError: where ManiSkill is not installed.
        FileNotFoundError: where the task needs files that have not been downloaded.
        RuntimeError: where there is no Vulkan driver, which most tasks need.
    """
    name = env_id.removeprefix("maniskill/")
    try:
        importlib.import_module("mani_skill.envs")
        from mani_skill.utils.registration import REGISTERED_ENVS
    except ImportError as error:
        error.add_note('to get it: pip install "populora-envs[maniskill]"')
        raise

    if name not in REGISTERED_ENVS:
        message = f"ManiSkill has no task {name!r}; {near_names(name, REGISTERED_ENVS)}"
        raise ValueError(message)
    _check_files(name, REGISTERED_ENVS[name].asset_download_ids or ())
    try:
        return gymnasium.make(name, **_SETTINGS)  # type: ignore[arg-type]
    except RuntimeError as error:
        if any(word in str(error).lower() for word in _WITHOUT_DRIVER):
            raise RuntimeError(_no_driver(name, error)) from error
        raise
    except EOFError as error:
        message = (
            f"ManiSkill asked whether it may download the robot of {name}, and nobody was there to "
            "answer: set MS_SKIP_ASSET_DOWNLOAD_PROMPT=1, which says yes"
        )
        raise FileNotFoundError(message) from error


def ids() -> list[str]:
    """Return what `make` takes; ImportError where ManiSkill is missing."""
    importlib.import_module("mani_skill.envs")
    from mani_skill.utils.registration import REGISTERED_ENVS

    return [f"maniskill/{name}" for name in sorted(REGISTERED_ENVS)]


def _no_driver(name: str, error: RuntimeError) -> str:
    return (
        f"ManiSkill could not make {name} ({error}): most of its tasks give their bodies a look even "
        "where nothing is rendered, and need a Vulkan driver for it, as a rule part of "
        "that of your GPU. On a machine without one only few tasks run, such as FMBAssembly1Easy-v1"
    )


def _check_files(name: str, wanted: Any) -> None:
    """Refuse a task whose files are missing, for which ManiSkill would ask the keyboard."""
    from mani_skill.utils import assets

    for group in wanted:
        is_group = group in assets.DATA_GROUPS
        ids = (
            assets.expand_data_group_into_individual_data_source_ids(group) if is_group else [group]
        )
        missing = [file for file in ids if not assets.is_data_source_downloaded(file)]
        if missing:
            message = (
                f"{name} needs files that are not there ({', '.join(missing[:3])}): download them with "
                f"python -m mani_skill.utils.download_asset {name}"
            )
            raise FileNotFoundError(message)


def multiply(env: Any, num_envs: int) -> list[Any]:
    """Return `env` and environments made with the same settings, `num_envs` in all.

    Raises:
        ValueError: where it has wrappers of its own, or is a batch.
    """
    advice = "pass a factory of it, or a list of environments"
    spec = getattr(env.unwrapped, "spec", None)
    if spec is None or _is_batch(env):
        message = f"{env} cannot be copied, for gymnasium.make has not made it on the CPU: {advice}"
        raise ValueError(message)
    rebuilt: list[Any] = []
    try:
        while len(rebuilt) < num_envs - 1:
            limit = longest_episode(env)
            rebuilt.append(gymnasium.make(spec.id, max_episode_steps=limit, **spec.kwargs))
            if str(rebuilt[-1]) != str(env):
                message = f"{env} cannot be copied, its settings make {rebuilt[-1]}: {advice}"
                raise ValueError(message)
    except BaseException:
        close_all(rebuilt)
        raise
    return [env, *rebuilt]


def _vector_of(env: Any) -> Any:
    """Return the `ManiSkillVectorEnv` among the layers of an environment, None where there is none."""
    from mani_skill.vector.wrappers.gymnasium import ManiSkillVectorEnv

    return next((layer for layer in layers(env) if isinstance(layer, ManiSkillVectorEnv)), None)


def _is_batch(env: Any) -> bool:
    inner = env.unwrapped
    return _vector_of(env) is not None or inner.num_envs > 1 or inner.gpu_sim_enabled


def _is_unbatched(env: Any) -> bool:
    """Return whether a wrapper has already taken off the dimension of the batch."""
    from mani_skill.utils.wrappers.gymnasium import CPUGymWrapper

    return any(isinstance(layer, CPUGymWrapper) for layer in layers(env))


class CpuEnv:
    """One environment on the CPU in NumPy, without the dimension of the batch.

    A reset alone does not make an episode depend on its seed alone: in many tasks forces and contacts
    of the last episode live on in the physics. So before a reset with a seed the scene is built anew,
    as it was when the environment was made; one that was chosen later by a reset with
    ``options={"reconfigure": True}`` is not kept. It takes about as long as 10 to 20 steps.

    Args:
        env: with any wrappers; `CPUGymWrapper` may be one of them.
    """

    def __init__(self, env: Any) -> None:
        self.env, self.unwrapped = env, env.unwrapped
        self._is_batched = not _is_unbatched(env)
        self.observation_space = self._space("observation")
        self.action_space = self._space("action")
        self.max_episode_steps = longest_episode(env)

    def _space(self, what: str) -> Any:
        if self._is_batched:
            return single_space(self.env, what)
        return getattr(self.env, f"{what}_space")

    def reset(self, seed: int | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode; with a seed, as in an environment that was made just now."""
        if seed is not None and self.unwrapped.reconfiguration_freq != 1:
            _rebuild(self.unwrapped)
        observation, info = self.env.reset(seed=seed)
        return self._unbatched(observation), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take one action, as gymnasium's environments do."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        observation = self._unbatched(observation)
        return observation, to_numpy(reward), bool(terminated), bool(truncated), info

    def _unbatched(self, values: Any) -> Any:
        if isinstance(values, dict):
            return {key: self._unbatched(value) for key, value in values.items()}
        return to_numpy(values)[0] if self._is_batched else values

    def close(self) -> None:
        """Close the environment."""
        self.env.close()


def _rebuild(inner: Any) -> None:
    """Build the scene as it was when its environment was made, without what ManiSkill says of it again.

    Most of the time of this goes into a full collection of Python's garbage, which here looks at new
    objects alone in all but every `COLLECT_EVERY`-th time.
    """
    log = logging.getLogger("mani_skill")
    level, is_full = log.level, next(_rebuilds) % COLLECT_EVERY == 0 or gc.get_freeze_count() > 0
    log.setLevel(logging.ERROR)
    if not is_full:
        gc.freeze()
    try:
        inner.reset(seed=FIRST_SEED, options={"reconfigure": True})
    finally:
        if not is_full:
            gc.unfreeze()
        log.setLevel(level)


class ManiSkillEnvs(DuckEnvs):
    """N environments on the CPU, each seeded on its own."""

    def __init__(self, envs: list[CpuEnv]) -> None:
        super().__init__(envs)
        self.notes = tuple(dict.fromkeys(note for env in envs for note in _reward_note(env.env)))


class ManiSkillBatch(TensorBatch):
    """Sub-environments that are stepped together; some of them can be reset."""

    def reset(
        self, *, seed: int | list[int] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin episodes; the mask ``options["reset_mask"]`` says in which slots, all without it."""
        if options is not None:
            slots = np.flatnonzero(options["reset_mask"])
            options = {"env_idx": torch.as_tensor(slots, device=self._batch.unwrapped.device)}
        return super().reset(seed=seed, options=options)


def _adapt_batch(env: Any) -> Adapter:
    inner, vector = env.unwrapped, _vector_of(env)
    batch = ManiSkillBatch(
        env, single_space(env, "observation"), single_space(env, "action"), longest_episode(env)
    )
    notes = (*_reward_note(env), *_target_note(inner))
    if vector is not None and vector.auto_reset:
        return BatchInWaves(batch, Autoreset.SAME_STEP, notes)
    if inner.num_envs > 1 and inner.reconfiguration_freq != 0:
        message = (
            f"{env} rebuilds its scene every {inner.reconfiguration_freq} resets, and a batch can only "
            "do so as a whole: make it with reconfiguration_freq=0"
        )
        raise ValueError(message)
    return BatchBySlots(batch, notes)


def _reward_note(env: Any) -> tuple[str, ...]:
    """Return a warning where nothing is paid, or where success misses the rewards of the steps left."""
    inner = env.unwrapped
    if inner.reward_mode == "none":
        others = ", ".join(mode for mode in inner.SUPPORTED_REWARD_MODES if mode != "none")
        return (
            f"{env} pays nothing, for its reward_mode is none: choose another ({others or 'it has none'})",
        )
    if any(getattr(layer, "ignore_terminations", False) for layer in layers(env)):
        return ()
    if inner.reward_mode == "sparse" or "success" not in inner.get_info():
        return ()
    return (
        "success ends an episode of this ManiSkill task, and with dense rewards the steps that are left "
        "would have paid more: the fitness of staying near can be higher than that of success; wrap "
        "it in CPUGymWrapper or ManiSkillVectorEnv with ignore_terminations=True, or take sparse rewards",
    )


def _target_note(inner: Any) -> tuple[str, ...]:
    """Return a warning where a reset of some sub-environments reaches the controllers of the others."""
    mode = str(getattr(inner, "control_mode", ""))
    if inner.num_envs == 1 or "target" not in mode:
        return ()
    return (
        f"with the control mode {mode} ManiSkill sets the targets of all sub-environments when one of them "
        "is reset: choose a control mode without targets",
    )
