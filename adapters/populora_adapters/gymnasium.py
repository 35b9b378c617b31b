"""gymnasium: single environments, and vector environments in every autoreset mode."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gymnasium
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

from populora_adapters.duck import DuckEnvs
from populora_adapters.vectors import SlotResetVector, WaveVector
from populora_envs.adapter import Autoreset, close_all
from populora_envs.registry import near_names

if TYPE_CHECKING:
    from collections.abc import Callable

    from populora_envs.adapter import Adapter

_EXTRAS = {"box2d": "box2d", "mujoco": "mujoco", "ale": "atari"}


def adapt(envs: list[Any]) -> Adapter:
    """Return one adapter over single environments, or over one vector environment."""
    vectors = [env for env in envs if isinstance(env, VectorEnv)]
    if not vectors:
        return GymnasiumEnvs(envs)
    if len(envs) > 1:
        message = "a list may hold single environments, not vector environments: pass one of them"
        raise ValueError(message)
    env = vectors[0]
    if type(env) is SyncVectorEnv and all(
        member.observation_space == env.single_observation_space for member in env.envs
    ):
        return SyncMembers(env)
    mode = _mode(env)
    if isinstance(env.unwrapped, (SyncVectorEnv, AsyncVectorEnv)):
        _check_resets(env.unwrapped, mode)
        _build_worlds(env)
        return SlotResetVector(env, seeds_slots=True, rests=mode is AutoresetMode.DISABLED)
    if mode is AutoresetMode.DISABLED:
        return SlotResetVector(env, seeds_slots=False, rests=True)
    same = mode is AutoresetMode.SAME_STEP
    return WaveVector(env, Autoreset.SAME_STEP if same else Autoreset.NEXT_STEP)


def make(env_id: str, render_mode: str | None = None) -> Any:
    """Make one environment by its id.

    Raises:
        ValueError: for an unknown id, with near names.
        ImportError: where the simulator is not installed, with the extra that brings it.
    """
    try:
        return gymnasium.make(env_id, render_mode=render_mode)
    except gymnasium.error.DependencyNotInstalled as error:
        extras = [extra for word, extra in _EXTRAS.items() if word in str(error).lower()]
        hint = "".join(f': pip install "populora-envs[{extra}]"' for extra in extras[:1])
        message = f"{env_id} wants a package that is not installed ({error}){hint}"
        raise ImportError(message) from error
    except (gymnasium.error.Error, ModuleNotFoundError) as error:
        is_known = env_id in gymnasium.registry and not isinstance(
            error, gymnasium.error.DeprecatedEnv
        )
        if is_known:
            raise
        near = near_names(env_id, gymnasium.registry)
        message = f"there is no environment {env_id!r} ({error}); {near}"
        raise ValueError(message) from error


def members(envs: list[Any]) -> list[Any]:
    """Return single environments: those given, or the ones in a `SyncVectorEnv`."""
    return [member for env in envs for member in getattr(env.unwrapped, "envs", [env])]


def multiply(env: Any, num_envs: int) -> list[Any]:
    """Return `env` and rebuilt ones, `num_envs` in all, each from its spec and with its wrappers.

    Raises:
        ValueError: where it was not made by `gymnasium.make`, or has a wrapper that does not record
            its arguments.
    """
    rebuilt: list[Any] = []
    try:
        while len(rebuilt) < num_envs - 1:
            rebuilt.append(_rebuilt(env))
    except BaseException:
        close_all(rebuilt)
        raise
    return [env, *rebuilt]


def ids() -> list[str]:
    """Return what `make` takes of gymnasium's own environments."""
    own = [name for name, spec in gymnasium.registry.items() if _is_own(spec.entry_point)]
    return sorted(own)


def _is_own(entry_point: Any) -> bool:
    return str(entry_point).startswith("gymnasium.envs.")


def visible(env: Any) -> Any:
    """Return an environment like `env` that draws pictures, itself where it does.

    Raises:
        ValueError: where it draws none and cannot be rebuilt.
    """
    if getattr(env, "render_mode", None) == "rgb_array":
        return env
    return _rebuilt(env, render_mode="rgb_array")


def _rebuilt(env: Any, **settings: Any) -> Any:
    advice = "pass a factory of it, or a list of environments"
    if getattr(env, "spec", None) is None:
        message = f"{env} cannot be rebuilt, for gymnasium.make has not made it and it has no spec: {advice}"
        raise ValueError(message)
    try:
        made = gymnasium.make(env.spec, **settings)
    except Exception as error:
        message = f"{env} cannot be rebuilt from its spec ({error}): {advice}"
        raise ValueError(message) from error
    if str(made) != str(env):
        made.close()
        message = f"{env} cannot be rebuilt from its spec, which makes {made}: {advice}"
        raise ValueError(message)
    return made


