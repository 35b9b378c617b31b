"""The docstring of everything public says enough to use it."""

from __future__ import annotations

import doctest
import inspect
import re

import pytest

import populora_envs

SECTION = re.compile(
    r"^(Args|Attributes|Returns|Raises|Yields|Example|Examples):\n((?:(?: .*)?\n)*)", re.MULTILINE
)


def sections(thing):
    """By its title, the text of each section of a docstring."""
    return dict(SECTION.findall(f"{inspect.getdoc(thing) or ''}\n"))


def parameters_of(thing):
    found = inspect.signature(thing).parameters.values()
    return [p.name for p in found if p.name not in {"self", "cls"}]


def documented_in(text):
    """The names that begin an entry: `name: text`, `**name: text` or `one, two: text`."""
    heads = re.findall(r"^ {4}(\*{0,2}\w+(?:, \*{0,2}\w+)*):", text, flags=re.MULTILINE)
    return {name.strip(" *") for head in heads for name in head.split(",")}


def public_members():
    """All names of `__all__` and the public methods that their classes define here."""
    for name in populora_envs.__all__:
        thing = getattr(populora_envs, name)
        yield name, thing
        if inspect.isclass(thing):
            ours = [c for c in thing.__mro__ if c.__module__.startswith("populora_envs")]
            for kind in reversed(ours):  # what a class overrides comes last and stays
                for method, function in vars(kind).items():
                    function = getattr(function, "__func__", function)
                    if not method.startswith("_") and inspect.isfunction(function):
                        yield f"{name}.{method}", function


MEMBERS = dict(public_members())
NOT_OURS = {"History"}
"""A list, made as lists are."""


@pytest.mark.parametrize("name", sorted(set(populora_envs.__all__) - NOT_OURS))
def test_every_parameter_of_a_public_name_has_its_line_and_no_other(name):
    thing = MEMBERS[name]
    title = "Attributes" if hasattr(thing, "_fields") else "Args"  # a named tuple's are both
    assert documented_in(sections(thing).get(title, "")) == set(parameters_of(thing))


@pytest.mark.parametrize("name", MEMBERS)
def test_every_parameter_of_a_public_method_is_named(name):
    thing = MEMBERS[name]
    words = set(re.findall(r"\w+", inspect.getdoc(thing) or ""))
    assert name in NOT_OURS or set(parameters_of(thing)) <= words
    assert documented_in(sections(thing).get("Args", "")) <= set(parameters_of(thing))


@pytest.mark.parametrize("name", MEMBERS)
def test_what_is_returned_is_said(name):
    thing = MEMBERS[name]
    if not inspect.isclass(thing) and inspect.signature(thing).return_annotation != "None":
        first = (inspect.getdoc(thing) or "").partition("\n")[0]
        said = re.search(r"\b(return|make|say|bind|score)\b", first, flags=re.IGNORECASE)
        assert said or "Returns" in sections(thing), "say what comes back"


@pytest.mark.parametrize(
    "name", [name for name, thing in MEMBERS.items() if ">>>" in (inspect.getdoc(thing) or "")]
)
def test_examples_in_docstrings_give_what_they_say(name):
    thing = MEMBERS[name]
    (example,) = doctest.DocTestFinder(recurse=False).find(thing, name)
    assert doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(example).failed == 0


def test_help_on_the_main_call_names_defaults_units_errors_and_results():
    told = sections(populora_envs.evolve_with_env)
    assert {"Args", "Returns", "Raises", "Example"} <= set(told)


@pytest.mark.parametrize(
    ("doc", "names"),
    [
        (
            "A thing.\n\nArgs:\n    one: first.\n    **two: rest\n        of it: here.\n",
            {"one", "two"},
        ),
        ("A thing.\n\nArgs:\n    one, two: both.\n\nReturns:\n    three: no.\n", {"one", "two"}),
        ("A thing.", set()),
    ],
)
def test_names_are_read_from_the_section_of_arguments_alone(doc, names):
    def thing():
        """Replaced."""

    thing.__doc__ = doc
    assert documented_in(sections(thing).get("Args", "")) == names


def test_the_public_face_is_what_the_package_shows():
    shown = {
        name
        for name, thing in vars(populora_envs).items()
        if not name.startswith("_") and not inspect.ismodule(thing)
    }
    assert shown == set(populora_envs.__all__)
