"""The check of an adapter: environments are made, driven, counted and closed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from populora_envs import simulators
from populora_envs.adapter import close_all, inside_of, team_of
from populora_envs.settings import at_least
from populora_envs.sources import as_factory, is_single
from populora_envs.testing.accounting import check_accounting
from populora_envs.testing.behaviour import check_behaviour, measure_speed
from populora_envs.testing.report import AdapterReport
from populora_envs.testing.rules import check_attributes
from populora_envs.testing.words import action_words

if TYPE_CHECKING:
    from collections.abc import Callable

    from populora_envs.adapter import Adapter


def check_adapter(
    make_env: Callable[[], Any] | str, num_envs: int = 2, steps: int = 50
) -> AdapterReport:
    """Drive the adapter of an environment with random actions and check what it gives.

    Looked at are shapes and dtypes, seeds, restarts of some slots, ends by a time limit, and whether
    return and length of every episode are what a loop by hand makes of the same steps.

    Args:
        make_env: an id, or a function or class that makes one environment, a single one or a vector
            environment; the latter is made once.
        num_envs: single environments to make; with two or more, slots are checked against each other.
        steps: to drive, enough for some episodes to end. Where a time limit is told, it is reached
            too, if that takes about a second at most.

    Returns:
        What the toolkit understood; `print` shows it as a table.

    Raises:
        ValueError: where the contract is broken, with the rule in its message. What the simulator
            itself raises comes out as it is.

    Example:
        >>> check_adapter("CartPole-v1").seeds_slots
        True
    """
    at_least("num_envs", num_envs, 1)
    at_least("steps", steps, 1)
    envs = _make(make_env, num_envs)
    try:
        adapter = simulators.find_adapter(envs[0])(envs)
        check_attributes(adapter, envs)
        action_words(adapter.action_space)  # refuses spaces in which no policy can act
        ledger, repeats = check_behaviour(adapter, steps)
        check_accounting(adapter, steps)
        speed = measure_speed(adapter)
    except BaseException:
        close_all(envs)
        raise
    adapter.close()
    _close_again(adapter)
    ended = [episode for episode in ledger.begun if episode.has_ended]
    return AdapterReport(
        adapter=type(adapter).__name__,
        num_slots=adapter.num_slots,
        observation_space=adapter.observation_space,
        action_space=adapter.action_space,
        autoreset=adapter.autoreset,
        seeds_slots=adapter.seeds_slots,
        time_limit=adapter.time_limit,
        num_ends=len(ended),
        num_truncated=sum(not episode.terminated for episode in ended),
        environment=make_env if isinstance(make_env, str) else _name_of(envs[0]),
        team=team_of(adapter),
        notes=tuple(getattr(adapter, "notes", ())),
        repeats=repeats,
        steps_per_second=speed,
    )


def _make(make_env: Callable[[], Any] | str, count: int) -> list[Any]:
    """Return `count` single environments, or one batch."""
    make_batch = simulators.batch_maker(make_env) if isinstance(make_env, str) else None
    if make_batch is not None:
        return [make_batch(count)]
    make = as_factory(make_env)
    if make is None:
        message = f"make_env is an id, or a function or class that makes one, not {make_env!r}"
        raise TypeError(message)
    envs = [make()]
    if is_single(envs[0]):
        envs.extend(make() for _ in range(count - 1))
    return envs


def _name_of(env: Any) -> str:
    inner = inside_of(env)
    return type(env if inner is None else inner).__name__


def _close_again(adapter: Adapter) -> None:
    try:
        adapter.close()
    except Exception as error:
        message = (
            f"the adapter breaks its contract: a second close is harmless, it raised {error!r}"
        )
        raise ValueError(message) from error
