"""The champion: the policy that holds up on fresh episodes, not the luckiest of a generation.

A look plays the policy that a search stands at, or a generation's best few, on episodes that no
generation trains on. The best five are kept. At the end they meet on further episodes, and the winner's
score is reported on episodes that decided nothing. A target is certified on fifty to a hundred.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from populora_envs.contender import Contender
from populora_envs.fitness import best_first
from populora_envs.normalizer import statistics
from populora_envs.seeds import Purpose

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from populora_envs.individuals import State
    from populora_envs.judges import Judge, Judged
    from populora_envs.population import Population
    from populora_envs.search import Search

LOOK_SHARE = 0.08
"""Looks during a run cost at most this share of the training cost; one more follows at the end."""

CHALLENGERS = 2
"""Policies of a generation that a look plays at most."""

KEPT = 5
"""Contenders that are kept for the end."""

LOOK_EPISODES = (2, 5, 10)
"""Episodes of a look, the same in all looks; after each of these numbers a candidate may be behind."""

CERTIFICATE_EPISODES, CERTIFIED, MARGIN = (2, 5, 10, 25, 50, 100), 50, 1.0
"""Episodes after which a certificate may have failed; those after which it holds where the mean is ahead
by three standard errors; and the standard errors that are enough after the last of them."""

CERTIFICATE_SHARE = 0.05
"""Share of the training cost that failed certificates may have cost, and half a generation more; one more
is played whenever the training cost has doubled since the last."""

FINAL_SHARE, FEWEST_FINAL, MOST_FINAL = 0.1, 30, 100
"""Episodes of a contender at the end, and of the report: this share of those trained on, within limits."""

MEMORY = 64
"""Policies of which is known that they were looked at."""

_DUELS = 2**24
"""Number of the first episode of the duels: far from those of looks."""


class Look(NamedTuple):
    """What a look will play beside the policy that the search stands at."""

    individuals: list[Contender]
    """The best of the generation."""
    may_race: bool
    """Whether training pays for a race."""
    seems_done: bool
    """Whether the generation says that the target is reached."""


class Contest:
    """Keeps the best contenders of a run.

    Args:
        judge: plays the trials.
        search: whose policies meet.
        target: a mean return to certify, or None.

    Attributes:
        contenders: best first; the first one is the champion.
        env_steps: played in trials.
        base_mean: what the unchanged base scored on its first episodes.
    """

    def __init__(self, judge: Judge, search: Search, target: float | None) -> None:
        self.judge, self.search, self.target = judge, search, target
        self.population = search.population
        self.contenders = self._contenders([self.population.base_state()])
        self.env_steps = 0
        self._training_cost = self._look_cost = self._certificate_cost = self._trained = 0
        self._duelled = 0
        self._last_cost = self._failed_at = 0
        self._raced: list[str] = []
        self._refused: list[str] = []
        self.base_mean = float("nan")

    @property
    def champion(self) -> Contender:
        """The best so far."""
        return self.contenders[0]

    def start_(self) -> None:
        """Let the base play its first episodes."""
        self._look_at([self.champion], LOOK_EPISODES[0])
        self.base_mean = self.champion.mean

    def _contenders(self, states: list[State]) -> list[Contender]:
        """Return policies on the present base, which share it and the observation statistics."""
        population = self.population
        base_change, observed = population.base_change(), statistics(population.normalizer)
        return [Contender(w, base_change, observed, population.generation) for w in states]

    def plan(self, judged: Judged) -> Look | None:
        """Plan a look at a generation, before its search is told; None where nothing pays for one."""
        self._training_cost += judged.cost
        self._trained += judged.episodes
        self._last_cost = judged.cost
        scores = self.search.scores(judged.fitnesses)
        per_episode = max(judged.cost / judged.episodes, 1.0)
        budget = LOOK_SHARE * self._training_cost - self._look_cost
        may_race = budget >= CHALLENGERS * LOOK_EPISODES[0] * per_episode
        seems_done = self._seems_done(scores)
        if not (may_race or seems_done):
            return None
        return Look(self._best_individuals(scores), may_race, seems_done)

    def look(self, planned: Look | None) -> bool:
        """Look at a generation, after its search was told; return whether the champion changed."""
        if planned is None:
            return False
        before = self.champion
        candidates = self._candidates(planned.individuals)
        if planned.seems_done:
            self._certify(candidates[:1])
        if planned.may_race and not self.is_certified:
            self._race(candidates)
            self._certify([self.champion])
        return self.champion is not before

    def _seems_done(self, scores: Tensor) -> bool:
        """Whether the best eighth reaches the target."""
        best = scores.topk(-(-len(scores) // 8)).values
        return self.target is not None and self._can_certify and bool(best.min() >= self.target)

    @property
    def _can_certify(self) -> bool:
        """Whether certificates that failed have not cost too much, or were long ago."""
        most = CERTIFICATE_SHARE * self._training_cost + self._last_cost / 2
        is_long_ago = self._training_cost >= 2 * self._failed_at
        return self._certificate_cost <= most or is_long_ago

    def _best_individuals(self, scores: Tensor) -> list[Contender]:
        best = [i for i in best_first(scores)[:CHALLENGERS].tolist() if scores[i] > -np.inf]
        return self._contenders([self.population.individual_state(i) for i in best])

    def _candidates(self, individuals: list[Contender]) -> list[Contender]:
        """Return those that have not raced: where the search stands, then the best individuals."""
        centre = self.search.centre()
        first = [] if centre is None else self._contenders([centre])
        found = {c.key(): c for c in [*first, *individuals][:CHALLENGERS]}
        return [contender for key, contender in found.items() if key not in self._raced]

    def _race(self, candidates: list[Contender]) -> None:
        """Let the candidates race the champion over the same episodes; who keeps up is a contender."""
        self._raced = _remembered(self._raced, candidates)
        for count in LOOK_EPISODES if candidates else ():
            self._look_at([*candidates, self.champion], count)
            bar = float(np.mean(self.champion.looks[:count]))
            bar = bar if self.target is None else min(bar, self.target)
            candidates = [contender for contender in candidates if contender.mean >= bar]
        self._rank([*self.contenders, *candidates])

    def _rank(self, contenders: list[Contender]) -> None:
        """Keep the best; ties go to the earlier one."""
        self.contenders = sorted(contenders, key=lambda contender: -contender.mean)[:KEPT]

    def _look_at(self, contenders: list[Contender], count: int) -> None:
        """Let contenders play up to `count` episodes each, together where they are alike."""
        for alike in _teams(contenders):
            have = len(alike[0].looks)
            if have < count:
                returns, cost = self._play(alike, Purpose.CHAMPION, range(have, count))
                self._look_cost += cost
                for contender, played in zip(alike, returns, strict=True):
                    contender.looks.extend(played)

    @property
    def is_certified(self) -> bool:
        """Whether the champion holds the target, by its margin, over its duels."""
        return self._holds(self.champion)

    def _holds(self, contender: Contender) -> bool:
        if self.target is None or not contender.duels:
            return False
        return contender.mean - MARGIN * contender.standard_error >= self.target

    def _certify(self, contenders: list[Contender]) -> None:
        """Let one that may hold the target play as many fresh episodes as it takes to tell."""
        target = self.target
        for contender in contenders if self._can_certify else ():
            if target is None or contender.mean < target or contender.key() in self._refused:
                continue
            cost = self._challenge(contender, target)
            if self._holds(contender):
                others = [other for other in self.contenders if other is not contender]
                self.contenders = [contender, *others][:KEPT]
            else:
                self._certificate_cost += cost
                self._failed_at = self._training_cost
                self._refused = _remembered(self._refused, [contender])
                contender.duels = []

    def _challenge(self, contender: Contender, target: float) -> int:
        """Let a contender duel as long as it may hold the target and that is not clear; return the cost."""
        cost = 0
        for count in CERTIFICATE_EPISODES:
            cost += self._duel(contender, count)
            ahead, error = contender.mean - target, contender.standard_error
            least = -error if count < LOOK_EPISODES[-1] else 0.0
            if not ahead >= least or (count == CERTIFIED and ahead >= 3 * error):
                break
        self._duelled += CERTIFICATE_EPISODES[-1]
        return cost

    def finish(self) -> None:
        """Take a last look, let the contenders meet unless one is certified, and report the winner."""
        count = int(np.clip(self._trained * FINAL_SHARE, FEWEST_FINAL, MOST_FINAL))
        if not self.is_certified:
            # Individuals that a search has moved away from were looked at before it was told.
            has_centre = self.search.centre() is not None
            best = [] if has_centre else self._best_individuals(self.search.scores())
            self._race(self._candidates(best))
            self._certify([self.champion])
        if not self.is_certified:
            self._decide(count)
        ((self.champion.report,), _) = self._play([self.champion], Purpose.REPORT, range(count))

    def _decide(self, count: int) -> None:
        """Let the contenders play up to `count` common episodes; those clearly behind leave early."""
        rivals = self.contenders
        for most in (LOOK_EPISODES[-1], count):
            for contender in rivals if len(rivals) > 1 else ():
                self._duel(contender, most)
            best = max(rivals, key=lambda contender: contender.mean)
            rivals = [c for c in rivals if c is best or not c.is_behind(best)]
        self.contenders = [best, *(c for c in self.contenders if c is not best)]

    def _duel(self, contender: Contender, count: int) -> int:
        """Let a contender play up to `count` of the episodes that its rivals play too; return the cost."""
        have = len(contender.duels)
        if have >= count:
            return 0
        start = _DUELS + self._duelled
        episodes = range(start + have, start + count)
        ((returns,), cost) = self._play([contender], Purpose.CHAMPION, episodes)
        contender.duels.extend(returns)
        return cost

    def _play(
        self, contenders: list[Contender], purpose: Purpose, episodes: Sequence[int]
    ) -> tuple[list[list[float]], int]:
        """Let contenders of one generation play; return the returns of each, and the cost."""
        trial = self.judge.trial(self._team(contenders), purpose, episodes)
        self.env_steps += trial.env_steps
        return [_worst_for_nonfinite(returns) for returns in trial.returns], trial.cost

    def _team(self, contenders: list[Contender]) -> Population:
        """Return a population of contenders that share base and observation statistics."""
        first = contenders[0]
        team = self.population.with_individuals([c.weights for c in contenders], first.base_change)
        if team.normalizer is not None:
            team.normalizer.load_state_dict(first.normalizer)
            # What a trial sees, and the generations it names, leave the statistics as they are.
            team.normalizer = None
        return team

    def merged(self) -> Any:
        """Return the champion as a plain module."""
        return self._team([self.champion]).merge_(0)

    def content(self) -> dict[str, Any]:
        """Return what a file says of the champion, as `save_individual` does, and its score."""
        champion = self.champion
        return {
            "kind": "individual",
            "low_rank": self.population.low_rank,
            "weights": self._team([champion]).individual_content(0),
            "normalizer": champion.normalizer,
            "generation": champion.generation,
            "mean": champion.mean,
            "standard_error": champion.standard_error,
            "returns": champion.scores,
        }

    def state(self) -> dict[str, Any]:
        """Return everything as tensors and plain values."""
        plain = {name: copy.copy(getattr(self, name)) for name in _PLAIN}
        return {**plain, "contenders": [contender.state() for contender in self.contenders]}

    def load_state_(self, state: dict[str, Any]) -> None:
        """Go on from what `state` returned."""
        for name in _PLAIN:
            setattr(self, name, copy.copy(state[name]))
        self.contenders = [Contender(**copy.deepcopy(saved)) for saved in state["contenders"]]
        champion = self.champion
        if champion.duels and not champion.report and not self.is_certified:
            # It held a target that was lower.
            champion.looks = champion.looks or champion.duels[: LOOK_EPISODES[-1]]
            champion.duels = []


_PLAIN = (
    "base_mean",
    "env_steps",
    "_training_cost",
    "_look_cost",
    "_certificate_cost",
    "_trained",
    "_duelled",
    "_last_cost",
    "_failed_at",
    "_raced",
    "_refused",
)


def _teams(contenders: list[Contender]) -> list[list[Contender]]:
    """Group contenders that share base, observation statistics and number of looks."""
    groups: dict[tuple[int, ...], list[Contender]] = {}
    for contender in contenders:
        shared = id(contender.base_change), id(contender.normalizer), len(contender.looks)
        groups.setdefault(shared, []).append(contender)
    return list(groups.values())


def _remembered(keys: list[str], contenders: list[Contender]) -> list[str]:
    return [*keys, *(contender.key() for contender in contenders)][-MEMORY:]


def _worst_for_nonfinite(returns: Tensor) -> list[float]:
    return [value if np.isfinite(value) else -np.inf for value in returns.tolist()]
