"""The champion: the individual that holds up on fresh episodes, not the luckiest of a generation.

A look plays a generation's best few on two episodes that no generation trains on. The best of them
that is not behind the champion there plays ten, and takes its place when its mean is higher. A target
is certified on fifty episodes more, which decided nothing before.
"""

from __future__ import annotations

import copy
import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from populora_envs.fitness import best_first
from populora_envs.normalizer import statistics
from populora_envs.seeds import Purpose

if TYPE_CHECKING:
    from torch import Tensor

    from populora_envs.judges import Judge
    from populora_envs.population import Population, State

LOOK_SHARE = 0.1
"""Looks during a run cost at most this share of the training cost; one more follows at the end."""

CHALLENGERS = 4
"""Individuals of a generation that a look plays at most."""

FIRST_EPISODES, ALL_EPISODES, CERTIFICATE_EPISODES = 2, 10, 50
_CERTIFICATE_START = 1000
"""Number of the first certificate episode: far from those that choose the champion."""


@dataclass
class Contender:
    """One individual and what it scored on fresh episodes."""

    weights: State
    normalizer: dict[str, Tensor]
    generation: int
    returns: list[float] = field(default_factory=list)
    certificate: list[float] = field(default_factory=list)

    @property
    def scores(self) -> list[float]:
        """The episodes that count: the certificate, where there is one."""
        return self.certificate or self.returns

    @property
    def mean(self) -> float:
        """Mean return over the episodes that count, nan before the first."""
        return float(np.mean(self.scores)) if self.scores else float("nan")

    @property
    def standard_error(self) -> float:
        """Standard error of the mean, nan before the second episode."""
        count = len(self.scores)
        return _deviation(self.scores, 1) / count**0.5 if count > 1 else float("nan")

    @property
    def deviation(self) -> float:
        """Standard deviation of a return."""
        return _deviation(self.scores, 0) if self.scores else 0.0

    def key(self) -> str:
        """Return a hash of everything that decides how it acts."""
        digest = hashlib.sha256()
        for tensors in (*self.weights.values(), self.normalizer):
            for name in sorted(tensors):
                digest.update(tensors[name].cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()

    def state(self) -> dict[str, Any]:
        """Return it as tensors and plain values, which later episodes leave as they are."""
        lists = {"returns": list(self.returns), "certificate": list(self.certificate)}
        return {**vars(self), **lists}


class Contest:
    """Keeps the champion of a run.

    Args:
        judge: plays the trials.
        population: whose base is the first champion.
        target: a mean return to certify, or None.

    Attributes:
        champion: the present one.
        env_steps: played in trials.
        base_mean: what the unchanged base scored on its first episodes.
    """

    def __init__(self, judge: Judge, population: Population, target: float | None) -> None:
        self.judge, self.population, self.target = judge, population, target
        self.champion = Contender(
            population.base_state(), statistics(self.population.normalizer), 0
        )
        self.env_steps = 0
        self._training_cost = self._look_cost = 0
        self._tested: list[str] = []
        self.base_mean = float("nan")

    def start_(self) -> None:
        """Let the base play its first episodes."""
        self._play([self.champion], FIRST_EPISODES)
        self.base_mean = self.champion.mean

    def look(self, fitnesses: Tensor, cost: int, *, final: bool = False) -> bool:
        """Let the best of a generation challenge the champion; return whether there is a new one.

        Args:
            fitnesses: `[P]` of the population as it stands.
            cost: of training this generation, in the judge's unit; 0 for a generation seen before.
            final: play whatever it costs.
        """
        self._training_cost += cost
        limit = CHALLENGERS if final else self._affordable(fitnesses, cost)
        challengers = self._challengers(fitnesses, limit)
        if not challengers:
            return False
        self._play(challengers, FIRST_EPISODES)
        first = float(np.mean(self.champion.returns[:FIRST_EPISODES]))
        best = max(challengers, key=lambda contender: contender.mean)
        if not best.mean >= first:
            return False
        self._play([best], ALL_EPISODES)
        self._play([self.champion], ALL_EPISODES)
        if not best.mean > self.champion.mean:
            return False
        self.champion = best
        return True

    def _affordable(self, fitnesses: Tensor, cost: int) -> int:
        """Return how many challengers the looks' share of the training cost pays for."""
        per_episode = max(cost / len(fitnesses), 1.0)
        budget = LOOK_SHARE * self._training_cost - self._look_cost
        if self.target is not None and float(fitnesses.max()) >= self.target and budget > 0:
            return CHALLENGERS
        return max(0, int(budget / (FIRST_EPISODES * per_episode)))

    def _challengers(self, fitnesses: Tensor, limit: int) -> list[Contender]:
        """Return, of the best few, those not tested before that could beat the champion."""
        champion, chosen, keys = self.champion, list[Contender](), list[str]()
        for i in best_first(fitnesses)[:CHALLENGERS].tolist():
            if len(chosen) >= limit:
                break
            fitness = float(fitnesses[i])
            within = champion.deviation > 0 and fitness >= champion.mean - 2 * champion.deviation
            if not (fitness > champion.mean or within) or fitness == -np.inf:
                continue
            contender = Contender(
                self.population.individual_state(i),
                statistics(self.population.normalizer),
                self.population.generation,
            )
            key = contender.key()
            if key not in self._tested:
                chosen.append(contender)
                keys.append(key)
        self._tested = (self._tested + keys)[-64:]
        return chosen

    def certify(self) -> bool:
        """Return whether the champion holds the target: mean - 1 standard error over 50 episodes."""
        champion, target = self.champion, self.target
        if target is None or champion.mean < target:
            return False
        for count in (ALL_EPISODES, CERTIFICATE_EPISODES):
            if len(champion.certificate) < count:
                episodes = range(len(champion.certificate), count)
                self._certify(champion, [_CERTIFICATE_START + e for e in episodes])
            if champion.mean + 2 * champion.standard_error < target:
                return False
        return champion.mean - champion.standard_error >= target

    def _certify(self, champion: Contender, episodes: list[int]) -> None:
        trial = self.judge.trial(self._team([champion]), Purpose.CHAMPION, episodes)
        self.env_steps += trial.env_steps
        champion.certificate.extend(_worst_for_nonfinite(trial.returns[0]))

    def _play(self, contenders: list[Contender], count: int) -> None:
        """Let contenders of one history play up to `count` episodes each."""
        have = len(contenders[0].returns)
        if have >= count:
            return
        trial = self.judge.trial(self._team(contenders), Purpose.CHAMPION, range(have, count))
        self.env_steps += trial.env_steps
        self._look_cost += trial.cost
        for contender, returns in zip(contenders, trial.returns, strict=True):
            contender.returns.extend(_worst_for_nonfinite(returns))

    def _team(self, contenders: list[Contender]) -> Population:
        """Return a population of contenders that share their observation statistics."""
        team = self.population.with_individuals([c.weights for c in contenders])
        if team.normalizer is not None:
            team.normalizer.load_state_dict(contenders[0].normalizer)
            # What a trial sees, and the generations it names, leave the statistics as they are.
            team.normalizer = None
        return team

    def merged(self) -> Any:
        """Return the champion as a plain module."""
        return self._team([self.champion]).merge_(0)

    def state(self) -> dict[str, Any]:
        """Return everything as tensors and plain values."""
        return {
            "champion": self.champion.state(),
            "env_steps": self.env_steps,
            "training_cost": self._training_cost,
            "look_cost": self._look_cost,
            "tested": list(self._tested),
        }

    def load_state_(self, state: dict[str, Any]) -> None:
        """Go on from what `state` returned."""
        self.champion = Contender(**copy.deepcopy(state["champion"]))
        self.env_steps = state["env_steps"]
        self._training_cost, self._look_cost = state["training_cost"], state["look_cost"]
        self._tested = list(state["tested"])


def _deviation(scores: list[float], ddof: int) -> float:
    """Return the standard deviation, nan where a score is infinite."""
    return float(np.std(scores, ddof=ddof)) if np.isfinite(scores).all() else float("nan")


def _worst_for_nonfinite(returns: Tensor) -> list[float]:
    return [value if np.isfinite(value) else -np.inf for value in returns.tolist()]
