"""A target is certified on episodes of its own, and what fails costs little."""

import math

import pytest

from populora_envs.champion import CERTIFICATE_EPISODES, CERTIFICATE_SHARE, CERTIFIED, Contest
from populora_envs.seeds import Purpose
from tests.contests import FLAT, LOOKS, champion, contest_of, generation, only_at, ranking

DUELS = 2**24


def certified(contest):
    return contest.is_certified, len(contest.champion.duels)


def test_no_target_needs_no_certificate():
    contest, judge = contest_of(FLAT)
    generation(contest, 1.0, 2.0, 3.0, 4.0)
    assert certified(contest) == (False, 0)
    assert max(judge.episodes(LOOKS)) < DUELS


def test_a_generation_that_reaches_the_target_is_certified_on_fifty_fresh_episodes():
    contest, judge = contest_of(FLAT, target=4.0, trained=0)
    assert generation(contest, 1.0, 2.0, 3.0, 4.0)
    assert certified(contest) == (True, CERTIFIED)
    assert champion(contest) == 4
    assert judge.episodes(LOOKS, least=2) == list(range(DUELS, DUELS + CERTIFIED))


def test_one_that_reaches_the_target_in_a_look_is_certified():
    contest, judge = contest_of(FLAT, target=4.0)
    assert generation(contest, -4.0, -3.0, -2.0, -1.0)
    assert certified(contest) == (True, CERTIFIED)
    assert judge.episodes(LOOKS, least=10) == list(range(DUELS, DUELS + CERTIFIED))


@pytest.mark.parametrize("fitness", [99.0, -99.0], ids=["by_fitness", "by_looks"])
@pytest.mark.parametrize("target", [4.0, 0.0, -4.0])
def test_one_at_the_target_is_certified_whatever_the_target_is(target, fitness):
    scores = {i: [i + target - 4.0] for i in range(5)}
    contest, _ = contest_of(scores, target)
    generation(contest, *[-math.inf] * 3, fitness)
    assert certified(contest) == (True, CERTIFIED)
    assert champion(contest) == 4


@pytest.mark.parametrize(
    ("target", "is_certified", "episodes"),
    [
        # the mean is 5; its standard error over 50 episodes .1429, over 100 .1005
        (4.5, True, 50),
        (4.58, True, 100),
        (4.89, True, 100),
        (4.91, False, 0),
    ],
)
def test_the_mean_less_one_standard_error_must_reach_the_target(target, is_certified, episodes):
    contest, _ = contest_of({**FLAT, 4: [4.0, 6.0]}, target)
    generation(contest, 1.0, 2.0, 3.0, 9.0)
    assert certified(contest) == (is_certified, episodes)


def test_a_lucky_one_is_found_out_after_two_episodes():
    contest, judge = contest_of({**FLAT, 4: only_at(LOOKS, 4.0, 10.0, DUELS)}, target=9.0)
    generation(contest, 1.0, 2.0, 3.0, 10.0)
    assert not contest.is_certified
    assert judge.episodes(LOOKS, least=DUELS) == [DUELS, DUELS + 1]
    assert contest.contenders[-1].duels == []


@pytest.mark.parametrize("bad", [math.nan, -math.inf])
def test_a_return_that_is_not_finite_fails(bad):
    contest, judge = contest_of({**FLAT, 4: [9.0, bad, 9.0]}, target=3.5, trained=0)
    generation(contest, 1.0, 2.0, 3.0, 4.0)
    assert not contest.is_certified
    assert len(judge.episodes(LOOKS, least=DUELS)) == 2


def lucky(contest, judge, num_generations, fitness):
    """Meet new individuals every time whose looks or fitness say 9, and whose duels say 0 or 8."""
    for number in range(num_generations):
        weights = [1000.0 + 4 * number + i for i in range(4)]
        for weight in weights:
            judge.scores[weight] = lambda kind, e: (8.0 if e % 2 else 0.0) if e >= DUELS else 9.0
        contest.search.write(*weights)
        generation(contest, *[fitness] * 4)
    return len(judge.episodes(LOOKS, least=DUELS))


@pytest.mark.parametrize("fitness", [9.0, 1.0], ids=["by_fitness", "by_looks"])
def test_failed_certificates_cost_a_share_of_the_training_and_one_more(fitness):
    contest, judge = contest_of(dict(FLAT), target=4.2, trained=0)
    cost = lucky(contest, judge, 1000, fitness)
    assert not contest.is_certified
    most = CERTIFICATE_EPISODES[-1] + 4 / 2
    assert 0 < cost <= CERTIFICATE_SHARE * contest._training_cost + most


