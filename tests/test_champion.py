"""The contest: who is looked at, who becomes champion."""

import math

import pytest
import torch
from torch import nn

from populora_envs import Population, interact_with_env
from populora_envs.champion import (
    CHALLENGERS,
    KEPT,
    LOOK_EPISODES,
    LOOK_SHARE,
    Contest,
)
from populora_envs.judges import FunctionJudge, Judged
from populora_envs.search import make_search
from tests.contests import FLAT, LOOKS, Script, champion, contest_of, generation, ranking
from tests.tiny import Aim, linear, same

DUELS = 2**24


# --- looks


def test_base_is_the_first_champion():
    contest, judge = contest_of(FLAT)
    assert champion(contest) == 0
    assert contest.base_mean == 0.0
    assert judge.played == [([0], LOOKS, [0, 1])]
    assert contest.env_steps == LOOK_EPISODES[0]


def test_challengers_that_keep_up_play_ten_episodes_as_the_champion_does():
    contest, judge = contest_of(FLAT)
    assert generation(contest, 1.0, 2.0, 3.0, 4.0)
    assert ranking(contest) == [4, 3, 0]
    assert judge.played[1:] == [
        ([4, 3], LOOKS, [0, 1]),
        ([4, 3], LOOKS, [2, 3, 4]),
        ([0], LOOKS, [2, 3, 4]),
        ([4, 3], LOOKS, [5, 6, 7, 8, 9]),
        ([0], LOOKS, [5, 6, 7, 8, 9]),
    ]
    assert contest.champion.looks == [4.0] * 10


def test_one_that_falls_behind_plays_no_further():
    contest, judge = contest_of({**FLAT, 0: [3.5]})
    assert generation(contest, 1.0, 2.0, 3.0, 4.0)
    assert ranking(contest) == [4, 0]
    assert [names for names, *_ in judge.played[1:]] == [[4, 3], [4], [0], [4], [0]]


def test_a_lucky_one_does_not_hold_up():
    contest, _ = contest_of({**FLAT, 1: [-5.0]})
    assert not generation(contest, 99.0, *[-math.inf] * 3)
    assert ranking(contest) == [0]


def test_the_one_that_holds_up_is_taken_not_the_one_that_scored_best():
    contest, _ = contest_of({0: [0.0], 1: [1.0], 2: [5.0], 3: [2.0], 4: [0.5]})
    assert generation(contest, 50.0, 40.0, 30.0, 20.0)
    assert ranking(contest) == [2, 1, 0]


def test_two_good_first_episodes_are_not_enough():
    contest, _ = contest_of({**FLAT, 4: [9.0, 9.0, *[-9.0] * 8]})
    assert not generation(contest, -math.inf, -math.inf, -math.inf, 4.0)
    assert ranking(contest) == [0]


def test_a_tie_keeps_the_old_champion():
    contest, _ = contest_of({i: [1.0, 2.0] for i in range(5)})
    assert not generation(contest, 3.0, 3.0, 3.0, 3.0)
    assert ranking(contest) == [0, 1, 2]


def test_nobody_is_looked_at_twice():
    contest, judge = contest_of(FLAT)
    generation(contest, 4.0, 3.0, 2.0, 1.0)
    played = len(judge.played)
    assert not generation(contest, 4.0, 3.0, 2.0, 1.0)
    assert len(judge.played) == played


def test_a_look_plays_the_centre_and_the_best_individual():
    contest, judge = contest_of(FLAT)
    contest.search.at = {"": {"down": torch.ones(1, 1), "up": torch.full((1, 1), 7.0)}}
    generation(contest, 1.0, 2.0, 3.0, 4.0)
    assert ranking(contest) == [7, 4, 0]
    assert max(len(names) for names, *_ in judge.played) <= CHALLENGERS == 2


def test_an_individual_that_is_not_finite_is_never_looked_at():
    contest, judge = contest_of(FLAT)
    assert not generation(contest, *[-math.inf] * 4)
    contest.finish()
    assert {name for names, *_ in judge.played for name in names} == {0}


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_look_that_is_not_finite_is_the_worst(bad):
    contest, _ = contest_of({**FLAT, 4: [9.0, bad]})
    assert generation(contest, 1.0, 2.0, 3.0, 4.0)
    assert ranking(contest) == [3, 0]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_base_that_is_not_finite_is_beaten_by_anyone(bad):
    contest, _ = contest_of({**FLAT, 0: [1.0, bad]})
    assert contest.base_mean == -math.inf
    assert math.isnan(contest.champion.standard_error)
    assert generation(contest, -9.0, -9.0, -9.0, -9.0)
    assert champion(contest) == 2


def test_only_the_best_five_are_kept():
    contest, _ = contest_of(FLAT)
    for first in range(1, 20, 4):
        contest.search.write(*range(first, first + 4))
        generation(contest, 1.0, 2.0, 3.0, 4.0)
    assert ranking(contest) == [20, 19, 16, 15, 12]
    assert len(contest.contenders) == KEPT


