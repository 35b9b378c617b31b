"""The end of a contest: duels decide, and the report is of episodes that decided nothing."""

import math

import pytest

from populora_envs import files
from populora_envs.champion import (
    FEWEST_FINAL,
    MOST_FINAL,
)
from populora_envs.seeds import Purpose
from tests.contests import FLAT, LOOKS, champion, contest_of, generation, only_at, ranking

DUELS = 2**24


# --- the end


def test_the_end_looks_once_more_whatever_it_costs():
    contest, _ = contest_of(FLAT, trained=0)
    assert not generation(contest, 1.0, 2.0, 3.0, 4.0)
    contest.finish()
    assert champion(contest) == 4


def test_the_report_is_played_last_and_decides_nothing():
    scores = {i: only_at(Purpose.REPORT, good=-float(i), otherwise=float(i)) for i in range(5)}
    contest, judge = contest_of(scores)
    generation(contest, 1.0, 2.0, 3.0, 4.0)
    contest.finish()
    assert champion(contest) == 4
    assert contest.champion.mean == -4.0
    assert contest.champion.scores == [-4.0] * FEWEST_FINAL
    assert judge.played[-1] == ([4], Purpose.REPORT, list(range(FEWEST_FINAL)))
    assert [kind for _, kind, _ in judge.played].count(Purpose.REPORT) == 1


@pytest.mark.parametrize(
    ("trained", "count"), [(0, FEWEST_FINAL), (450, 45), (10**6, MOST_FINAL), (1, FEWEST_FINAL)]
)
def test_the_report_has_a_tenth_of_the_training_within_limits(trained, count):
    contest, _ = contest_of(FLAT)
    contest._trained = trained
    contest.search.ask()
    contest.search.tell([1.0] * 4)
    contest.finish()
    assert len(contest.champion.report) == count


def test_duels_and_not_looks_decide():
    """Individual 4 is the best in looks, 3 in the duels."""
    scores = {**FLAT, 4: only_at(LOOKS, good=1.0, otherwise=4.0, least=DUELS)}
    contest, judge = contest_of(scores)
    generation(contest, 1.0, 2.0, 3.0, 4.0)
    assert champion(contest) == 4
    contest.finish()
    assert champion(contest) == 3
    assert min(judge.episodes(LOOKS, least=10)) >= DUELS


def test_those_clearly_behind_and_the_same_again_leave_the_duels_early():
    scores = {0: [0.0, 1.0], 1: [5.0, 6.0], 2: [6.0, 5.0], 3: [5.0, 6.0], 4: [3.0, 4.0]}
    contest, _ = contest_of(scores)
    base, found = contest.contenders, contest.population.individual_state
    contest.contenders = [*contest._contenders([found(i) for i in range(4)]), *base]
    for contender in contest.contenders:
        contender.looks = [1.0] * 10
    contest._decide(40)
    rounds = dict(zip(ranking(contest), [len(c.duels) for c in contest.contenders], strict=True))
    assert rounds == {1: 40, 2: 40, 3: 10, 4: 10, 0: 10}
    assert champion(contest) == 1


def test_a_lone_contender_plays_no_duels():
    contest, judge = contest_of({**FLAT, 0: [1000.0]})
    generation(contest, 1.0, 2.0, 3.0, 4.0)
    contest.finish()
    assert judge.episodes(LOOKS, least=10) == []
    assert champion(contest) == 0


@pytest.mark.parametrize("bad", [math.nan, -math.inf])
def test_duels_with_returns_that_are_not_finite_end(bad):
    scores = {i: [float(i)] * 10 for i in range(5)}
    for i in (2, 3, 4):
        scores[i] = only_at(LOOKS, good=bad, otherwise=float(i), least=DUELS)
    contest, _ = contest_of(scores)
    generation(contest, 1.0, 2.0, 3.0, 4.0)
    contest.finish()
    assert champion(contest) == 0
    assert contest.champion.mean == 0.0


# --- state


def test_a_state_is_not_changed_by_later_episodes(tmp_path):
    contest, _ = contest_of(FLAT)
    state = contest.state()
    files.save_file(tmp_path / "state.pt", state)
    generation(contest, 1.0, 2.0, 3.0, 4.0)
    contest.finish()
    (base,) = state["contenders"]
    assert (base["looks"], base["duels"], base["report"]) == ([0.0, 0.0], [], [])
    for saved in (state, files.load_file(tmp_path / "state.pt")):
        contest.load_state_(saved)
        assert ranking(contest) == [0]
        assert generation(contest, 1.0, 2.0, 3.0, 4.0)
        assert base["looks"] == [0.0, 0.0]