def test_certificates_looks_and_duels_have_episodes_of_their_own():
    contest, judge = contest_of(dict(FLAT), target=4.2)
    lucky(contest, judge, 40, 9.0)
    tried = judge.episodes(LOOKS, least=DUELS)
    assert len(tried) == len(set(tried))
    judge.played.clear()
    contest.finish()
    last = set(judge.episodes(LOOKS, least=DUELS))
    assert last.isdisjoint(tried)
    assert set(judge.episodes(LOOKS)) - last <= set(range(10))


def test_a_certified_champion_only_reports_at_the_end():
    contest, judge = contest_of(FLAT, target=4.0)
    generation(contest, 1.0, 2.0, 3.0, 4.0)
    judge.played.clear()
    contest.finish()
    assert [(names, kind) for names, kind, _ in judge.played] == [([4], Purpose.REPORT)]


def test_one_whose_certificate_failed_is_a_contender_still():
    """It was tried for its fitness, played 25 episodes or more, and is better than all others."""
    contest, _ = contest_of({**FLAT, 4: [3.4, 5.4]}, target=4.5)
    for _ in range(3):
        generation(contest, 1.0, 2.0, 3.0, 9.0)
    assert not contest.is_certified
    contest.finish()
    assert champion(contest) == 4
    assert contest.champion.mean == pytest.approx(4.4)


def test_the_second_best_is_looked_at_where_the_certificate_of_the_best_fails():
    contest, _ = contest_of({**FLAT, 4: [-9.0]}, target=3.5)
    generation(contest, 1.0, 2.0, 9.0, 99.0)
    contest.finish()
    assert champion(contest) == 3


def resumed(contest, judge, target):
    again = Contest(judge, contest.search, target)
    again.load_state_(contest.state())
    return again


def test_a_target_that_was_lowered_or_kept_is_reached():
    contest, judge = contest_of(FLAT, target=4.0)
    generation(contest, 1.0, 2.0, 3.0, 4.0)
    for target in (4.0, 3.0):
        assert resumed(contest, judge, target).is_certified


def test_a_target_that_was_raised_is_looked_for_anew():
    contest, judge = contest_of(FLAT, target=4.0, trained=0)
    generation(contest, 1.0, 2.0, 3.0, 4.0)
    again = resumed(contest, judge, target=6.0)
    assert not again.is_certified
    assert ranking(again) == [4, 0]
    assert again.champion.looks == [4.0] * 10
    again.search.write(5.0, 6.0, 7.0, 8.0)
    assert generation(again, 5.0, 6.0, 7.0, 8.0)
    assert champion(again) == 8
    assert again.is_certified


def test_a_raised_target_that_nobody_reaches_ends_with_the_champion():
    contest, judge = contest_of(FLAT, target=4.0)
    generation(contest, 1.0, 2.0, 3.0, 4.0)
    again = resumed(contest, judge, target=60.0)
    again.finish()
    assert champion(again) == 4
    assert len(again.champion.report) == 30


def test_a_target_given_later_is_certified_at_the_next_look():
    contest, judge = contest_of(FLAT)
    generation(contest, 1.0, 2.0, 3.0, 4.0)
    again = resumed(contest, judge, target=4.5)
    again.search.write(5.0, 6.0, 7.0, 8.0)
    assert generation(again, 5.0, 6.0, 7.0, 8.0)
    assert certified(again) == (True, CERTIFIED)


def test_a_champion_at_the_target_is_certified_once_that_is_affordable():
    """It raced when failed certificates had used up their share; the elites stay the same."""
    contest, judge = contest_of(FLAT, target=4.0)
    contest._certificate_cost = contest._failed_at = 10**6
    for _ in range(3):
        generation(contest, 1.0, 2.0, 3.0, 4.0)
    assert champion(contest) == 4
    assert not contest.is_certified
    assert judge.episodes(LOOKS, least=DUELS) == []
    contest._certificate_cost = 0
    for _ in range(3):
        generation(contest, 1.0, 2.0, 3.0, 4.0)
    assert certified(contest) == (True, CERTIFIED)


def test_certificates_that_failed_long_ago_do_not_forbid_another():
    contest, _ = contest_of(FLAT, target=4.0, trained=1000)
    contest._certificate_cost, contest._failed_at = 10**6, 600
    generation(contest, 1.0, 2.0, 3.0, 4.0)
    assert not contest.is_certified
    contest._failed_at = 500
    generation(contest, 1.0, 2.0, 3.0, 4.0)
    assert certified(contest) == (True, CERTIFIED)
