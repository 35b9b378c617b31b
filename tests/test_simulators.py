import sys
import types
from importlib import metadata
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers import TimeLimit

from populora_adapters.gymnasium import GymnasiumEnvs
from populora_envs import interact_with_env, register_adapter, simulators
from populora_envs.simulators import find_adapter, looks_like_environment, make
from tests.clock import Clock, DmClock, DuckClock, OldClock, anyone
from tests.imported import imported_by

ADAPTERS = Path(__file__).parent.parent / "adapters" / "populora_adapters"


def of_module(base, module):
    """A subclass of `base` that says it comes from `module`."""
    return type(base.__name__, (base,), {"__module__": module})


def name_of(env):
    adapt = find_adapter(env)
    return adapt.__module__


@pytest.fixture
def simulator(monkeypatch):
    """A simulator called mysim, with an adapter in mysim_adapter."""
    from populora_adapters import duck

    module = types.ModuleType("mysim_adapter")
    module.taken = []

    def adapt(envs):
        module.taken.append(envs)
        return duck.DuckEnvs(envs)

    adapt.__module__ = "mysim_adapter"
    module.adapt = adapt
    monkeypatch.setitem(sys.modules, "mysim_adapter", module)
    monkeypatch.setattr(simulators, "_registered", {})
    return module


# --- which adapter


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        (Clock(), "populora_adapters.gymnasium"),
        (TimeLimit(Clock(), 3), "populora_adapters.gymnasium"),
        (SyncVectorEnv([Clock]), "populora_adapters.gymnasium"),
        (DuckClock(), "populora_adapters.duck"),
        (OldClock(), "populora_adapters.duck"),
        (DmClock(), "populora_adapters.duck"),
        (of_module(DmClock, "dm_env.core")(), "populora_adapters.dm_env"),
        (of_module(DmClock, "dm_control.suite")(), "populora_adapters.dm_env"),
        (of_module(of_module(DmClock, "dm_env"), "mine")(), "populora_adapters.dm_env"),
    ],
)
def test_an_environment_is_known_by_the_modules_of_its_classes(env, expected):
    assert name_of(env) == expected


def test_what_an_environment_uses_inside_does_not_matter():
    class Around(Clock):
        def __init__(self):
            super().__init__()
            self.env = of_module(DmClock, "dm_control.suite")()

    assert name_of(Around()) == "populora_adapters.gymnasium"
    assert name_of(TimeLimit(Around(), 3)) == "populora_adapters.gymnasium"

    class Plain(DuckClock):
        def __init__(self):
            super().__init__()
            self.env = of_module(DmClock, "dm_control.suite")()

    assert name_of(Plain()) == "populora_adapters.duck"


@pytest.mark.parametrize("thing", [3, object(), "CartPole-v1", Clock, np.zeros(2), None])
def test_what_cannot_reset_and_step_is_no_environment(thing):
    assert not looks_like_environment(thing)
    with pytest.raises(TypeError, match="is no environment"):
        find_adapter(object())


@pytest.mark.parametrize("root", sorted(simulators._builtin))
def test_every_simulator_in_the_table_has_its_file(root):
    target = simulators._target(of_module(DuckClock, f"{root}.envs")(), simulators._table())
    module = target.partition(":")[0].rpartition(".")[2]
    assert (ADAPTERS / f"{module}.py").exists()


@pytest.mark.parametrize("module", sorted(set(simulators._ids.values())))
def test_every_beginning_of_an_id_has_its_file(module):
    assert (ADAPTERS / f"{module.rpartition('.')[2]}.py").exists()


def test_a_simulator_whose_name_begins_like_a_known_one_is_another():
    assert name_of(of_module(Clock, "envpoolish.x")()) == "populora_adapters.gymnasium"


# --- adapters of a third party


@pytest.mark.parametrize("root", ["mysim", "gymnasium", "dm_env", "envpool"])
def test_a_registered_adapter_goes_before_all_others(simulator, root):
    register_adapter(root, "mysim_adapter:adapt")
    base = Clock if root == "gymnasium" else of_module(Clock, f"{root}.envs")
    envs = [base(), base()]
    with interact_with_env(envs) as interactor:
        assert interactor.evaluate(anyone(interactor, 3)).tolist() == [6.0] * 3
    assert simulator.taken == [envs]


def test_a_registered_adapter_is_found_behind_wrappers(simulator):
    register_adapter("mysim", "mysim_adapter:adapt")
    env = TimeLimit(of_module(Clock, "mysim.envs")(), 3)
    assert name_of(env) == "mysim_adapter"


def test_the_outermost_match_wins(simulator):
    register_adapter("mysim", "mysim_adapter:adapt")
    outer = of_module(TimeLimit, "mysim.wrappers")
    assert name_of(outer(of_module(Clock, "envpool")(), 3)) == "mysim_adapter"


def test_an_entry_point_names_an_adapter(simulator, monkeypatch):
    point = metadata.EntryPoint("mysim", "mysim_adapter:adapt", "populora_envs.adapters")

    def entry_points(*, group):
        return [point] if group == "populora_envs.adapters" else []

    monkeypatch.setattr(metadata, "entry_points", entry_points)
    env = of_module(Clock, "mysim.envs")()
    assert name_of(env) == "mysim_adapter"
    register_adapter("mysim", "populora_adapters.duck:adapt")
    assert name_of(env) == "populora_adapters.duck"


