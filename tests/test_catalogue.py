"""What can be listed: ids lead back to the module that told them."""

import pytest

from populora_envs import simulators
from populora_envs.catalogue import catalogue, environments, ids_of

MODULES = simulators.id_modules()


@pytest.mark.parametrize("module", MODULES, ids=lambda name: name.rpartition(".")[2])
def test_ids_lead_back_to_the_module_that_told_them(module):
    found = ids_of(module)
    if not found:
        pytest.skip("the simulator is missing, or tells no ids")
    assert len(set(found)) == len(found)
    for env_id in found:
        assert simulators.module_of_id(env_id).__name__ == module


def test_what_is_not_installed_is_said():
    said = "\n".join(catalogue())
    for module in MODULES:
        if ids_of(module) is None:
            assert f"{module.rpartition('.')[2]}: not installed" in said


def test_a_word_finds_ids_whatever_its_case():
    assert environments("CARTPOLE-V1")[0] == "CartPole-v1"
