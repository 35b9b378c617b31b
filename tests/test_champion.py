import dataclasses
import math

import numpy as np
import pytest
import torch
from torch import nn

from populora_envs import Population, evolve_with_env, interact_with_env
from populora_envs.champion import (
    ALL_EPISODES,
    CERTIFICATE_EPISODES,
    CHALLENGERS,
    FIRST_EPISODES,
    Contender,
    Contest,
)
from populora_envs.judges import FunctionJudge, Trial
from populora_envs.seeds import Purpose
from tests.tiny import Aim, Lottery, Record, linear, same


@dataclasses.dataclass
class Script:
    """A judge in whose trials returns are read off a table.

    An individual is recognised by the first number of its `up`, the marker; `scores[marker]` is
    its list of returns by episode, used round and round.
    """

    scores: dict
    played: list = dataclasses.field(default_factory=list)

    def judge(self, population):
        raise NotImplementedError

    def trial(self, population, purpose, episodes):
        episodes = list(episodes)
        markers = [round(float(up[0, 0])) for up in population.individuals[""].up]
        self.played.append((markers, episodes))
        rows = [[self.scores[m][e % len(self.scores[m])] for e in episodes] for m in markers]
        returns = torch.tensor(rows, dtype=torch.float64)
        return Trial(returns, returns.numel(), returns.numel())


def contest_of(scores, target=None, pop_size=4, trained=10_000):
    """A contest whose individuals 0, 1, ... have the markers 1, 2, ...; the base has 0.

    Training has cost so many episodes before.
    """
    population = Population(nn.Linear(2, 1), pop_size=pop_size, low_rank=1, seed=0)
    for i in range(pop_size):
        population.individuals[""].up[i] = i + 1
    judge = Script(scores)
    contest = Contest(judge, population, target)
    contest.start_()
    contest._training_cost = trained
    return contest, judge


def look(contest, *fitnesses, **options):
    """Let a generation challenge that has cost one step per individual."""
    return contest.look(torch.tensor(fitnesses), cost=len(fitnesses), **options)


def marker(contest):
    return round(float(contest.champion.weights[""]["up"][0, 0]))


FLAT = {i: [float(i)] for i in range(20)}


# --- who becomes champion


def test_base_is_the_first_champion():
    contest, judge = contest_of(FLAT)
    assert marker(contest) == 0
    assert contest.base_mean == 0.0
    assert judge.played == [([0], [0, 1])]
    assert contest.env_steps == FIRST_EPISODES


def test_challenger_that_holds_up_takes_the_place_after_ten_episodes():
    contest, judge = contest_of(FLAT)
    assert look(contest, 1.0, 2.0, 3.0, 4.0)
    assert marker(contest) == 4
    assert contest.champion.returns == [4.0] * ALL_EPISODES
    assert contest.champion.standard_error == 0.0
    # the best four play two episodes, the best of these and the champion play the rest
    assert judge.played[1:] == [
        ([4, 3, 2, 1], [0, 1]),
        ([4], list(range(2, 10))),
        ([0], list(range(2, 10))),
    ]


def test_lucky_one_does_not_hold_up():
    scores = {**FLAT, 1: [-5.0]}
    contest, _ = contest_of(scores)
    assert not look(contest, 99.0, -9.0, -9.0, -9.0)
    assert marker(contest) == 0


def test_the_one_that_holds_up_is_taken_not_the_one_that_scored_best():
    scores = {0: [0.0], 1: [1.0], 2: [5.0], 3: [2.0], 4: [0.5]}
    contest, _ = contest_of(scores)
    assert look(contest, 50.0, 30.0, 40.0, 20.0)
    assert marker(contest) == 2


def test_two_good_first_episodes_are_not_enough():
    scores = {**FLAT, 4: [9.0, 9.0, *[-9.0] * 8]}
    contest, _ = contest_of(scores)
    assert not look(contest, -1.0, -1.0, -1.0, 4.0)
    assert marker(contest) == 0


def test_tie_keeps_the_old_champion():
    contest, _ = contest_of({i: [1.0, 2.0] for i in range(5)})
    assert not look(contest, 3.0, 3.0, 3.0, 3.0)
    assert marker(contest) == 0


def test_tie_among_challengers_goes_to_the_lower_index():
    contest, judge = contest_of({i: [5.0 if i else 0.0] for i in range(9)}, pop_size=8)
    assert look(contest, *[7.0] * 8)
    assert judge.played[1][0] == [1, 2, 3, 4]
    assert marker(contest) == 1


def test_only_those_who_could_beat_the_champion_are_played():
    contest, judge = contest_of({**FLAT, 0: [10.0]})
    assert not look(contest, 1.0, 9.9, 10.0, -np.inf)
    assert len(judge.played) == 1
    noisy, judge = contest_of({**FLAT, 0: [8.0, 12.0]})
    # within two standard deviations (2) of the champion's returns
    look(noisy, 1.0, 6.0, 5.9, -np.inf)
    assert judge.played[1][0] == [2]