@pytest.mark.parametrize("target", ["mysim_adapter", "mysim_adapter:", ":adapt", ""])
def test_a_target_of_another_form_is_an_error(target):
    with pytest.raises(ValueError, match=r"'package\.module:function'"):
        register_adapter("mysim", target)


# --- ids


@pytest.mark.parametrize(
    ("env_id", "words"),
    [
        ("CartPole-v7", "near names: CartPole-v1"),
        ("Cartpole-v1", "near names: CartPole-v1"),
        ("no such thing", "'no such thing'"),
        ("", "''"),
        ("nomodule:Thing-v0", "No module named 'nomodule'"),
        ("NoSpace/Thing-v0", "NoSpace"),
    ],
)
def test_an_unknown_id_lists_names(env_id, words):
    with pytest.raises(ValueError, match="there is no environment") as raised:
        interact_with_env(env_id)
    assert words in str(raised.value)
    assert "names: " in str(raised.value)


@pytest.mark.filterwarnings("ignore:.*is out of date")
def test_an_id_that_is_no_more_lists_its_successor():
    with pytest.raises(ValueError, match="near names: Taxi-v4"):
        make("Taxi-v3")


def raising(error):
    def entry_point(**settings):
        raise error

    return entry_point


@pytest.fixture
def broken():
    gymnasium.register("Broken-v0", entry_point=lambda **settings: None)
    yield gymnasium.registry["Broken-v0"]
    del gymnasium.registry["Broken-v0"]


@pytest.mark.parametrize(
    ("said", "extra"),
    [
        (
            'Box2D is not installed, you can install it by run `pip install "gymnasium[box2d]"`',
            "box2d",
        ),
        ('MuJoCo is not installed, run `pip install "gymnasium[mujoco]"`', "mujoco"),
        ("ale-py is not installed", "atari"),
    ],
)
def test_a_missing_simulator_names_its_extra(broken, said, extra):
    broken.entry_point = raising(gymnasium.error.DependencyNotInstalled(said))
    with pytest.raises(ImportError, match="not installed") as raised:
        make("Broken-v0")
    assert str(raised.value).endswith(f': pip install "populora-envs[{extra}]"')


def test_a_known_id_that_misses_a_module_is_not_called_unknown(broken):
    broken.entry_point = raising(ModuleNotFoundError("No module named 'engine'", name="engine"))
    with pytest.raises(ModuleNotFoundError, match="engine"):
        make("Broken-v0")


def test_an_id_of_a_third_party_is_made_by_its_adapter(simulator):
    simulator.make = lambda env_id: DuckClock() if env_id == "mysim/clock" else None
    with pytest.raises(ValueError, match="there is no environment"):
        make("mysim/clock")
    register_adapter("mysim", "mysim_adapter:adapt")
    assert type(make("mysim/clock")) is DuckClock
    del simulator.make  # then ids are gymnasium's
    with pytest.raises(ValueError, match="there is no environment"):
        make("mysim/clock")


class Batch:
    """Slots that pay their number, restarted one by one."""

    def __init__(self, num_envs):
        self.num_envs, self.closes = num_envs, 0

    def reset(self):
        """Made as an environment looks, and never called."""

    step = reset

    def close(self):
        self.closes += 1


def test_an_id_with_batches_of_its_own_gets_one_of_the_size_that_is_of_use(simulator):
    made = []

    def make_batch(env_id, num_envs):
        assert env_id == "mysim/clock"
        made.append(Batch(num_envs))
        return made[-1]

    simulator.make = lambda env_id: pytest.fail("a batch is what it has")
    simulator.make_batch = make_batch
    simulator.adapt = lambda envs: GymnasiumEnvs([Clock() for _ in range(envs[0].num_envs)])
    register_adapter("mysim", "mysim_adapter:adapt")
    Batch.__module__ = "mysim"
    with interact_with_env("mysim/clock") as interactor:
        assert interactor.num_envs == 1
        assert interactor.evaluate(anyone(interactor, 3), num_episodes=2).tolist() == [6.0] * 3
        assert [batch.num_envs for batch in made] == [1, 6]
        interactor.evaluate(anyone(interactor, 2))
        assert [batch.closes for batch in made] == [1, 0]
    assert [batch.closes for batch in made] == [1, 1]
    with interact_with_env("mysim/clock", num_envs=4) as interactor:
        assert interactor.num_envs == 4
        interactor.evaluate(anyone(interactor, 9))
    assert [batch.num_envs for batch in made] == [1, 6, 4]


def test_ids_of_both_kinds_play():
    with interact_with_env("CartPole-v1", num_envs=2) as interactor:
        assert interactor.reset().shape == (2, 4)
    assert isinstance(make("CartPole-v1"), gymnasium.Env)


# --- nothing is imported to look


def test_looking_at_an_environment_of_the_user_imports_no_simulator():
    code = """
from populora_envs.simulators import find_adapter
class Env:
    def reset(self): ...
    def step(self, action): ...
find_adapter(Env())
"""
    assert imported_by(code) == set()


def test_a_gymnasium_environment_imports_no_other_simulator():
    code = "from populora_envs import interact_with_env; interact_with_env('CartPole-v1')"
    assert imported_by(code) == set()
