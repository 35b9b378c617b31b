"""Individuals as plain tensors and as files: with biases, on a moved base, dense or of another rank."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

from populora_envs.normalizer import Moments, Normalizer, Standardized
from tests.populations import assert_close, mlp, numbers, population, same
from tests.test_moved import base, flat, parts, step


def adapted(model=None, seed=0, *, move=0.0, **options):
    """A population whose biases are adapted; its base has moved by `move`."""
    pop = population(model or mlp(), seed=seed, **{"adapt_bias": True, **options})
    if move:
        pop.move_base_(step(pop, move))
    return pop


def same_state(one, other):
    return one.keys() == other.keys() and all(
        one[n].keys() == other[n].keys() and same(one[n].values(), other[n].values()) for n in one
    )


def lost(change, rank):
    """The share of the norm of all weights that no factors of this rank can hold."""
    values = [torch.linalg.svdvals(layer["weight"].double()).square() for layer in change.values()]
    return (sum(v[rank:].sum() for v in values) / sum(v.sum() for v in values)).sqrt().item()


def assert_no_warning(call):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return call()


# --- as tensors


def test_a_state_has_the_offsets_and_is_a_copy():
    pop = adapted()
    state = pop.individual_state(2)
    assert {n: list(p) for n, p in state.items()} == {n: ["down", "up", "offset"] for n in "02"}
    assert torch.equal(state["0"]["offset"], pop.individuals["0"].offset[2])
    before = parts(pop)
    for tensor in flat(state):
        tensor.zero_()
    assert same(parts(pop), before)
    assert "offset" not in population().individual_state(0)["0"]


def test_a_base_state_equals_the_base():
    pop = adapted(move=0.5)
    assert all((t == 0).all() for t in flat(pop.base_state()))
    pop.write_individual_(1, pop.base_state())
    assert same(pop.merge_(1).state_dict().values(), base(pop).values())


def test_writing_an_individual_leaves_the_others():
    pop = adapted()
    before = [pop.individual_state(i) for i in range(4)]
    pop.write_individual_(3, before[0])
    now = [pop.individual_state(i) for i in range(4)]
    assert all(same_state(now[i], before[i]) for i in range(3))
    assert same_state(now[3], before[0])
    assert_close(pop(numbers(3, 2), individual=3), pop.merge_(0)(numbers(3, 2)))


def test_an_individual_without_offsets_leaves_biases_as_they_are():
    plain, pop = population(seed=1, adapt_bias=False), adapted()
    pop.write_individual_(2, plain.individual_state(1))
    assert all((layer.offset[2] == 0).all() for layer in pop.individuals.values())
    assert all((layer.offset[1] != 0).any() for layer in pop.individuals.values())
    assert torch.equal(pop.individuals["0"].down[2], plain.individuals["0"].down[1])


def test_offsets_do_not_fit_where_biases_stay():
    plain, state = population(), adapted().individual_state(1)
    before = parts(plain)
    with pytest.raises(ValueError, match=r"changes the bias of 0 and .* adapt_bias=True"):
        plain.write_individual_(0, state)
    assert same(parts(plain), before)
    for layer in state.values():
        layer["offset"].zero_()
    plain.write_individual_(0, state)
    assert torch.equal(plain.individuals["0"].up[0], state["0"]["up"])


@pytest.mark.parametrize("name", ["0", "2"])
def test_an_offset_of_another_shape_is_refused_and_nothing_is_changed(name):
    pop = adapted()
    state, before = pop.individual_state(1), parts(pop)
    state[name]["offset"] = torch.ones(11)
    with pytest.raises(
        ValueError, match=rf"{name}\.offset is \(\d,\) here and \(11,\) in the file"
    ):
        pop.write_individual_(0, state)
    assert same(parts(pop), before)


# --- the dense change


@pytest.mark.parametrize("move", [0.0, 0.5])
@pytest.mark.parametrize("adapt_bias", [True, False])
def test_a_change_is_the_merged_weights_minus_those_given(move, adapt_bias):
    model = mlp()
    pop = adapted(model, adapt_bias=adapt_bias, move=move)
    for i in range(4):
        merged, change = pop.merge_(i).state_dict(), pop.individual_change(i)
        for name, layer in model.named_modules():
            if isinstance(layer, nn.Linear):
                assert_close(change[name]["weight"], merged[f"{name}.weight"] - layer.weight)
                has_bias = adapt_bias or bool(move)
                assert ("bias" in change[name]) is has_bias
                bias = change[name].get("bias", torch.zeros_like(layer.bias))
                assert_close(bias, merged[f"{name}.bias"] - layer.bias)


@pytest.mark.parametrize("move", [0.0, 0.5])
def test_a_change_is_a_copy(move):
    pop = adapted(move=move)
    before, moved = parts(pop), pop.base_change()
    for tensor in flat(pop.individual_change(1)):
        tensor.zero_()
    assert same(parts(pop), before)
    assert moved is None or same(flat(pop.base_change()), flat(moved))


# --- files of individuals with biases


@pytest.mark.parametrize("move", [0.0, 0.5])
@pytest.mark.parametrize("low_rank", [None, 2])
def test_saving_changes_nothing(tmp_path, move, low_rank):
    pop = adapted(move=move)
    weights, genes = base(pop), parts(pop)
    moved = pop.base_change()
    pop.save_individual(tmp_path / "one.pt", 1, low_rank)
    assert same(base(pop).values(), weights.values())
    assert same(parts(pop), genes)
    assert moved is None or same(flat(pop.base_change()), flat(moved))


def test_an_individual_with_biases_is_saved_and_loaded_exactly(tmp_path):
    model = mlp()
    pop, other = adapted(model), adapted(model, seed=1)
    assert pop.save_individual(tmp_path / "one.pt", 2) == 0
    assert_no_warning(lambda: other.load_individual(tmp_path / "one.pt", 3))
    assert same_state(other.individual_state(3), pop.individual_state(2))
    before = parts(plain := population(model, seed=1))
    with pytest.raises(ValueError, match="adapt_bias=True"):
        plain.load_individual(tmp_path / "one.pt", 3)
    assert same(parts(plain), before)


def test_a_file_without_offsets_loads_where_biases_are_adapted(tmp_path):
    model = mlp()
    plain, pop = population(model, seed=1), adapted(model)
    plain.save_individual(tmp_path / "one.pt", 1)
    plain.save(tmp_path / "population.pt")
    pop.load_individual(tmp_path / "one.pt", 2)
    assert torch.equal(pop(numbers(3, 2), individual=2), plain(numbers(3, 2), individual=1))
    pop.load(tmp_path / "population.pt")
    assert all((layer.offset == 0).all() for layer in pop.individuals.values())
    x = numbers(4, 2)
    assert_close(pop(x, all_individuals=True), plain(x, all_individuals=True))


def test_a_whole_population_with_biases(tmp_path):
    pop, other = adapted(), adapted(seed=1)
    pop.save(tmp_path / "population.pt")
    other.load(tmp_path / "population.pt")
    assert same(parts(other), parts(pop))
    assert same(base(other).values(), base(pop).values())


def test_a_population_that_does_not_fit_changes_nobody(tmp_path):
    pop, plain = adapted(), population(seed=1)
    pop.write_individual_(0, pop.base_state())  # it would fit
    pop.save(tmp_path / "population.pt")
    before = parts(plain)
    with pytest.raises(ValueError, match="adapt_bias=True"):
        plain.load(tmp_path / "population.pt")
    assert same(parts(plain), before)


# --- files of individuals on a moved base


@pytest.mark.parametrize("rank", [3, 8])
def test_a_moved_individual_is_a_dense_change_of_the_weights_given(tmp_path, rank):
    """The ranks of the layers are 2 and 1, so 3 is enough."""
    model = mlp()
    pop = adapted(model, move=0.5)
    assert pop.save_individual(tmp_path / "one.pt", 1) == 0
    content = torch.load(tmp_path / "one.pt", weights_only=True)
    assert same_state(content["weights"], pop.individual_change(1))
    assert {n: list(p) for n, p in content["weights"].items()} == {
        n: ["weight", "bias"] for n in "02"
    }
    fresh = adapted(model, seed=1, low_rank=rank)
    assert_no_warning(lambda: fresh.load_individual(tmp_path / "one.pt", 2))
    expected = pop.merge_(1).state_dict()
    for name, tensor in fresh.merge_(2).state_dict().items():
        assert_close(tensor, expected[name])
    x = numbers(3, 2)
    assert_close(fresh(x, individual=2), pop(x, individual=1))


def deep():
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 5, bias=False))


@pytest.mark.parametrize("rank", [1, 2, 4])
def test_a_rank_that_is_too_small_is_warned_of(tmp_path, rank):
    model = deep()
    pop = adapted(model, move=0.5)
    pop.save_individual(tmp_path / "one.pt", 1)
    change = pop.individual_change(1)
    fresh = adapted(model, low_rank=rank)
    with pytest.warns(UserWarning, match=rf"a rank above low_rank={rank}: ") as said:
        fresh.load_individual(tmp_path / "one.pt", 2)
    assert float(str(said[0].message).split(": ")[1].split(" of")[0]) == pytest.approx(
        lost(change, rank), rel=0.06
    )
    merged, got = pop.merge_(1), fresh.merge_(2)
    gaps = [torch.linalg.norm(merged[k].weight - got[k].weight) ** 2 for k in (0, 2)]
    norm = sum(torch.linalg.norm(layer["weight"]) ** 2 for layer in change.values())
    assert (sum(gaps) / norm).sqrt().item() == pytest.approx(lost(change, rank), rel=1e-3)
    assert_close(got[0].bias, merged[0].bias)


@pytest.mark.parametrize("move", [0.0, 0.5])
@pytest.mark.parametrize("rank", [1, 2, 3, 9])
def test_an_individual_is_saved_at_a_rank_of_choice(tmp_path, move, rank):
    model = deep()
    pop = adapted(model, move=move)
    change = pop.individual_change(1)
    error = pop.save_individual(tmp_path / "one.pt", 1, low_rank=rank)
    assert error == pytest.approx(lost(change, rank), rel=1e-3, abs=1e-5)
    content = torch.load(tmp_path / "one.pt", weights_only=True)
    assert (content["low_rank"], content["error"]) == (rank, error)
    fresh = adapted(model, seed=1, low_rank=rank)
    assert_no_warning(lambda: fresh.load_individual(tmp_path / "one.pt", 2))
    best = fresh.individual_change(2)
    assert lost(best, rank) < 1e-5
    for name, layer in change.items():
        values = torch.linalg.svdvals(layer["weight"])
        gap = torch.linalg.norm(layer["weight"] - best[name]["weight"])
        assert_close(gap, values[rank:].square().sum().sqrt())
        if "bias" in layer:
            assert_close(best[name]["bias"], layer["bias"])


@pytest.mark.parametrize("rank", [0, -1, 1.5])
def test_a_rank_below_one_is_refused(tmp_path, rank):
    with pytest.raises((ValueError, TypeError), match="low_rank"):
        adapted().save_individual(tmp_path / "one.pt", 1, low_rank=rank)
    assert not (tmp_path / "one.pt").exists()


@pytest.mark.parametrize("source", [0.0, 0.5], ids=["still", "moved"])
def test_an_individual_is_loaded_onto_a_base_that_has_moved(tmp_path, source):
    model = mlp()
    pop = adapted(model, move=source)
    pop.save_individual(tmp_path / "one.pt", 1)
    other = adapted(model, seed=1, low_rank=8)
    other.move_base_(step(other, 0.3, seed=11))
    weights = base(other)
    assert_no_warning(lambda: other.load_individual(tmp_path / "one.pt", 2))
    assert same(base(other).values(), weights.values())
    expected = pop.merge_(1).state_dict()
    for name, tensor in other.merge_(2).state_dict().items():
        assert_close(tensor, expected[name])


def test_a_base_that_moved_without_its_biases_needs_no_adapted_biases(tmp_path):
    model = mlp()
    pop = population(model)
    pop.move_base_(step(pop, bias=False))
    pop.save_individual(tmp_path / "one.pt", 1)
    fresh = population(model, seed=1)
    fresh.load_individual(tmp_path / "one.pt", 0)
    assert_close(fresh(numbers(3, 2), individual=0), pop(numbers(3, 2), individual=1))
    pop.move_base_(step(pop))
    pop.save_individual(tmp_path / "one.pt", 1)
    with pytest.raises(ValueError, match="adapt_bias=True"):
        fresh.load_individual(tmp_path / "one.pt", 0)


def test_a_moved_individual_sees_standardized_observations(tmp_path):
    model = mlp()
    pop, fresh = (adapted(Standardized(Normalizer(2), model), seed=s) for s in (0, 1))
    pop.normalizer.propose_([Moments(3, torch.ones(2).double(), torch.ones(2).double())])
    pop.normalizer.advance_()
    pop.move_base_(step(pop))
    pop.save_individual(tmp_path / "one.pt", 1)
    assert_no_warning(lambda: fresh.load_individual(tmp_path / "one.pt", 2))
    assert fresh.normalizer.count.item() == 3
    x = numbers(3, 2) * 3 + 2
    assert_close(fresh(x, individual=2), pop(x, individual=1))
    assert_close(fresh.merge_(2)(x), pop.merge_(1)(x))


@pytest.mark.parametrize("move", [0.0, 0.5], ids=["into still", "into moved"])
@pytest.mark.parametrize("source", [0.0, 0.5], ids=["still", "moved"])
@pytest.mark.parametrize(
    "other",
    [
        nn.Sequential(nn.Linear(2, 9), nn.ReLU(), nn.Linear(9, 1)),
        nn.Sequential(nn.Linear(2, 1), nn.ReLU(), nn.Linear(1, 1)),
        nn.Sequential(nn.Linear(2, 8)),
        nn.Sequential(*mlp(), nn.Linear(1, 1)),
    ],
    ids=["wider", "of width 1", "fewer layers", "more layers"],
)
def test_files_that_do_not_fit_are_refused_and_nothing_is_changed(tmp_path, other, source, move):
    adapted(other, move=source).save_individual(tmp_path / "one.pt", 1)
    pop = adapted(move=move)
    before = parts(pop)
    with pytest.raises(ValueError, match=r"in the file|the individual adapts"):
        pop.load_individual(tmp_path / "one.pt", 2)
    assert same(parts(pop), before)


@pytest.mark.parametrize("move", [0.0, 0.5])
def test_a_change_of_half_precision_is_summed_in_float32(tmp_path, move):
    model = deep()
    pop = adapted(model, move=move, dtype=torch.bfloat16)
    merged, change = pop.merge_(1), pop.individual_change(1)
    for k in (0, 2):
        assert_close(change[str(k)]["weight"], merged[k].weight - model[k].weight)
    assert_close(change["0"]["bias"].float(), merged[0].bias - model[0].bias)
    pop.save_individual(tmp_path / "one.pt", 1)
    fresh = adapted(model, low_rank=3 if not move else 8, dtype=torch.bfloat16)
    fresh.load_individual(tmp_path / "one.pt", 2)
    for one, got in zip(merged.parameters(), fresh.merge_(2).parameters(), strict=True):
        torch.testing.assert_close(one, got, rtol=0.02, atol=0.02)