def _check_resets(env: SyncVectorEnv | AsyncVectorEnv, mode: AutoresetMode) -> None:
    """Refuse the one kind in which a reset after an end is followed by another, unasked."""
    forgets = isinstance(env, AsyncVectorEnv) and not env.shared_memory
    if forgets and mode is AutoresetMode.NEXT_STEP:
        message = (
            "gymnasium's AsyncVectorEnv with shared_memory=False resets twice in the mode NEXT_STEP: "
            "pass shared_memory=True, or autoreset_mode=AutoresetMode.SAME_STEP"
        )
        raise ValueError(message)


def _build_worlds(env: VectorEnv[Any, Any, Any]) -> None:
    """Let PyBullet's walkers in other processes build their worlds; see the adapter of PyBullet."""
    if not isinstance(env.unwrapped, AsyncVectorEnv):
        return
    points = [str(getattr(spec, "entry_point", "")) for spec in env.unwrapped.get_attr("spec")]
    if any(point.startswith("pybullet_envs_gymnasium") for point in points):
        env.reset(seed=0)


def _mode(env: VectorEnv[Any, Any, Any]) -> AutoresetMode:
    """Return the autoreset mode that a vector environment declares, gymnasium's default else."""
    declared = env.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP)
    return declared if isinstance(declared, AutoresetMode) else AutoresetMode(declared)


class GymnasiumEnvs(DuckEnvs):
    """N single environments, stepped past the wrappers of `gymnasium.make` that only watch."""

    def __init__(self, envs: list[Any]) -> None:
        super().__init__(envs)
        self._steps = [_direct_step(env) for env in envs]
        self._walks = any(_is_walker(env) for env in envs)

    def _begin(self, slot: int, seed: int | None) -> Any:
        if self._walks:
            _renew_world(self._envs[slot])
        return super()._begin(slot, seed)


def _is_walker(env: Any) -> bool:
    return type(env.unwrapped).__module__ == "gymnasium.envs.box2d.bipedal_walker"


def _renew_world(env: Any) -> None:
    """Give a BipedalWalker a new world, in which nothing of the last episode is left.

    gymnasium does so for LunarLander; a walker in a used world goes a little otherwise.
    """
    inner = env.unwrapped
    if _is_walker(env) and inner.hull is not None:
        inner._destroy()
        inner.world = type(inner.world)()


class SyncMembers(GymnasiumEnvs):
    """The environments in a `SyncVectorEnv`, of which only those that act are stepped."""

    def __init__(self, env: SyncVectorEnv) -> None:
        super().__init__(list(env.envs))
        self._vector = env

    def close(self) -> None:
        """Close the vector environment."""
        self._vector.close()


def _direct_step(env: Any) -> Callable[[Any], Any]:
    """Return what steps `env` as its own step does, in fewer calls where it can be.

    `gymnasium.make` puts a `TimeLimit` around an `OrderEnforcing`, which wants a reset first, and a
    `PassiveEnvChecker`, which looks at the first step alone. Once it has looked, a step goes past both,
    and the limit is counted here on the wrapper's behalf.
    """
    inner, checkers = _past_watchers(env)
    if inner is env:
        return env.step  # type: ignore[no-any-return]
    advance = inner.step

    def step(action: Any) -> tuple[Any, Any, Any, Any, Any]:
        for checker in checkers:
            if not checker.checked_step:
                return env.step(action)  # type: ignore[no-any-return]
        observation, reward, terminated, truncated, info = advance(action)
        env._elapsed_steps += 1
        if env._elapsed_steps >= env._max_episode_steps:
            truncated = True
        return observation, reward, terminated, truncated, info

    return step


def _past_watchers(env: Any) -> tuple[Any, list[Any]]:
    """Return what lies below the watching wrappers of a `TimeLimit`, `env` itself where there are none."""
    if type(env) is not TimeLimit or "step" in vars(env):
        return env, []
    inner: Any = env.env
    checkers: list[Any] = []
    while type(inner) in (OrderEnforcing, PassiveEnvChecker) and "step" not in vars(inner):
        if type(inner) is PassiveEnvChecker:
            checkers.append(inner)
        inner = inner.env
    return (env, []) if inner is env.env else (inner, checkers)
