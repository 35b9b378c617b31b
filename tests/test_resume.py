"""Runs that go on from their files, and what those files hold."""

import csv
import json
import shutil

import pytest
import torch
from torch import nn

from populora_envs import evolve_with_env, interact_with_env
from populora_envs.checkpoint import Checkpoints
from tests.runs import Watch, assert_same_end, run
from tests.test_evolve import KEYS
from tests.tiny import Aim, Lottery, Record, aim_discrete, linear, same, without_times


@pytest.fixture(scope="module")
def whole():
    return run()


# --- resume


@pytest.mark.parametrize("settings", [{}, {"num_envs": 2}, {"checkpoint_every": 2}])
def test_run_of_three_that_goes_on_to_six_equals_one_of_six(whole, tmp_path, settings):
    run(num_generations=3, checkpoint_dir=tmp_path)
    assert_same_end(whole, run(checkpoint_dir=tmp_path, resume=True, **settings))


@pytest.mark.parametrize("checkpoint_every", [1, 2, 5])
@pytest.mark.parametrize("error", [RuntimeError("crash"), KeyboardInterrupt()])
def test_crashed_run_goes_on_bit_for_bit(whole, tmp_path, checkpoint_every, error):
    record = Record()
    settings = {"checkpoint_dir": tmp_path, "checkpoint_every": checkpoint_every}
    with pytest.raises(type(error)):
        run(lambda: Aim(record), watch=Watch(3, error), **settings)
    assert record.made == record.closed > 0
    again = run(resume=True, **settings)
    assert_same_end(whole, again)
    first = {1: 4, 2: 4, 5: 0}[checkpoint_every]
    assert again[2].generations == list(range(first, 6))


@pytest.mark.parametrize("env", [aim_discrete, Lottery])
def test_resume_with_drawn_actions(tmp_path, env):
    width = 3 if env is aim_discrete else 2
    settings = {"action": "categorical", "standardize": False}
    one = run(env, linear(2, width), **settings)
    run(env, linear(2, width), num_generations=2, checkpoint_dir=tmp_path, **settings)
    two = run(env, linear(2, width), checkpoint_dir=tmp_path, resume=True, num_envs=1, **settings)
    assert_same_end(one, two)


def test_last_look_of_a_shorter_run_leaves_no_trace_in_a_longer_one(tmp_path):
    """The last look lets the champion play more episodes than the longer run had at that time."""
    settings = {"pop_size": 4, "standardize": False}
    for seed in range(4):
        one = run(seed=seed, num_generations=8, **settings)
        folder = tmp_path / str(seed)
        for num_generations in (1, 2, 5, 8):
            two = run(
                seed=seed,
                num_generations=num_generations,
                checkpoint_dir=folder,
                resume=True,
                **settings,
            )
        assert_same_end(one, two)


