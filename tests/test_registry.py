import pytest

from populora_envs.registry import Registry, near_names


def registry():
    table = Registry("colour")
    for name in ("red", "green", "greenish", "blue"):
        table.register(name)(name.upper())
    return table


def test_entries_are_found_by_name():
    table = registry()
    assert table.get("red") == "RED"
    assert list(table) == ["red", "green", "greenish", "blue"]
    assert "blue" in table
    assert "pink" not in table
    assert len(table) == 4


def test_registering_gives_the_entry_back():
    table = Registry("function")

    @table.register("one")
    def one():
        return 1

    assert one() == 1
    assert table.get("one") is one


def test_a_name_that_is_taken_is_refused_and_the_entry_stays():
    table = registry()
    with pytest.raises(ValueError, match="the colour 'red' is registered already: choose another"):
        table.register("red")("other")
    assert table.get("red") == "RED"


def test_an_unknown_name_lists_near_ones():
    with pytest.raises(ValueError, match="unknown colour 'gren'; near names: green, greenish"):
        registry().get("gren")


def test_an_unknown_name_without_near_ones_lists_all():
    with pytest.raises(
        ValueError, match="unknown colour 'xyz'; known names: blue, green, greenish"
    ):
        registry().get("xyz")


def test_long_lists_are_cut():
    names = [f"name{i:03}" for i in range(100)]
    assert near_names("xyz", names) == f"known names: {', '.join(names[:30])}, ..."
    assert near_names("name0001", names).count(",") == 4
