"""Environments that share one physics client would move each other's bodies: they are found and refused."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_NAMES = frozenset(
    {
        *("_p", "p", "client", "_client", "CLIENT", "client_id", "clientId", "bullet_client"),
        *("physics_client", "physicsClient", "physicsClientId", "physics_client_id"),
        *("_physics_client_id", "_pybullet_client", "pybullet_client", "_bullet_client"),
    }
)
"""How environments on PyBullet call the client, or its number, that holds their world."""


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


def _clients(env: Any) -> Iterator[int]:
    """Yield the numbers of the clients that an environment holds."""
    inner = getattr(env, "unwrapped", None)
    for name, value in getattr(env if inner is None else inner, "__dict__", {}).items():
        if name in _NAMES:
            number = getattr(value, "_client", value)
            if type(number) is int and number >= 0:
                yield number
