"""Every benchmark runs and prints its table; how fast anything is, they say and no test does."""

import re
import sys
from functools import partial

import pytest

from tests.benchmarks import layers, peers, rollout, routed_forward, scaling, table


def tables(text, first_column):
    """The rows of each printed table, its header first, cells split where two spaces are."""
    found, rows = [], None
    for line in text.splitlines():
        cells = re.split(r" {2,}", line.strip())
        if cells[0] == first_column:
            rows = []
            found.append(rows)
        if rows is not None and len(cells) > 1:
            rows.append(cells)
        else:
            rows = None
    return found


def test_machine_line_names_the_versions():
    for word in ("cores", "Python", "torch", "numpy", "gymnasium"):
        assert word in table.machine_line()


def test_calls_take_turns_and_ratios_are_to_the_first():
    order = []
    timings = table.time_in_turns([lambda: order.append("a"), lambda: order.append("b")], rounds=3)
    assert order == ["a", "b", *"aaa", *"bbb", *"ababab"]
    assert timings[0].ratio == 1
    assert timings[1].seconds > 0


def test_a_ratio_is_taken_within_its_round():
    assert table.median_ratio([2, 30, 8], [1, 10, 2]) == 3


def test_columns_are_aligned(capsys):
    table.print_table(["name", "us"], [["a", "100"], ["longer", "7"]])
    assert capsys.readouterr().out == "name     us\na       100\nlonger    7\n"


def test_routed_forward_prints_a_row_per_case(capsys):
    routed_forward.main(["--rounds", "1", "--cases", "2"])
    (rows,) = tables(capsys.readouterr().out, "individuals")
    assert rows[0] == routed_forward.HEADER
    assert [row[:3] for row in rows[1:]] == [["16", "5-32-2", "16"], ["64", "4-32-2", "8"]]
    assert {row[7] for row in rows[1:]} <= {"ok", "over"}
    assert all(len(row) == len(rows[0]) for row in rows)


def test_layers_prints_a_row_per_case(capsys):
    pytest.importorskip("transformers", reason="transformers is not installed")
    layers.main(["--rounds", "1", "--cases", "1", "--layers", "1"])
    (rows,) = tables(capsys.readouterr().out, "individuals")
    assert rows[0] == layers.HEADER
    assert rows[1][:4] == ["16", "8", "32", "float32"]
    assert rows[1][8] in {"ok", "over"}


def test_routed_forward_says_when_nothing_can_be_compiled(capsys, monkeypatch):
    def no_compile(case, device, **settings):
        raise TypeError("unexpected keyword")

    monkeypatch.setattr(routed_forward, "make_population", no_compile)
    assert not routed_forward.takes_compile()
    assert "no compiled column" in capsys.readouterr().out


@pytest.mark.parametrize("name", scaling.TABLES)
def test_scaling_prints_a_row_per_size(name, capsys, monkeypatch):
    small = {"pop_size": 2, "slots": 2, "horizon": 3, "hidden": 4, "rank": 1}
    cases = [scaling.Case(**small), scaling.Case(**{**small, "pop_size": 4})]
    monkeypatch.setitem(scaling.TABLES, name, cases)
    scaling.main(["--rounds", "1", "--only", name])
    label = name if name in small else f"{name}, pop_size"
    (rows,) = tables(capsys.readouterr().out, label)
    assert rows[0] == [label, *scaling.HEADER]
    assert [row[1] for row in rows[1:]] == ["6", "12"]
    assert all(len(row) == len(rows[0]) for row in rows)


def test_scaling_varies_one_setting_at_a_time():
    for name, cases in scaling.TABLES.items():
        varied = {f for f in scaling.Case._fields if len({getattr(c, f) for c in cases}) > 1}
        assert varied == {name if name in scaling.Case._fields else "pop_size"}


def test_peers_print_ours_alone_where_no_peer_was_asked_for(capsys):
    pytest.importorskip("dm_control", reason="dm_control is not installed")
    peers.main(["--rounds", "1", "--horizon", "3"])
    printed = capsys.readouterr().out
    assert "no peer was asked for" in printed
    found = tables(printed, "library")
    assert len(found) == len(peers.JOBS)
    for rows in found:
        assert rows[0] == peers.HEADER
        assert [row[0] for row in rows[1:]] == ["bare", "populora_envs"]


def test_peers_that_are_missing_are_named(capsys, monkeypatch):
    monkeypatch.setattr(peers, "PEERS", ("no_such_peer",))
    assert peers.find_peers(sys.executable) == {}
    assert peers.find_peers("no-such-interpreter") == {}
    assert capsys.readouterr().out.count("without no_such_peer") == 2


def test_rollout_prints_a_row_per_case_and_number_of_workers(capsys, monkeypatch):
    sizes = {"pop_size": 3, "generations": 2, "horizon": 4}
    cases = [
        rollout.Case("some poles", partial(rollout.gym_list, "CartPole-v1", 2), "0.5", **sizes),
        rollout.Case("a vector", partial(rollout.gym_vector, "CartPole-v1", 2), "9 us", **sizes),
        rollout.Case(
            "a box", partial(rollout.gym_list, "Pendulum-v1", 2), hidden=(3, 3), horizon=2
        ),
    ]
    monkeypatch.setattr(rollout, "CASES", cases)
    rollout.main(["--rounds", "1", "--workers", "0,2"])
    (rows,) = tables(capsys.readouterr().out, "case")
    assert rows[0] == rollout.HEADER
    found = [(name, workers, wanted) for name, workers, _, _, _, wanted, *_ in rows[1:]]
    assert found == [
        *(("some poles", workers, "0.5") for workers in "02"),
        ("a vector", "0", "9 us"),
        *(("a box", workers, "-") for workers in "02"),
    ]
    assert [row[-1] == "-" for row in rows[1:]] == [True, True, False, True, True]
    assert all(len(row) == len(rows[0]) for row in rows)


def test_rollout_replays_what_was_played():
    case = rollout.Case("", partial(rollout.gym_list, "CartPole-v1", 2), pop_size=3, num_episodes=2)
    envs, begin = case.make()
    _, events = rollout.record(case, envs)
    assert sum(event.seed is not None for event in events) == 6
    again, _ = case.make()
    rollout.replay(events, again, begin)
    assert [env.unwrapped.state.tolist() for env in again] == [
        env.unwrapped.state.tolist() for env in envs
    ]


def test_rollout_can_put_the_best_everywhere():
    case = rollout.Case("", partial(rollout.gym_list, "CartPole-v1", 2), generations=1, lasting=1)
    with rollout.interact_with_env(case.make()[0]) as interactor:
        population = rollout.make_population(case, interactor)
        played = case.play(interactor, population)
    assert len(set(played.lengths.flatten().tolist())) == 1


def test_rollout_says_what_it_has_left_out(capsys, monkeypatch):
    def make():
        raise NotImplementedError("no adapter yet")

    monkeypatch.setattr(rollout, "CASES", [rollout.Case("a pool", make)])
    rollout.main(["--rounds", "1", "--only", "pool"])
    assert "left out a pool: no adapter yet" in capsys.readouterr().out