def test_nobody_is_tested_twice():
    contest, judge = contest_of({**FLAT, 0: [8.0, 12.0]})
    look(contest, 9.0, 9.0, 9.0, 9.0)
    played = len(judge.played)
    assert not look(contest, 9.0, 9.0, 9.0, 9.0)
    assert len(judge.played) == played


def test_individual_that_is_not_finite_never_challenges():
    contest, judge = contest_of(FLAT)
    assert not look(contest, *[-np.inf] * 4, final=True)
    assert len(judge.played) == 1


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_trial_that_is_not_finite_is_the_worst(bad):
    contest, _ = contest_of({**FLAT, 4: [9.0, bad]})
    assert look(contest, 1.0, 2.0, 3.0, 4.0)
    assert marker(contest) == 3


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_base_that_is_not_finite_is_beaten_by_anyone(bad):
    contest, _ = contest_of({**FLAT, 0: [1.0, bad]})
    assert contest.base_mean == -math.inf
    assert math.isnan(contest.champion.standard_error)
    assert look(contest, -9.0, -9.0, -9.0, -9.0)
    assert marker(contest) == 4


def test_champion_is_kept_by_its_weights_not_by_its_index():
    contest, _ = contest_of(FLAT)
    look(contest, 1.0, 2.0, 3.0, 4.0)
    contest.population.mutate_("full_gaussian", all_individuals=True)
    assert marker(contest) == 4
    assert contest.champion.mean == 4.0


# --- what looks cost


def test_looks_wait_until_their_share_of_the_training_pays_for_them():
    contest, judge = contest_of(FLAT, trained=0)
    # 2 episodes of the base are paid after a cost of 20, a challenger's 2 after 40
    for _ in range(9):
        assert not look(contest, 1.0, 2.0, 3.0, 4.0)
    assert len(judge.played) == 1
    assert look(contest, 1.0, 2.0, 3.0, 4.0)
    assert judge.played[1][0] == [4]


def test_last_look_is_always_taken():
    contest, _ = contest_of(FLAT, trained=0)
    assert contest.look(torch.tensor([1.0, 2.0, 3.0, 4.0]), cost=0, final=True)


@pytest.mark.parametrize("target", [None, 1000.0])
@pytest.mark.parametrize("env", [Aim, Lottery, lambda: Lottery(own_luck=True)])
def test_looks_cost_at_most_fifteen_percent_of_a_long_run(env, target):
    width = 1 if env is Aim else 2
    _, history = evolve_with_env(
        env,
        linear(2, width),
        num_generations=60,
        horizon=8,
        low_rank=2,
        target_fitness=target,
        return_history=True,
    )
    last = history[-1]
    training = last["env_steps"] - last["env_steps_validation"]
    assert last["env_steps_validation"] <= 0.15 * training


# --- certificates


def test_target_is_certified_on_fifty_episodes_that_decided_nothing():
    contest, judge = contest_of(FLAT, target=4.0)
    assert not contest.certify()
    look(contest, 1.0, 2.0, 3.0, 4.0)
    before = contest.env_steps
    assert contest.certify()
    assert len(contest.champion.certificate) == CERTIFICATE_EPISODES == 50
    assert contest.env_steps == before + 50
    episodes = [e for markers, played in judge.played[-2:] for e in played]
    assert episodes == list(range(1000, 1050))
    assert contest.certify()
    assert contest.env_steps == before + 50


def test_mean_less_one_standard_error_must_reach_the_target():
    # mean 5; over 50 episodes the standard deviation is 1.0102, the standard error 0.1429
    returns = [4.0, 6.0]
    for target, certified in ((4.85, True), (4.86, False)):
        contest, _ = contest_of({**FLAT, 4: returns}, target=target)
        look(contest, 1.0, 2.0, 3.0, 9.0)
        assert contest.certify() is certified
        assert contest.champion.mean == 5.0
        assert contest.champion.standard_error == pytest.approx(0.142857, abs=1e-5)


def test_lucky_policy_is_not_certified_and_found_out_early():
    # 10 on the episodes that choose it, 2 on the fresh ones
    class Lucky(Script):
        def trial(self, population, purpose, episodes):
            trial = super().trial(population, purpose, episodes)
            returns = trial.returns
            if min(episodes) < 1000:
                returns = torch.where(returns == 4.0, 10.0, returns)
            return trial._replace(returns=returns)

    contest, _ = contest_of(FLAT, target=9.0)
    contest.judge = judge = Lucky(FLAT)
    look(contest, 1.0, 2.0, 3.0, 10.0)
    assert contest.champion.mean == 10.0
    assert not contest.certify()
    assert len(contest.champion.certificate) == 10
    assert contest.champion.mean == 4.0
    assert not contest.certify()
    assert sum(len(episodes) for _, episodes in judge.played if episodes[0] >= 1000) == 10


