import dataclasses
import inspect

import numpy as np
import pytest
import torch

from populora_envs.population import Population
from populora_envs.settings import (
    GeneticSettings,
    at_least,
    real_number,
    settings_from,
    whole_number,
)


def test_settings_take_what_is_theirs_and_leave_the_rest():
    settings, rest = settings_from(GeneticSettings, {"survive_frac": 0.3, "epsilon": 0.1})
    assert settings == GeneticSettings(survive_frac=0.3)
    assert rest == {"epsilon": 0.1}


def test_the_steps_of_the_genetic_algorithm_have_the_defaults_of_its_settings():
    defaults = {field.name: field.default for field in dataclasses.fields(GeneticSettings)}
    for method in (Population.select, Population.select_parents):
        for name, parameter in inspect.signature(method).parameters.items():
            if parameter.default not in (parameter.empty, None):
                assert parameter.default == defaults[name]


@pytest.mark.parametrize("value", [3, np.int32(3), torch.tensor(3)])
def test_whole_numbers_of_any_kind_become_ints(value):
    assert type(at_least("size", value, 1)) is int
    assert at_least("size", value, 3) == 3


@pytest.mark.parametrize("value", [3.0, "3", None, True, torch.tensor(3.0), torch.tensor([3, 4])])
def test_anything_else_is_no_whole_number(value):
    with pytest.raises(TypeError, match="size must be a whole number, not "):
        whole_number("size", value)


def test_a_number_below_the_least_is_named():
    with pytest.raises(ValueError, match="size must be at least 1, not -2"):
        at_least("size", -2, 1)


@pytest.mark.parametrize("value", [3, 3.5, np.float32(3), torch.tensor(3.0)])
def test_numbers_of_any_kind_become_floats(value):
    assert type(real_number("scale", value)) is float


@pytest.mark.parametrize("value", ["3", True, None, [3.0]])
def test_what_is_no_number_is_refused(value):
    with pytest.raises(TypeError, match="scale must be a number, not "):
        real_number("scale", value)
