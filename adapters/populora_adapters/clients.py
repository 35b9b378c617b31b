"""Environments that share one physics client would move each other's bodies: they are found and refused."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from populora_envs.adapter import inside_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_NAMES = frozenset(
    {
        *("_p", "p", "client", "_client", "CLIENT", "client_id", "clientId", "bullet_client"),
        *("physics_client", "physicsClient", "physicsClientId", "physics_client_id"),
        *("_physics_client_id", "_pybullet_client", "pybullet_client", "_bullet_client"),
    }
)
"""How environments on PyBullet call the client, or its number, that holds their world."""

_MOST_CLIENTS = 1024
"""PyBullet numbers the clients of a process from 0 to one less."""

_ADVICE = (
    "let each connect a client of its own, and pass physicsClientId to every function of pybullet, "
    "or use pybullet_utils.bullet_client.BulletClient, or play one alone (num_envs=1)"
)


def check_clients(envs: Sequence[Any]) -> None:
    """Refuse environments of which two hold the same PyBullet client, as copies do.

    Raises:
        ValueError: naming both.
    """
    if "pybullet" not in sys.modules:
        return
    first: dict[int, int] = {}
    for number, env in enumerate(envs):
        for client in set(_clients(env)):
            other = first.setdefault(client, number)
            if other != number:
                message = (
                    f"environments {other} and {number} share PyBullet's physics client {client}, so "
                    "one would move the other's bodies: make each anew (gymnasium.make, or your "
                    "class) instead of copying, and let each connect a client of its own"
                )
                raise ValueError(message)


def check_worlds(envs: Mapping[int, Any]) -> None:
    """Refuse environments that have built their bodies in fewer worlds than they are.

    Functions of pybullet that are not told a client take client 0, whatever an environment connected.

    Args:
        envs: by their numbers, those that have begun an episode.

    Raises:
        ValueError: naming one that has none of its own.
    """
    if "pybullet" not in sys.modules:
        return
    on_bullet = [number for number, env in envs.items() if _is_on_bullet(env)]
    worlds = _worlds()
    if not worlds or not on_bullet:
        return
    for number in on_bullet:
        own = set(_clients(envs[number]))
        if own and not own & worlds:
            message = (
                f"environment {number} has PyBullet's physics client {min(own)} and built nothing in "
                f"it, but in another's, so one would move the other's bodies: {_ADVICE}"
            )
            raise ValueError(message)
    if len(worlds) < len(on_bullet):
        message = (
            f"{len(on_bullet)} environments built their bodies in {len(worlds)} of PyBullet's physics "
            f"clients, so one would move the other's: {_ADVICE}"
        )
        raise ValueError(message)


def _worlds() -> set[int]:
    """Return the numbers of the clients that hold bodies."""
    bullet = sys.modules["pybullet"]
    connected = filter(bullet.isConnected, range(_MOST_CLIENTS))
    return {client for client in connected if bullet.getNumBodies(physicsClientId=client)}


def _is_on_bullet(env: Any) -> bool:
    return any(True for _ in _clients(env)) or _imports_bullet(_inner(env))


def _imports_bullet(env: Any) -> bool:
    """Return whether a module that defines the environment's class has imported pybullet."""
    modules = (sys.modules.get(base.__module__) for base in type(env).__mro__)
    found = (value for module in modules for value in vars(module or ModuleType("")).values())
    return any(
        isinstance(value, ModuleType) and value.__name__.partition("_")[0] == "pybullet"
        for value in found
    )


def _inner(env: Any) -> Any:
    inner = inside_of(env)
    return env if inner is None else inner


def _clients(env: Any) -> Iterator[int]:
    """Yield the numbers of the clients that an environment holds."""
    inner = _inner(env)
    for name, value in getattr(inner, "__dict__", {}).items():
        if name in _NAMES:
            number = getattr(value, "_client", value)
            is_told = number is not value or _imports_bullet(inner)
            if is_told and type(number) is int and number >= 0:
                yield number
