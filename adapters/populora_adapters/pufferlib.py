"""PufferLib 3: native environments, emulated ones, and its vector environments."""

from __future__ import annotations

import inspect
import math
import os
import tempfile
import warnings
from contextlib import chdir, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from populora_adapters.duck import DuckEnvs
from populora_adapters.gymnasium import adapt as adapt_gymnasium
from populora_adapters.gymnasium import members
from populora_adapters.pettingzoo import adapt as adapt_pettingzoo
from populora_adapters.puffer_batches import Batch, Layout, Processes, action_space
from populora_adapters.single import SingleEnvs
from populora_envs.registry import near_names
from populora_envs.spaces import check_same

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from populora_adapters.single import Columns
    from populora_envs.adapter import Adapter

_INSTALL = """\
PufferLib 3.0.0 does not install beside a present NumPy by itself. With torch and a C compiler,
    bash .ci/build_pufferlib.sh
in a copy of this project's repository builds it with its native environments. Without these, which
does for emulated ones:
    pip install setuptools wheel && mkdir fix
    printf 'import builtins\\nbuiltins.c_extension_paths = []\\n' > fix/sitecustomize.py
    PYTHONPATH="$PWD/fix" NO_OCEAN=1 NO_TRAIN=1 pip install --no-deps --no-build-isolation pufferlib==3.0.0
    pip install --no-deps gym==0.26.2 gym_notices psutil"""

_KINDS = (
    *("Serial", "Multiprocessing", "Ray"),
    *("PufferEnv", "GymnasiumPufferEnv", "PettingZooPufferEnv", "PettingZooWrapper"),
)
"""PufferLib's classes that are told apart; all others only wrap an environment."""
_NO_IDS = frozenset({"blastar", "cpr", "gpudrive", "impulse_wars", "tactical"})
"""Names of PufferLib that make nothing of use, or what wants files from elsewhere while it plays."""

_NEVER = 2**30
"""Steps between two reports, which nobody reads; Connect4 fails where it has nothing to report."""


def adapt(envs: list[Any]) -> Adapter:
    """Return one adapter over emulated or wrapped environments of one kind, or over one batch.

    Raises:
        ValueError: for different kinds in one list, for several batches, and for what would give
            wrong numbers.
    """
    kinds = [_kind(env) for env in envs]
    odd = next((i for i, kind in enumerate(kinds) if kind != kinds[0]), None)
    if odd is not None:
        message = (
            f"environment {odd} is a {type(envs[odd]).__name__}, environment 0 a "
            f"{type(envs[0]).__name__}: pass different kinds as separate interactors"
        )
        raise ValueError(message)
    if kinds[0] in _SINGLE:
        return _SINGLE[kinds[0]](envs)
    if len(envs) > 1:
        message = (
            f"a {type(envs[0]).__name__} of PufferLib is a batch already: pass one of them, made with "
            'the num_envs you want, or an id such as "pufferlib/cartpole"'
        )
        raise ValueError(message)
    return _adapt_batch(envs[0])


def _kind(env: Any) -> str | None:
    """Return which of PufferLib's classes an environment is, None where it only wraps one."""
    for base in type(env).__mro__:
        if base.__name__ in _KINDS and base.__module__.partition(".")[0] == "pufferlib":
            return base.__name__
    return None


def _adapt_batch(env: Any) -> Adapter:
    """Return the adapter of a batch; the members of a `Serial` are played one by one where they can be.

    Raises:
        ValueError: for one whose members cannot be played together.
    """
    kind, members_kind = _kind(env), _kind(env.driver_env)
    is_native = members_kind == "PufferEnv"
    if type(env).__name__ == "Serial" and not is_native:
        return adapt(list(env.envs))
    if kind == "Ray" or members_kind == "PettingZooPufferEnv":
        message = (
            f"PufferLib's {type(env).__name__} over a {members_kind} has no adapter: use Serial"
        )
        raise ValueError(message)
    return (Processes if kind == "Multiprocessing" else Batch)(env, is_native=is_native)


def _adapt_wrapped(envs: list[Any]) -> Adapter:
    """Return gymnasium's adapter of environments in PufferLib's wrappers."""
    inside = members(envs) if all(hasattr(env, "unwrapped") for env in envs) else envs
    for env in inside:
        if _kind(getattr(env, "unwrapped", env)) is not None:
            message = f"{env} wraps an environment that PufferLib emulates: wrap it before that"
            raise ValueError(message)
    adapter: Any = adapt_gymnasium(envs)
    actions = [action_space(env) for env in inside]
    for slot, space in enumerate(actions):
        check_same(actions[0], space, slot, 0, "action")
    adapter.action_space = actions[0]
    return adapter  # type: ignore[no-any-return]