def test_no_target_needs_no_certificate():
    contest, judge = contest_of(FLAT)
    assert not contest.certify()
    assert len(judge.played) == 1


# --- state


def test_state_is_not_changed_by_later_episodes():
    contest, _ = contest_of(FLAT, target=0.0)
    state = contest.state()
    look(contest, 1.0, 2.0, 3.0, 4.0)
    contest.certify()
    assert state["champion"]["returns"] == [0.0, 0.0]
    assert state["champion"]["certificate"] == []
    contest.load_state_(state)
    assert marker(contest) == 0
    look(contest, 1.0, 2.0, 3.0, 4.0)
    assert state["champion"]["returns"] == [0.0, 0.0]


def test_contender_without_episodes():
    contender = Contender({}, {}, 0)
    assert math.isnan(contender.mean)
    assert math.isnan(contender.standard_error)
    assert contender.deviation == 0.0


def test_key_sees_weights_and_statistics():
    def contender(number, mean=0.0):
        return Contender({"0": {"up": torch.tensor([number])}}, {"mean": torch.tensor(mean)}, 0)

    assert contender(1.0).key() == contender(1.0).key()
    assert contender(1.0).key() != contender(2.0).key()
    assert contender(1.0).key() != contender(1.0, mean=1.0).key()


# --- whole runs


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_champion_is_not_the_luckiest(seed):
    policy, history = evolve_with_env(
        Lottery, linear(2, 2), num_generations=20, horizon=1, seed=seed, return_history=True
    )
    with interact_with_env(Lottery, seed=seed) as interactor:
        report = interactor.evaluate_policy(policy, num_episodes=400, horizon=1)
    last = history[-1]
    luckiest = max(entry["best_fitness"] for entry in history)
    error = math.hypot(last["champion_se"], report.standard_error)
    assert abs(last["champion_mean"] - report.mean) <= 3 * error
    assert luckiest - last["champion_mean"] > 5.0


def test_champion_survives_later_generations():
    """From generation 8 on small individuals are selected; on fresh episodes large ones are best."""

    def fitness(population):
        sizes = population.individuals[""].up.abs().sum(dim=(1, 2))
        return -sizes if population.generation >= 8 else sizes

    means = []
    _, history = evolve_with_env(
        None,
        nn.Linear(2, 2),
        fitness=fitness,
        num_generations=20,
        return_history=True,
        on_generation=lambda population, entry: means.append(entry["champion_mean"]),
    )
    assert means == sorted(means)
    assert means[7] > 0.0
    assert history[-1]["champion_mean"] == means[7]
    assert history[-1]["best_fitness"] < 0.0


def test_selection_champion_and_report_seeds_are_disjoint():
    record, seeds = Record(), {}
    policy = evolve_with_env(
        lambda: Aim(record),
        linear(),
        num_generations=4,
        horizon=8,
        target_fitness=-100.0,
        pop_size=4,
        low_rank=2,
        on_generation=lambda population, entry: seeds.setdefault("evolution", set(record.seeds)),
    )
    record.seeds.clear()
    with interact_with_env(lambda: Aim(record)) as interactor:
        interactor.evaluate_policy(policy, num_episodes=100, horizon=8)
    quarter = 2**29
    assert {seed // quarter for seed in seeds["evolution"]} == {Purpose.SELECTION, Purpose.CHAMPION}
    assert {seed // quarter for seed in record.seeds} == {Purpose.REPORT}


def test_trials_leave_the_observation_statistics_alone():
    with interact_with_env(Aim, standardize=True) as interactor:
        population = interactor.population(linear(), pop_size=4, low_rank=2)
        population.evolve_(interactor.evaluate(population, horizon=8))
        before = {name: t.clone() for name, t in population.normalizer.state_dict().items()}
        seen = []

        def fitness(population):
            seen.append(population.model.normalizer.count.item())
            return interactor.evaluate(population, horizon=8)

        contest = Contest(FunctionJudge(fitness), population, None)
        contest.start_()
        contest.look(torch.tensor([1.0, 2.0, 3.0, 4.0]), cost=0, final=True)
    assert same(before, population.normalizer.state_dict())
    assert same(before, contest.champion.normalizer)
    assert len(seen) > 3
    assert set(seen) == {before["count"].item()}
    assert contest.merged().normalizer.count == before["count"]


def test_looks_play_at_most_a_few_individuals():
    assert CHALLENGERS == 4
    contest, judge = contest_of(FLAT, pop_size=16)
    look(contest, *range(1, 17))
    assert max(len(markers) for markers, _ in judge.played) == CHALLENGERS


def test_teams_share_nothing_with_the_population():
    contest, _ = contest_of(FLAT)
    before = contest.population.individual_state(3)
    look(contest, 1.0, 2.0, 3.0, 4.0)
    after = contest.population.individual_state(3)
    assert all(same(before[name], after[name]) for name in before)
    assert contest.merged().weight.shape == (1, 2)