@pytest.mark.parametrize("damage", [b"", b"nonsense", None])
def test_damaged_latest_falls_back_to_the_one_before(whole, tmp_path, damage):
    with pytest.raises(RuntimeError):
        run(watch=Watch(3), checkpoint_dir=tmp_path)
    latest = tmp_path / "latest.pt"
    if damage is None:
        content = latest.read_bytes()
        damage = content[: len(content) // 2]
    latest.write_bytes(damage)
    with pytest.warns(UserWarning, match=r"previous.pt, the checkpoint before it, is used"):
        again = run(checkpoint_dir=tmp_path, resume=True)
    assert again[2].generations == [3, 4, 5]
    assert_same_end(whole, again)


def test_finished_run_returns_at_once_with_its_history(whole, tmp_path):
    run(checkpoint_dir=tmp_path)
    record, watch = Record(), Watch()
    policy, history, _ = run(lambda: Aim(record), watch=watch, checkpoint_dir=tmp_path, resume=True)
    assert record.steps == 0
    assert record.made == record.closed
    assert watch.generations == []
    assert history == whole[1]
    assert same(policy.state_dict(), whole[0].state_dict())


def test_run_that_reached_its_target_returns_at_once(tmp_path):
    settings = {"target_fitness": -1000.0, "checkpoint_dir": tmp_path}
    policy, history, _ = run(**settings)
    assert len(history) == 1
    record = Record()
    again, same_history, _ = run(lambda: Aim(record), resume=True, **settings)
    assert record.steps == 0
    assert same_history == history
    assert same(policy.state_dict(), again.state_dict())


def test_run_that_reached_its_target_goes_on_to_a_higher_one(tmp_path):
    run(target_fitness=-1000.0, checkpoint_dir=tmp_path)
    _, history, _ = run(target_fitness=1000.0, checkpoint_dir=tmp_path, resume=True)
    assert len(history) == 6


def test_resume_where_there_is_nothing_starts_anew(whole, tmp_path):
    assert_same_end(whole, run(checkpoint_dir=tmp_path / "new", resume=True))


def test_folder_that_holds_a_run_is_not_overwritten(tmp_path):
    run(num_generations=1, checkpoint_dir=tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    record = Record()
    with pytest.raises(ValueError, match="holds a run: pass resume=True"):
        run(lambda: Aim(record), checkpoint_dir=tmp_path)
    assert before == {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert record.made == record.closed
    assert record.steps == 0


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"pop_size": 7}, "pop_size was 6 in the checkpoint and is 7 now"),
        ({"low_rank": 3}, "low_rank was 2 in the checkpoint and is 3 now"),
        ({"seed": 9}, "seed was 3 in the checkpoint and is 9 now"),
        ({"num_episodes": 2}, "num_episodes was 1 in the checkpoint and is 2 now"),
        ({"horizon": 9}, "horizon was 8 in the checkpoint and is 9 now"),
        ({"standardize": False}, "standardize was True in the checkpoint and is False now"),
        ({"action": "squashed_gaussian"}, "action was None .* is 'squashed_gaussian' now"),
        ({"lora_targets": "0"}, r"lora_targets was None .* is \['0'\] now"),
        ({"epsilon": 0.5}, r"choices was {} .* is {'epsilon': 0.5} now"),
        ({"env": aim_discrete, "model": linear(2, 3)}, "action_space was .*Box.* is .*Discrete"),
        ({"model": linear(2, 2), "action": "beta"}, "action was None"),
    ],
)
def test_other_settings_are_refused_with_both_values(tmp_path, settings, words):
    run(num_generations=1, checkpoint_dir=tmp_path)
    with pytest.raises(ValueError, match=words):
        run(checkpoint_dir=tmp_path, resume=True, **settings)


def test_model_of_another_shape_is_refused(tmp_path):
    run(num_generations=1, checkpoint_dir=tmp_path)
    wide = nn.Sequential(nn.Linear(2, 9), nn.Tanh(), nn.Linear(9, 1), nn.Tanh())
    with pytest.raises(ValueError, match=r"\(9, 2\) here and \(8, 2\) in the file"):
        run(model=wide, checkpoint_dir=tmp_path, resume=True)


def test_base_comes_from_the_checkpoint(whole, tmp_path):
    run(num_generations=3, checkpoint_dir=tmp_path)
    assert_same_end(whole, run(model=linear(seed=77), checkpoint_dir=tmp_path, resume=True))


# --- files


