"""What ``populora-envs check`` prints: the table of what was understood, or the rule that is broken."""

from __future__ import annotations

import re
import sys
import types

import numpy as np
import pytest
from gymnasium import spaces

from populora_envs import cli, simulators
from populora_envs.action_map import ActionMap
from populora_envs.testing import check_adapter
from populora_envs.testing.words import action_words, space_words
from tests.clock import Clock, DuckClock

INF = np.inf


def table_of(text):
    """Return the lines of a table by their labels, each as one line."""
    table, label = {}, ""
    for line in text.splitlines():
        label = line[:14].strip() or label
        table[label] = [*table.get(label, []), line[14:]]
    return {label: " ".join(lines) for label, lines in table.items()}


def printed(capsys, *arguments):
    """Return the table that a command prints."""
    assert cli.main(["check", *arguments]) == cli.DONE
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    return table_of(text)


def test_the_table_of_cart_pole(capsys):
    table = printed(capsys, "CartPole-v1", "--num-envs", "3", "--steps", "40")
    ends = re.fullmatch(r"(\d+) ended: (\d+) terminated, 0 truncated", table.pop("episodes"))
    assert int(ends[1]) == int(ends[2]) > 3
    assert re.fullmatch(r"[\d,]+ steps per second, random actions", table.pop("speed"))
    bounds = "[-4.8, 4.8] [-inf, inf] [-0.418879, 0.418879] [-inf, inf]"
    assert table == {
        "environment": "CartPole-v1",
        "adapter": "GymnasiumEnvs",
        "slots": "3",
        "observation": f"Box [4] float32, in {bounds}",
        "policy sees": "float32 [4]",
        "policy gives": "2 numbers: the index of the largest, 0 to 1, is action 0 to 1",
        "action": "Discrete, 0 to 1",
        "autoreset": "by the caller, who can reset one slot alone",
        "seeds": "one per slot; an episode depends on its seed alone",
        "time limit": "500 steps",
    }


@pytest.mark.parametrize(
    ("env_id", "rows"),
    [
        (
            "Pendulum-v1",
            {
                "policy gives": "1 number: -1, 0, 1 become -2, 0, 2",
                "episodes": "2 ended: 0 terminated, 2 truncated",
            },
        ),
        ("FrozenLake-v1", {"observation": "Discrete, 0 to 15", "policy sees": "float32 [16]"}),
        (
            "CliffWalking-v1",
            {
                "time limit": "none is told: pass horizon=",
                "episodes": "none ended while it was watched, so ends were not checked",
            },
        ),
    ],
)
def test_rows_of_other_environments(env_id, rows, capsys):
    table = printed(capsys, env_id)
    assert rows == {label: table[label] for label in rows}


@pytest.mark.filterwarnings("ignore:.*DISPLAY environment variable is missing")
def test_a_dm_control_task_shows_its_parts_in_their_order(capsys):
    table = printed(capsys, "dm_control/walker-walk", "--steps", "5")
    assert table["observation"] == (
        "orientations: Box [14] float64, without bounds height: Box [] float64, without bounds "
        "velocity: Box [9] float64, without bounds"
    )
    assert table["policy sees"] == "float32 [24]"
    assert table["episodes"] == "2 ended: 0 terminated, 2 truncated"


@pytest.mark.filterwarnings("ignore:.*Box (low|high)'s precision lowered by casting")
def test_an_id_whose_simulator_has_batches_is_made_as_one(capsys):
    pytest.importorskip("envpool", reason="EnvPool is not installed")
    table = printed(capsys, "envpool/CartPole-v1", "--num-envs", "5")
    assert table["slots"] == "5"
    assert table["seeds"] == "not per slot; a second play from the same seeds gave other numbers"
    assert table["note"].startswith("EnvPool takes seeds only when a pool is made")


def test_text_that_is_left_out_is_named(capsys):
    pytest.importorskip("minigrid", reason="MiniGrid is not installed")
    table = printed(capsys, "MiniGrid-Empty-5x5-v0")
    assert table["observation"].endswith("mission: text")
    assert table["policy sees"] == "float32 [151] mission is left out"


def test_a_team_and_its_weights_are_shown():
    pytest.importorskip("pettingzoo", reason="PettingZoo is not installed")
    table = table_of(str(check_adapter("pettingzoo/classic/rps-v2")))
    assert table["slots"] == "4"
    words = "2 slots in a row, played by one individual; their returns count 0.5, 0.5"
    assert table["team"] == words


def test_what_is_no_id_goes_by_the_name_of_its_class():
    assert "environment   DuckClock\n" in str(check_adapter(DuckClock))


def test_without_seeds_a_play_may_repeat_all_the_same():
    table = table_of(str(check_adapter(DuckClock)))
    assert table["seeds"] == "not per slot; a second play from the same seeds gave the same numbers"


# --- what fails


def test_an_unknown_id_gives_near_names_and_exit_code_1(capsys):
    assert cli.main(["check", "CartPol-v1"]) == cli.FAILED
    captured = capsys.readouterr()
    assert captured.err.startswith("error: there is no environment 'CartPol-v1'")
    assert "near names: CartPole-v1" in captured.err
    assert captured.out == ""


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--num-envs", "0"], "num_envs must be at least 1, not 0"),
        (["--steps", "-1"], "steps must be at least 1, not -1"),
    ],
)
def test_wrong_numbers_give_one_sentence_and_exit_code_1(arguments, says, capsys):
    assert cli.main(["check", "CartPole-v1", *arguments]) == cli.FAILED
    assert capsys.readouterr().err == f"error: {says}\n"


