"""Contests whose returns are read off a table: an individual is known by the one weight it has."""

import dataclasses

import torch
from torch import nn

from populora_envs import Population
from populora_envs.champion import Contest
from populora_envs.judges import Judged, Trial
from populora_envs.search import Search
from populora_envs.seeds import Purpose

FLAT = {i: [float(i)] for i in range(200)}
"""Individual i always scores i."""


@dataclasses.dataclass
class Script:
    """A judge for whom `scores[weight]` is a list of returns, used round and round, or a function.

    A function is called with the purpose and the episode.
    """

    scores: dict
    played: list = dataclasses.field(default_factory=list)

    def judge(self, population):
        raise NotImplementedError

    def trial(self, population, purpose, episodes):
        names = [weight_of(population, i) for i in range(population.pop_size)]
        self.played.append((names, purpose, list(episodes)))
        rows = [[self._return(name, purpose, e) for e in episodes] for name in names]
        returns = torch.tensor(rows, dtype=torch.float64)
        return Trial(returns, returns.numel(), returns.numel())

    def _return(self, name, purpose, episode):
        scores = self.scores[name]
        return scores(purpose, episode) if callable(scores) else scores[episode % len(scores)]

    def episodes(self, purpose, least=0):
        """All numbers of episodes played, in order, from `least` on."""
        played = [e for _, kind, es in self.played if kind is purpose for e in es]
        return [e for e in played if e >= least]


class Stands(Search):
    """A search whose individuals and centre are what a test says."""

    at = None

    def _ask(self):
        pass

    def _tell(self, fitnesses):
        pass

    def centre(self):
        return self.at

    def write(self, *weights):
        for i, weight in enumerate(weights):
            layer = self.population.individuals[""]
            layer.down[i], layer.up[i] = 1.0, weight


def contest_of(scores, target=None, pop_size=4, trained=10_000):
    """A contest whose individuals are 1, 2, ..., and whose base is 0, after some training."""
    layer = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(layer.weight)
    population = Population(layer, pop_size=pop_size, low_rank=1, seed=0)
    search, judge = Stands(population), Script(scores)
    search.write(*range(1, pop_size + 1))
    contest = Contest(judge, search, target)
    contest.start_()
    contest._training_cost = trained
    return contest, judge


def generation(contest, *fitnesses):
    """Play a generation that cost one step each; return whether the champion changed."""
    values, count = torch.tensor(fitnesses), len(fitnesses)
    contest.search.ask()
    planned = contest.plan(Judged(values, count, count, count, 0.0, 0.0))
    contest.search.tell(values)
    return contest.look(planned)


def weight_of(population, individual):
    return round(population.merge_(individual).weight.item(), 4)


def champion(contest):
    return round(contest.merged().weight.item(), 4)


def ranking(contest):
    """The contenders, best first."""
    return [weight_of(contest._team([c]), 0) for c in contest.contenders]


def only_at(purpose, good, otherwise, least=0):
    """Returns that are good in one kind of episode alone."""
    return lambda kind, e: good if kind is purpose and e >= least else otherwise


LOOKS = Purpose.CHAMPION