def test_files_of_a_run(tmp_path):
    _, history, _ = run(checkpoint_dir=tmp_path)
    names = {path.name for path in tmp_path.iterdir()}
    tables = {"history.csv", "population.csv"}
    models = {"latest.pt", "previous.pt", "best.pt", "policy.safetensors"}
    assert names == {*models, "config.json", *tables}
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["pop_size"] == 6
    assert config["seed"] == 3
    assert config["observation_space"].startswith("Box(-4.0, 4.0, (2,)")
    assert config["versions"]["torch"]
    with (tmp_path / "history.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == [*KEYS, "base_fitness"]
    assert [int(row["generation"]) for row in rows] == list(range(6))
    assert [float(row["best_fitness"]) for row in rows] == [e["best_fitness"] for e in history]
    assert float(rows[-1]["champion_mean"]) == history[-1]["champion_mean"]


def test_history_is_rewritten_from_the_checkpoint(tmp_path):
    run(num_generations=3, checkpoint_dir=tmp_path)
    (tmp_path / "history.csv").write_text("scribble")
    run(checkpoint_dir=tmp_path, resume=True)
    assert len((tmp_path / "history.csv").read_text().splitlines()) == 7


def test_all_files_load_with_weights_only(tmp_path):
    run(checkpoint_dir=tmp_path)
    for name in ("latest.pt", "previous.pt", "best.pt"):
        assert isinstance(torch.load(tmp_path / name, weights_only=True), dict)


@pytest.mark.parametrize("search", ["es", "ga", "snes"])
def test_best_holds_the_champion(tmp_path, search):
    model = linear()
    policy, history, _ = run(
        model=model,
        checkpoint_dir=tmp_path,
        num_generations=20,
        standardize=False,
        search=search,
    )
    assert history[-1]["champion_mean"] > history[0]["base_fitness"]
    best = torch.load(tmp_path / "best.pt", weights_only=True)
    assert best["mean"] == history[-1]["champion_mean"]
    assert best["standard_error"] == history[-1]["champion_se"]
    assert best["settings"]["pop_size"] == 6
    with interact_with_env(Aim) as interactor:
        low_rank = 8 if search == "es" else 2
        population = interactor.population(model, pop_size=2, low_rank=low_rank, adapt_bias=True)
        population.load_individual(tmp_path / "best.pt", 1)
        merged, returned = population.merge_(1).state_dict(), policy.model.state_dict()
    assert merged.keys() == returned.keys()
    for name, expected in returned.items():
        # the change of a moved base is dense: its factors are found by a decomposition
        torch.testing.assert_close(merged[name], expected, atol=1e-5, rtol=1e-5)


def test_best_holds_the_statistics_of_the_champion(tmp_path):
    policy, _, _ = run(checkpoint_dir=tmp_path, num_generations=20)
    best = torch.load(tmp_path / "best.pt", weights_only=True)
    assert same(best["normalizer"], policy.model.normalizer.state_dict())
    assert best["normalizer"]["count"] > 0


def test_best_is_there_even_where_nobody_beats_the_base(tmp_path):
    evolve_with_env(
        None,
        nn.Linear(1, 1),
        fitness=lambda population: [0.0] * population.pop_size,
        num_generations=2,
        pop_size=2,
        checkpoint_dir=tmp_path,
    )
    best = torch.load(tmp_path / "best.pt", weights_only=True)
    assert best["mean"] == 0.0
    assert all(not part.any() for part in best["weights"][""].values())


def test_latest_is_written_every_so_many_generations(tmp_path):
    seen = []

    def note(population, entry):
        latest = Checkpoints(tmp_path).load_latest()
        seen.append(None if latest is None else len(latest["history"]))

    run(watch=note, checkpoint_dir=tmp_path, checkpoint_every=2)
    assert seen == [None, 2, 2, 4, 4, 4]
    assert len(Checkpoints(tmp_path).load_latest()["history"]) == 6


def test_interrupt_leaves_the_checkpoint_intact(tmp_path):
    class Interrupted(Aim):
        def step(self, action):
            if self.record.steps == 150:
                raise KeyboardInterrupt
            return super().step(action)

    record = Record()
    with pytest.raises(KeyboardInterrupt):
        run(lambda: Interrupted(record), checkpoint_dir=tmp_path)
    assert record.made == record.closed
    done = len(Checkpoints(tmp_path).load_latest()["history"])
    assert 1 <= done < 6
    assert not list(tmp_path.glob(".*"))
    assert len(run(checkpoint_dir=tmp_path, resume=True)[1]) == 6


def test_failing_write_leaves_the_checkpoint_and_closes_the_environments(tmp_path, monkeypatch):
    run(num_generations=2, checkpoint_dir=tmp_path)
    shutil.copytree(tmp_path, tmp_path.with_name("copy"))
    record = Record()

    def fails(*_):
        message = "no space left"
        raise OSError(message)

    monkeypatch.setattr("populora_envs.checkpoint.replace_file", fails)
    with pytest.raises(OSError, match="no space left"):
        run(lambda: Aim(record), checkpoint_dir=tmp_path, resume=True)
    assert record.made == record.closed
    monkeypatch.undo()
    assert len(Checkpoints(tmp_path).load_latest()["history"]) == 2


@pytest.mark.parametrize("search", ["es", "ga"])
def test_a_run_that_stopped_after_any_generation_equals_one_that_did_not(search, tmp_path):
    def played(folder, generations):
        return evolve_with_env(
            "CartPole-v1",
            search=search,
            num_generations=generations,
            pop_size=4,
            low_rank=2,
            seed=1,
            horizon=40,
            checkpoint_dir=folder,
            resume=True,
            return_history=True,
        )

    policy, history = played(tmp_path / "whole", 10)
    for stop in range(1, 10):
        played(tmp_path / str(stop), stop)
        again, other = played(tmp_path / str(stop), 10)
        assert without_times(other) == without_times(history)
        for name, weights in policy.state_dict().items():
            assert torch.equal(again.state_dict()[name], weights), (stop, name)