def test_a_contender_is_kept_by_its_weights_not_by_its_index():
    contest, _ = contest_of(FLAT)
    generation(contest, 1.0, 2.0, 3.0, 4.0)
    contest.population.mutate_("full_gaussian", all_individuals=True)
    assert ranking(contest) == [4, 3, 0]


# --- what looks cost


def test_looks_wait_until_their_share_of_the_training_pays_for_them():
    contest, judge = contest_of(FLAT, trained=0)
    # two episodes of the base are paid after a cost of 25, two each of two challengers after 75
    for _ in range(18):
        assert not generation(contest, 1.0, 2.0, 3.0, 4.0)
    assert len(judge.played) == 1
    assert generation(contest, 1.0, 2.0, 3.0, 4.0)


@pytest.mark.parametrize("target", [None, 1e9])
def test_looks_cost_their_share_of_the_training_and_one_look(target):
    contest, _ = contest_of({i / 4: [float(i)] for i in range(900)}, target, trained=0)
    most = (CHALLENGERS + 1) * LOOK_EPISODES[-1]
    for number in range(200):
        contest.search.write(*(number + i / 4 for i in range(4)))
        generation(contest, 1.0, 2.0, 3.0, 4.0)
        assert contest.env_steps <= LOOK_SHARE * contest._training_cost + most
    assert contest.env_steps >= LOOK_SHARE * contest._training_cost - CHALLENGERS


# --- who plays as what


def test_centres_of_one_generation_play_as_what_they_are():
    """The base moves between the two, and both count as of one generation."""
    contest, judge = contest_of({x / 2: [float(x)] for x in range(9)})
    contest.search.at = contest.population.base_state()
    for step in (1.5, 1.0):
        contest.population.move_base_({"": {"weight": torch.full((1, 1), step)}})
        contest._race(contest._candidates([]))
    assert [names for names, *_ in judge.played[1:]] == [
        [1.5],
        [1.5],
        [0],
        [1.5],
        [0],
        *[[2.5]] * 3,
    ]
    assert ranking(contest) == [2.5, 1.5, 0]


def test_individuals_play_on_the_base_that_they_were_found_on():
    class Moves(type(contest_of(FLAT)[0].search)):
        def _tell(self, fitnesses):
            self.population.move_base_({"": {"weight": torch.full((1, 1), 10.0)}})

    contest, judge = contest_of(FLAT)
    contest.search = Moves(contest.population)
    contest.search.at = contest.population.base_state()
    generation(contest, 1.0, 2.0, 3.0, 4.0)
    assert sorted(ranking(contest)) == [0, 4, 10]
    assert [names for names, *_ in judge.played[1:3]] == [[10], [4]]


def test_contenders_of_an_evolution_strategy_are_the_centres_it_stood_at():
    layer = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(layer.weight)
    population = Population(layer, pop_size=4, low_rank=1, seed=0)
    search = make_search("es", population)

    class Itself(dict):
        def __missing__(self, name):
            return [name]

    contest = Contest(Script(Itself()), search, None)
    contest.start_()
    contest._training_cost = 10**6
    stood = [0.0]
    for _ in range(4):
        search.ask()
        fitnesses = (
            population.individuals[""].up.flatten() * population.individuals[""].down.flatten()
        )
        planned = contest.plan(Judged(fitnesses, 4, 4, 4, 0.0, 0.0))
        search.tell(fitnesses)
        contest.look(planned)
        stood.append(round(population.individuals[""].weight.item(), 4))
    contest.finish()
    assert set(stood) & set(ranking(contest))
    assert champion(contest) == ranking(contest)[0] == max(ranking(contest))
    for contender, weight in zip(contest.contenders, ranking(contest), strict=True):
        assert contender.looks == pytest.approx([weight] * len(contender.looks))


def test_teams_share_nothing_with_the_population():
    contest, _ = contest_of(FLAT)
    before = contest.population.individual_state(3)
    generation(contest, 1.0, 2.0, 3.0, 4.0)
    contest.finish()
    after = contest.population.individual_state(3)
    assert all(same(before[name], after[name]) for name in before)
    assert contest.population.individuals[""].weight.item() == 0.0


def test_trials_leave_the_observation_statistics_alone():
    with interact_with_env(Aim, standardize=True) as interactor:
        population = interactor.population(linear(), pop_size=4, low_rank=2)
        population.evolve_(interactor.evaluate(population, horizon=8))
        before = {name: t.clone() for name, t in population.normalizer.state_dict().items()}
        seen = []

        def fitness(population):
            seen.append(population.model.normalizer.count.item())
            return interactor.evaluate(population, horizon=8)

        search = make_search("ga", population)
        contest = Contest(FunctionJudge(fitness), search, None)
        contest.start_()
        search.ask()
        search.tell([1.0, 2.0, 3.0, 4.0])
        contest.finish()
    assert same(before, population.normalizer.state_dict())
    assert same(before, contest.champion.normalizer)
    assert len(seen) > 3
    assert set(seen) == {before["count"].item()}
    assert contest.merged().normalizer.count == before["count"]
