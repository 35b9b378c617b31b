"""What an adapter does over many steps: autoreset, restarts, seeds and time limits."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from populora_envs.adapter import Autoreset
from populora_envs.testing.driver import ActionTable, Driver, drive
from populora_envs.testing.rules import require

if TYPE_CHECKING:
    from populora_envs.adapter import Adapter
    from populora_envs.testing.driver import Drive, Moment
    from populora_envs.testing.ledger import Ledger

MOST_TEAMS = 8
"""Most teams that are reset one by one."""

NUM_RESTARTS = 6
"""How often a slot is restarted in the middle of an episode."""

SPEED_SECONDS = 0.2
"""How long the speed is measured."""


def check_behaviour(adapter: Adapter, steps: int) -> tuple[Ledger, bool]:
    """Return the episodes that were watched, and whether the same seeds gave the same play."""
    table = ActionTable(adapter.action_space, steps * adapter.num_slots)
    played = drive(adapter, table, steps, until=(adapter.time_limit or 0) + 1)
    again = drive(adapter, table, steps)
    repeats = _is_same(played.moments, again.moments, slice(None))
    require(
        repeats or not adapter.seeds_slots,
        "with seeds_slots the same seeds and actions give the same observations, rewards and ends "
        "(a simulator that draws from a global generator does not, nor one that keeps something of the "
        "episode before)",
    )
    if adapter.autoreset is Autoreset.NEXT_STEP:
        _check_next_step(played)
    elif adapter.autoreset is Autoreset.SAME_STEP:
        _check_same_step(played)
    else:
        _check_restart(adapter, table, played)
    if adapter.time_limit is not None:
        _check_time_limit(played.ledger, adapter.time_limit)
    if adapter.seeds_slots:
        _check_seeds(adapter, table)
    _check_unasked(adapter, table)
    return played.ledger, repeats


def _check_next_step(played: Drive) -> None:
    for slot, reward, ended in played.after_ends:
        require(
            reward == 0.0 and not ended,
            "with autoreset NEXT_STEP the step after an end only resets, pays 0 and ends nothing; in "
            f"slot {slot} it paid {reward} and {'ended' if ended else 'did not end'}",
        )


def _check_same_step(played: Drive) -> None:
    after = played.after_ends
    silent = all(reward == 0.0 and not ended for _, reward, ended in after)
    require(
        not after or not silent or played.num_unpaid > len(after),
        "with autoreset SAME_STEP the step after an end is one of the next episode; here only these "
        f"{len(after)} steps paid 0 and ended nothing, as the reset steps of NEXT_STEP do",
    )


def _check_restart(adapter: Adapter, table: ActionTable, played: Drive) -> None:
    """Check that a restart of the first team touches it, and not the others, then or later."""
    driver = Driver(adapter)
    if driver.count > driver.team:
        steps = len(played.moments)
        forced = drive(adapter, table, steps, forced_at=steps // 2)
        who = "slot 0" if driver.team == 1 else f"the slots 0 to {driver.team - 1}"
        require(
            not adapter.seeds_slots
            or _is_same(played.moments, forced.moments, slice(driver.team, None)),
            f"a reset of {who} alone leaves the episodes of the other slots as they are",
        )
    if not adapter.seeds_slots:
        _check_restarted(driver, table)


def _check_restarted(driver: Driver, table: ActionTable) -> None:
    """Check restarts in the middle of an episode, where chance decides how the next one begins.

    A slot that was elsewhere than where it began, and shows the same before and after, time and again,
    has not been restarted.
    """
    driver.begin()
    rows, num_teams, moved, stuck = np.arange(driver.count), driver.count // driver.team, 0, 0
    for number in range(3 * NUM_RESTARTS):
        driver.step(table[number * driver.count + rows])
        driver.restart_over()
        if number % 3 < 2:
            continue
        slots = driver.team_mask(number // 3 % num_teams)
        before, begun = driver.shown[slots], driver.begun[slots]
        driver.restart(slots)
        if not np.array_equal(before, begun, equal_nan=True):
            moved += 1
            stuck += np.array_equal(before, driver.shown[slots], equal_nan=True)
    require(
        moved < 3 or stuck < moved,
        "a reset of some slots begins new episodes in them; here they showed what they had shown "
        f"before, {stuck} times of {moved}",
    )


def _check_time_limit(ledger: Ledger, limit: int) -> None:
    for episode in ledger.begun:
        require(
            episode.length < limit or (episode.length == limit and episode.has_ended),
            f"an episode ends after {limit} steps, its time_limit; one went on for "
            f"{episode.length} or more",
        )
    reached = [episode for episode in ledger.begun if episode.length == limit]
    also = " and truncated" if all(episode.truncated for episode in reached) else ""
    require(
        len(reached) < 2 or not all(episode.terminated for episode in reached),
        f"an end by the time limit of {limit} steps alone is truncated, not terminated; all "
        f"{len(reached)} episodes that came to it were terminated{also}",
    )


def _check_seeds(adapter: Adapter, table: ActionTable) -> None:
    driver = Driver(adapter)
    rows, seeds = np.arange(driver.count), [7] * driver.count
    begun = driver.reset(seeds)
    teams = begun.reshape(-1, driver.team, *begun.shape[1:])
    require(
        all(np.array_equal(team, teams[0], equal_nan=True) for team in teams),
        "with seeds_slots an episode depends on its seed, not on its slot",
    )
    for number in range(min(len(teams), MOST_TEAMS)):
        driver.step(table[number * driver.count + rows])
        driver.restart_over()
        slots = driver.team_mask(number)
        require(
            np.array_equal(driver.reset(seeds, slots)[slots], begun[slots], equal_nan=True),
            "with seeds_slots a slot that is reset alone begins as its seed says",
        )


def _check_unasked(adapter: Adapter, table: ActionTable) -> None:
    """Check that seeds may be left out, and that one team may act alone."""
    driver = Driver(adapter)
    driver.reset(None)
    driver.acting = driver.team_mask(0)
    driver.step(table[np.arange(driver.count)])


def _is_same(played: list[Moment], again: list[Moment], slots: slice) -> bool:
    """Return whether two plays are equal in some slots."""
    return all(
        np.array_equal(one[slots], other[slots], equal_nan=True)
        for before, after in zip(played, again, strict=True)
        for one, other in zip(before, after, strict=True)
    )


def measure_speed(adapter: Adapter) -> float:
    """Return the steps per second of all slots together with random actions, resets and all."""
    table = ActionTable(adapter.action_space, 64)
    driver = Driver(adapter)
    driver.begin()
    driver.seconds = 0.0
    rows, taken, start = np.arange(driver.count), 0, perf_counter()
    while taken < 2 * driver.count or perf_counter() - start < SPEED_SECONDS:
        taken += int(np.count_nonzero(driver.acting))
        driver.step(table[taken + rows])
        driver.restart_over()
    return taken / driver.seconds