class EmulatedEnvs(SingleEnvs):
    """N environments that PufferLib emulates, with the observations of the environments inside.

    Raises:
        ValueError: where emulation loses some of an observation or an action, and as `SingleEnvs`.
    """

    def __init__(self, envs: list[Any]) -> None:
        inside = DuckEnvs([env.env for env in envs])
        self._layouts = [Layout(env) for env in envs]
        observed = [layout.space for layout in self._layouts]
        super().__init__(
            envs,
            list(zip(observed, map(action_space, envs), strict=True)),
            seeds_slots=inside.seeds_slots,
            time_limit=inside.time_limit,
        )
        self._steps = [_packed_step(env) if env.is_atn_emulated else env.step for env in envs]

    def _begin(self, slot: int, seed: int | None) -> Any:
        env = self._envs[slot]
        observation, _ = env.reset(seed=seed) if self.seeds_slots else env.reset()
        return self._layouts[slot].read_one(observation)

    def _columns(self, results: list[Any]) -> Columns | None:
        observations, rewards, terminated, truncated, _ = zip(*results, strict=True)
        read = self._layouts[0].read_one
        return list(map(read, observations)), rewards, terminated, truncated


def _packed_step(env: Any) -> Callable[[Any], Any]:
    """Return a step that gives choices in the int32 as which PufferLib reads them, whatever they are."""
    return lambda action: env.step(np.atleast_1d(np.asarray(action, dtype=np.int32)))


_SINGLE: dict[str | None, Callable[[list[Any]], Adapter]] = {
    None: _adapt_wrapped,
    "GymnasiumPufferEnv": EmulatedEnvs,
    "PettingZooPufferEnv": lambda envs: adapt_pettingzoo([env.env for env in envs]),
    "PettingZooWrapper": adapt_pettingzoo,
}


def make(env_id: str) -> Any:
    """Make ``"pufferlib/cartpole"`` with as few slots as it can have."""
    return make_batch(env_id, 1)


def make_batch(env_id: str, num_envs: int) -> Any:
    """Make a batch of at least `num_envs` slots, of as many worlds as these agents fill.

    Raises:
        ValueError: for an unknown name, with near ones.
        ImportError: where PufferLib is not installed, or was built without its native environments.
    """
    try:
        with _own_folder():
            return _made(env_id.removeprefix("pufferlib/").removeprefix("puffer_"), num_envs)
    except ImportError as error:
        error.add_note(_INSTALL)
        raise


def _made(name: str, num_envs: int) -> Any:
    from pufferlib import vector
    from pufferlib.ocean.environment import MAKE_FUNCTIONS, env_creator

    known = sorted(set(MAKE_FUNCTIONS) - _NO_IDS)
    if name not in known:
        message = (
            f"PufferLib has no native environment {name!r} for an id; {near_names(name, known)}"
        )
        raise ValueError(message)
    creator = env_creator(f"puffer_{name}")
    if not callable(creator):  # a name, where a part of the build was not found
        message = f"PufferLib was built without {name}"
        raise ImportError(message)
    taken = inspect.signature(creator).parameters
    if "num_envs" not in taken:
        if num_envs == 1:
            return creator()
        return vector.make(creator, num_envs=num_envs, backend=vector.Serial)
    settings = {name: _NEVER for name in ("log_interval", "report_interval") if name in taken}
    world = creator(num_envs=1, seed=0, **settings)
    count = math.ceil(num_envs / world.num_agents)
    if count == 1:
        return world
    world.close()
    return creator(num_envs=count, seed=0, **settings)


def ids() -> list[str]:
    """Return what `make` takes; ImportError where PufferLib, or its native part, is missing."""
    with _own_folder():
        from pufferlib.ocean.environment import MAKE_FUNCTIONS

        return [f"pufferlib/{name}" for name in sorted(set(MAKE_FUNCTIONS) - _NO_IDS)]


@contextmanager
def _own_folder() -> Iterator[None]:
    """Work in a folder of its own, and leave the warning filters as they were.

    When it is imported PufferLib puts a link into the current folder, by which some of its environments
    find their files when they are made, and silences all deprecation warnings.
    """
    with tempfile.TemporaryDirectory() as folder, chdir(folder), warnings.catch_warnings():
        import pufferlib

        link = Path(folder, "resources")
        if not os.path.lexists(link):
            link.symlink_to(Path(pufferlib.__path__[0], "resources"))
        yield