def test_a_broken_adapter_gives_the_rule_and_exit_code_1(monkeypatch, capsys):
    from populora_adapters.duck import DuckEnvs

    class Broken(DuckEnvs):
        def step(self, actions, slots=None):
            given = super().step(actions, slots)
            return given._replace(reward=given.reward.astype(np.float32))

    module = types.ModuleType("broken_adapter")
    module.adapt, module.make = Broken, lambda env_id: own()

    def own():
        return type("Own", (Clock,), {"__module__": "broken"})()

    monkeypatch.setitem(sys.modules, "broken_adapter", module)
    monkeypatch.setitem(simulators._registered, "broken", "broken_adapter:adapt")
    assert cli.main(["check", "broken/one"]) == cli.FAILED
    captured = capsys.readouterr()
    assert captured.err.startswith(
        "error: the adapter breaks its contract: step gives reward as a NumPy array of shape (2,) "
        "and dtype float64, not ndarray of (2,) and float32"
    )
    assert captured.out == ""


def test_ctrl_c_ends_with_130(monkeypatch, capsys):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("populora_envs.cli.about.check_adapter", interrupt)
    assert cli.main(["check", "CartPole-v1"]) == cli.INTERRUPTED
    assert capsys.readouterr().err == "interrupted\n"


# --- spaces and actions in words

uneven = spaces.Box(
    np.array([-2, -1, 0, -INF, 0, -INF, -2]), np.array([2, 1, 5, INF, INF, 3, 2]), dtype=np.float64
)
nested = spaces.Tuple((spaces.Discrete(2), spaces.Dict(a=spaces.Box(-3, 3, (2,)))))

ACTIONS = [
    (
        spaces.Discrete(3, start=-1),
        ["3 numbers: the index of the largest, 0 to 2, is action -1 to 1"],
    ),
    (
        spaces.MultiDiscrete([2, 3], start=[1, -1]),
        [
            "5 numbers: 2 groups; the index of the largest in each is an action, 0 to 1 is 1 to 2, "
            "0 to 2 is -1 to 1"
        ],
    ),
    (
        spaces.MultiDiscrete([3] * 20),
        ["60 numbers: 20 groups; the index of the largest in each is an action, 0 to 2 is 0 to 2"],
    ),
    (spaces.MultiBinary(3), ["3 numbers: above 0 becomes 1, else 0"]),
    (spaces.Box(-0.4, 0.4, (17,)), ["17 numbers: -1, 0, 1 become -0.4, 0, 0.4"]),
    (spaces.Box(0, 255, (2, 2), np.uint8), ["4 numbers: -1, 0, 1 become 0, 128, 255"]),
    (spaces.Box(-INF, INF, (4,)), ["4 numbers: passes through"]),
    (spaces.Box(-INF, INF, (1,), np.int64), ["1 number: passes through, rounded"]),
    (
        uneven,
        [
            "7 numbers in all",
            "dimension 0, 6: -1, 0, 1 become -2, 0, 2",
            "dimension 1: -1, 0, 1 become -1, 0, 1",
            "dimension 2: -1, 0, 1 become 0, 2.5, 5",
            "dimension 3: passes through",
            "dimension 4: passes through, at least 0",
            "dimension 5: passes through, at most 3",
        ],
    ),
    (
        nested,
        [
            "4 numbers in all",
            "0: the index of the largest, 0 to 1, is action 0 to 1",
            "1.a: -1, 0, 1 become -3, 0, 3",
        ],
    ),
]


@pytest.mark.parametrize(("space", "lines"), ACTIONS, ids=lambda value: str(value)[:20])
def test_what_a_policy_gives_is_told_for_every_space(space, lines):
    assert action_words(space) == lines


def test_many_different_dimensions_are_cut_short():
    high = np.arange(1, 13, dtype=np.float32)
    lines = action_words(spaces.Box(-high, high))
    assert len(lines) == 10
    assert lines[8:] == ["dimension 7: -1, 0, 1 become -8, 0, 8", "and so on, 4 more"]


def test_the_numbers_come_from_the_map_that_rollouts_use(monkeypatch):
    def shifted(self, actions, num_rows=None):
        mapped, finite = given(self, actions, num_rows)
        return mapped + 0.25, finite

    given = ActionMap.map
    monkeypatch.setattr(ActionMap, "map", shifted)
    assert action_words(spaces.Box(-2.0, 2.0, (1,))) == [
        "1 number: -1, 0, 1 become -1.75, 0.25, 2.25"
    ]


@pytest.mark.parametrize(
    ("space", "lines"),
    [
        (spaces.Discrete(3, start=-1), ["Discrete, -1 to 1"]),
        (spaces.MultiDiscrete([2, 3], start=[1, -1]), ["MultiDiscrete [2], 1 to 2, -1 to 1"]),
        (spaces.MultiDiscrete([[3, 3]] * 9), ["MultiDiscrete [9, 2], 0 to 2 each"]),
        (spaces.MultiBinary([2, 3]), ["MultiBinary [2, 3]"]),
        (spaces.Box(-INF, INF, ()), ["Box [] float32, without bounds"]),
        (
            spaces.Box(np.arange(9.0), 9.0, dtype=np.float64),
            ["Box [9] float64, bounds from 0 to 9"],
        ),
        (
            spaces.Dict(b=nested, a=spaces.Text(2)),
            ["a: text", "b.0: Discrete, 0 to 1", "b.1.a: Box [2] float32, in [-3, 3]"],
        ),
    ],
    ids=lambda value: str(value)[:20],
)
def test_spaces_are_told_part_by_part(space, lines):
    assert space_words(space) == lines
