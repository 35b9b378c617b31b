import random
from collections import OrderedDict, defaultdict
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from populora_envs.distributed import is_main_rank
from populora_envs.files import DamagedFile
from populora_envs.normalizer import Moments, Normalizer, Standardized
from populora_envs.population import Population

FITNESSES = torch.tensor([3.0, 1.0, 4.0, 1.5])


def numbers(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def mlp():
    return nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1))


def population(model=None, pop_size=4, low_rank=3, seed=0, **options):
    model = mlp() if model is None else model
    return Population(model, pop_size=pop_size, low_rank=low_rank, seed=seed, **options)


def genes(pop):
    return [w.clone() for layer in pop.individuals.values() for w in (layer.down, layer.up)]


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def assert_close(one, other):
    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def with_delta(weight, delta, dtype=torch.float32):
    """Individual i changes the single weight by delta[i]."""
    model = nn.Linear(1, 1, bias=False).to(dtype)
    with torch.no_grad():
        model.weight.fill_(weight)
    pop = population(model, pop_size=len(delta), low_rank=1)
    pop.individuals[""].down.fill_(1)
    pop.individuals[""].up.copy_(torch.tensor(delta).reshape(-1, 1, 1))
    return pop


# --- the calls that were asked for, as they were written


def test_the_example_of_the_issue_with_keywords(tmp_path):
    pop = Population(mlp(), pop_size=16, low_rank=4, lora_targets=["0", "2"])
    preds = pop(torch.randn(1, 4, 2), all_individuals=True)
    assert preds.shape == (16, 4, 1)
    fitnesses = -((preds - torch.randn(1, 4, 1)) ** 2).reshape(16, -1).mean(dim=-1)
    result = pop.select(selection_type="deterministic", fitnesses=fitnesses, survive_frac=0.5)
    parents = pop.select_parents(
        selection_type="tournament",
        fitnesses=fitnesses,
        num_children=len(result.selected_out_indices),
        culled=result.selected_out_indices,
    )
    pop.crossover_("average", parents, result.selected_out_indices)
    pop.mutate_("full_gaussian", individuals=result.selected_out_indices)
    pop.mutate_("full_gaussian", all_individuals=True)
    model = pop.select_and_merge_best_(fitnesses)
    assert model(torch.randn(4, 2)).shape == (4, 1)
    pop.save_individual(tmp_path / "best.pt", fitnesses.argmax())


def test_the_example_of_the_issue_by_position(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pop = Population(mlp(), pop_size=16, low_rank=4)
    fitnesses = pop(torch.randn(1, 4, 2), all_individuals=True).reshape(16, -1).mean(dim=-1)
    result = pop.select("deterministic", fitnesses, survive_frac=0.5)
    n = len(result.selected_out_indices)
    assert (result.selected_out_indices.dtype, n) == (torch.int64, 8)
    parents = pop.select_parents(
        "tournament", fitnesses, num_children=n, culled=result.selected_out_indices
    )
    assert (parents.dtype, parents.shape) == (torch.int64, (8, 2))
    pop.crossover_("average", parents, result.selected_out_indices)
    pop.mutate_("full_gaussian", individuals=result.selected_out_indices)
    pop.evolve_(fitnesses)
    merged = pop.merge_(fitnesses.argmax())
    assert [type(layer) for layer in merged] == [nn.Linear, nn.ReLU, nn.Linear]
    pop.save_individual("best.pt", fitnesses.argmax())
    assert (tmp_path / "best.pt").exists()


def test_the_three_ways_to_name_individuals():
    pop, x = population(), numbers(1, 2)
    assert pop(x, all_individuals=True).shape == (4, 1)
    three = pop(x, individuals=[3, 0, 3])
    assert torch.equal(three, torch.cat([pop(x, individual=i) for i in (3, 0, 3)]))
    for one in (2, torch.tensor(2), torch.tensor([2]), np.int64(2)):
        assert torch.equal(pop(x, individual=one), pop(x, individuals=[2]))
    for several in ((1, 2), np.array([1, 2]), torch.tensor([1, 2], dtype=torch.int32), range(1, 3)):
        assert torch.equal(pop(x, individuals=several), pop(x, individuals=[1, 2]))


def test_a_batch_of_one_is_shown_to_every_individual():
    pop, x = population(), numbers(1, 3, 2)
    shown = pop(x, all_individuals=True)
    assert shown.shape == (4, 3, 1)
    assert len({tuple(row) for row in shown[:, :, 0].tolist()}) == 4


def test_a_multiple_of_pop_size_is_split_in_contiguous_groups():
    pop, x = population(), numbers(8, 2)
    split = pop(x, all_individuals=True)
    assert split.shape == (8, 1)
    for i in range(4):
        assert torch.equal(split[2 * i : 2 * i + 2], pop(x[2 * i : 2 * i + 2], individual=i))


@settings(max_examples=25, deadline=None)
@given(st.permutations(range(6)), st.integers(1, 3))
def test_permuting_the_slots_permutes_the_outputs(order, rows):
    pop, x = population(pop_size=6), numbers(6, rows, 2)
    straight = pop(x, individuals=range(6))
    assert torch.equal(pop(x[list(order)], individuals=order), straight[list(order)])


@pytest.mark.parametrize(
    ("which", "message"),
    [
        ({}, "pass exactly one of individual=, individuals= and all_individuals=True"),
        ({"individual": 0, "all_individuals": True}, "pass exactly one of"),
        ({"individuals": []}, "a batch of 8 rows cannot be split among 0 individuals"),
        ({"individuals": [0, 1, 2]}, "a batch of 8 rows cannot be split among 3 individuals"),
        ({"individuals": [0, 4]}, r"individuals \[0, 4\] must lie in 0\.\.3"),
        ({"individual": -1}, r"individuals \[-1\] must lie in 0\.\.3"),
        ({"individual": 1.0}, "list of integer indices"),
        ({"individual": True}, "list of integer indices"),
        ({"individual": torch.tensor([1, 2])}, "one individual is named by one integer, not by"),
        ({"individuals": [[0, 1]]}, "list of integer indices, not by"),
    ],
)
def test_bad_names_of_individuals_are_refused(which, message):
    with pytest.raises(ValueError, match=message):
        population()(numbers(8, 2), **which)


# --- further arguments


class Parts(NamedTuple):
    scale: torch.Tensor
    note: str


class Rich(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 3)

    def forward(self, x, extra=None, *, options=None, factor=1.0):
        hidden = self.layer(x)
        if isinstance(extra, Parts):
            hidden = hidden * extra.scale
        elif isinstance(extra, (tuple, list)):
            hidden = hidden + self.layer(extra[0]) + extra[1][0]
        if options is not None:
            hidden = hidden + options["shift"] * options["deep"]["weight"]
        return {"output": hidden * factor, "size": len(x)}


@pytest.mark.parametrize("batch", [1, 6])
@pytest.mark.parametrize("kind", [dict, OrderedDict, lambda d: defaultdict(list, d)])
def test_nested_arguments_are_split_alike(batch, kind):
    pop = population(Rich())
    ids = [2, 0, 2]
    x = numbers(batch, 2)
    cases = [
        ((Parts(numbers(batch, 1, seed=1), "kept"),), {}),
        (((numbers(batch, 2, seed=2), [numbers(batch, 3, seed=3)]),), {}),
        (([numbers(batch, 2, seed=2), (numbers(batch, 3, seed=3),)],), {"factor": 2.0}),
        (
            (),
            {"options": kind({"shift": numbers(batch, 3), "deep": {"weight": torch.tensor(2.0)}})},
        ),
    ]
    for args, kwargs in cases:
        output = pop(x, *args, individuals=ids, **kwargs)["output"]
        for k, i in enumerate(ids):
            rows = slice(0, 1) if batch == 1 else slice(2 * k, 2 * k + 2)
            own = pop.merge_(i)(x[rows], *cut(args, rows), **cut(kwargs, rows))["output"]
            assert_close(output.chunk(3)[k], own)


def cut(nested, rows):
    if isinstance(nested, torch.Tensor):
        return nested[rows] if nested.dim() else nested
    if isinstance(nested, dict):
        return {key: cut(value, rows) for key, value in nested.items()}
    if isinstance(nested, Parts):
        return Parts(*(cut(value, rows) for value in nested))
    return (
        type(nested)(cut(v, rows) for v in nested) if isinstance(nested, (tuple, list)) else nested
    )


def test_a_batch_given_by_keyword_or_inside_a_dict_is_found():
    class Dicts(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 1)

        def forward(self, observation):
            return self.layer(observation["position"])

    pop, x = population(Dicts()), numbers(4, 2)
    expected = torch.cat([pop.merge_(i)({"position": x[i : i + 1]}) for i in range(4)])
    assert_close(pop({"position": x}, all_individuals=True), expected)
    assert_close(pop(observation={"position": x}, all_individuals=True), expected)


def test_without_a_tensor_there_is_no_batch():
    with pytest.raises(ValueError, match="at least one tensor with a batch dimension"):
        population()(3.0, all_individuals=True)


# --- what a population is made of


def test_the_callers_model_is_never_changed():
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1)).train()
    model[0].weight.requires_grad_(False)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    keys = [set(vars(layer)) for layer in model.modules()]
    pop = population(model)
    pop(numbers(8, 2), all_individuals=True).sum().backward()
    pop.evolve_(FITNESSES)
    pop.merge_(0)(numbers(1, 2))
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert [set(vars(layer)) for layer in model.modules()] == keys
    assert all(layer.training for layer in model.modules())
    assert model[2].weight.grad is None


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"pop_size": 0}, ValueError, "pop_size must be at least 1, not 0"),
        ({"low_rank": 0}, ValueError, "low_rank must be at least 1, not 0"),
        ({"pop_size": 2.5}, TypeError, "pop_size must be a whole number, not 2.5"),
        ({"low_rank": True}, TypeError, "low_rank must be a whole number, not True"),
        ({"seed": 1.5}, TypeError, "seed must be a whole number, not 1.5"),
        ({"eval_seed": "a"}, TypeError, "eval_seed must be a whole number, not 'a'"),
        ({"init": "ones"}, ValueError, "init must be 'random' or 'zero', not 'ones'"),
    ],
)
def test_bad_sizes_and_seeds_are_refused(options, error, message):
    with pytest.raises(error, match=message):
        population(**options)


def test_a_rank_above_both_sides_is_legal():
    pop = population(nn.Sequential(nn.Linear(5, 32)), low_rank=16)
    assert pop.individuals["0"].down.shape == (4, 5, 16)
    assert pop.individuals["0"].up.shape == (4, 32, 16)


def test_init_zero_starts_every_individual_at_the_base():
    model = mlp()
    pop = population(model, init="zero")
    x = numbers(3, 2)
    assert_close(pop(x, individual=2), model(x))
    assert (pop.individuals["0"].down != 0).any()
    pop.mutate_("full_gaussian", all_individuals=True)
    assert not torch.allclose(pop(x, individual=2), model(x))


def test_init_random_draws_individuals_that_differ_by_the_stated_variance():
    pop = population(nn.Linear(50, 40), pop_size=100, low_rank=4)
    layer = pop.individuals[""]
    assert layer.down.std().item() == pytest.approx(50**-0.5, rel=0.05)
    assert layer.up.std().item() == pytest.approx(8**-0.5, rel=0.05)


def test_batch_norm_and_dropout_act_as_in_evaluation_whoever_else_is_there():
    """D-34, D-35."""
    model = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1))
    pop, x = population(model.train()), numbers(4, 2)
    alone = pop.routed(x[:1], torch.tensor([3]))
    assert torch.equal(alone, pop.routed(x, torch.tensor([3, 0, 1, 2]))[:1])


def test_the_dtype_of_individuals():
    assert population().individuals["0"].down.dtype == torch.float32
    assert population(mlp().to(torch.bfloat16)).individuals["0"].down.dtype == torch.float32
    assert population(mlp().double()).individuals["0"].down.dtype == torch.float64
    assert population(dtype=torch.float64).individuals["0"].down.dtype == torch.float64


@pytest.mark.parametrize("base", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("dtype", [None, torch.bfloat16, torch.float64])
def test_any_dtypes_of_base_and_individuals_work_together(base, dtype, tmp_path):
    pop = population(mlp().to(base), dtype=dtype)
    x = numbers(4, 2).to(base)
    routed = pop(x, all_individuals=True)
    merged = torch.cat([pop.merge_(i)(x[i : i + 1]) for i in range(4)])
    assert routed.dtype == merged.dtype == base
    tolerance = 0.05 if base == torch.bfloat16 else 1e-5
    torch.testing.assert_close(routed, merged, rtol=tolerance, atol=tolerance)
    pop.evolve_(FITNESSES)
    pop.save(tmp_path / "population.pt")
    pop.load(tmp_path / "population.pt")


def test_the_device_is_the_models_or_the_one_that_was_asked_for(monkeypatch):
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    assert population().device == torch.device("cpu")
    assert population(device="cpu").device == torch.device("cpu")
    assert population(device=torch.device("cpu")).model[0].weight.device == torch.device("cpu")
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert population().device == torch.device("cpu")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_a_population_on_cuda_draws_the_same_individuals(monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "0")
    on_cuda, on_cpu = population(), population(device="cpu")
    assert on_cuda.device == torch.device("cuda", 0)
    for pop in (on_cuda, on_cpu):
        pop.evolve_(FITNESSES)
    assert all(torch.equal(a.cpu(), b) for a, b in zip(genes(on_cuda), genes(on_cpu), strict=True))


# --- randomness


def test_one_seed_gives_one_population_and_other_seeds_others():
    pops = [population(seed=seed) for seed in (0, 0, np.int64(0), 1)]
    for pop in pops:
        pop.evolve_(FITNESSES)
        pop.evolve_(FITNESSES, selection_type="probabilistic", crossover_type="average")
    first, again, as_numpy, other = map(genes, pops)
    assert same(first, again)
    assert same(first, as_numpy)
    assert not any(torch.equal(a, b) for a, b in zip(first, other, strict=True))


def test_no_seed_takes_fresh_entropy():
    assert not same(genes(population(seed=None)), genes(population(seed=None)))


@pytest.mark.parametrize("default", [torch.float64, torch.bfloat16])
def test_the_default_dtype_of_torch_changes_no_draw(default):
    model = mlp()

    def run():
        pop = population(model)
        for selection in ("deterministic", "probabilistic"):
            for parents in ("tournament", "roulette"):
                pop.evolve_(FITNESSES, selection_type=selection, parent_selection_type=parents)
        fitnesses = pop.evaluate_distributed(lambda population, idx: idx / 3)
        return [*genes(pop), fitnesses]

    expected = run()
    torch.set_default_dtype(default)
    try:
        assert same(run(), expected)
    finally:
        torch.set_default_dtype(torch.float32)


def global_generators():
    numpy = np.random.get_state()  # noqa: NPY002
    return random.getstate(), numpy[1].tobytes(), numpy[2:], torch.get_rng_state().tolist()


def everything(pop, folder):
    """Call all there is."""
    x = numbers(4, 2)
    pop(x, all_individuals=True)
    pop.routed(x, torch.arange(4))
    result = pop.select("probabilistic", FITNESSES)
    parents = pop.select_parents("roulette", FITNESSES, 2, result.selected_out_indices)
    pop.crossover_("average", parents, result.selected_out_indices)
    pop.mutate_("full_gaussian", all_individuals=True)
    pop.evolve_(FITNESSES)
    pop.select_and_merge_best_(FITNESSES)
    pop.with_individuals([pop.individual_state(1), pop.base_state()])
    pop.save(folder / "population.pt")
    pop.load(folder / "population.pt")
    pop.save_individual(folder / "one.pt", 1)
    pop.load_individual(folder / "one.pt", 2)
    pop.evaluate_distributed(lambda population, idx: 1.0)
    return [*genes(pop), x]


def test_global_generators_are_neither_read_nor_disturbed(tmp_path):
    model, outcomes = mlp(), []
    for seed in (1, 2):
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        torch.manual_seed(seed)
        before = global_generators()
        outcomes.append(everything(population(model), tmp_path))
        population(model, seed=None)
        assert global_generators() == before
    assert same(*outcomes)


def test_eval_seed_depends_on_its_base_and_the_generation():
    pop = population(eval_seed=5)
    first = pop.eval_seed
    assert type(first) is int
    assert 0 <= first < 2**31
    assert first == population(eval_seed=5, seed=9).eval_seed
    assert first != population(eval_seed=6).eval_seed
    pop.generation += 1
    assert pop.eval_seed != first
    assert pop.generation == 1
    with pytest.raises(TypeError, match=r"generation must be a whole number, not 1\.5"):
        pop.generation = 1.5


# --- merging


def test_merging_twice_starts_from_the_base_again():
    """D-41."""
    pop = with_delta(1.0, [0.5, 0.25])
    assert [pop.merge_(0).weight.item() for _ in range(2)] == [1.5, 1.5]
    assert pop.merge_(torch.tensor(1)).weight.item() == 1.25
    assert pop.model.weight.item() == 1.0


def test_a_bfloat16_base_and_its_change_are_rounded_once():
    """D-42."""
    pop = with_delta(1.0, [0.0045, 0.003, 0.006], torch.bfloat16)
    merged = [pop.merge_(i).weight for i in range(3)]
    assert [weight.item() for weight in merged] == [1.0078125, 1.0, 1.0078125]
    assert merged[0].dtype == torch.bfloat16
    routed = pop(torch.ones(1, 1, dtype=torch.bfloat16), all_individuals=True)
    assert routed.flatten().tolist() == [1.0078125, 1.0, 1.0078125]


def test_two_columns_of_a_change_are_summed_before_they_are_rounded():
    """D-42."""
    model = nn.Linear(1, 1, bias=False).to(torch.bfloat16)
    with torch.no_grad():
        model.weight.fill_(1.0)
    for dtype in (None, torch.bfloat16):
        pop = population(model, pop_size=1, low_rank=2, dtype=dtype)
        pop.individuals[""].down.fill_(1)
        pop.individuals[""].up.fill_(0.003)
        assert pop.merge_(0).weight.item() == 1.0078125


def test_the_merged_model_is_plain_fresh_and_can_be_trained_on():
    model = mlp()
    model[2].weight.requires_grad_(False)
    pop = population(model)
    x = numbers(4, 2)
    before = pop(x, all_individuals=True)
    merged = pop.merge_(0)
    assert not merged.training
    assert [type(p) for p in merged.parameters()] == [nn.Parameter] * 4
    assert [p.requires_grad for p in merged.parameters()] == [True, True, False, True]
    assert not any("forward" in vars(layer) for layer in merged.modules())
    own = {p.data_ptr() for p in merged.parameters()}
    assert own.isdisjoint(p.data_ptr() for p in [*model.parameters(), *pop.model.parameters()])
    merged(x).sum().backward()
    torch.optim.SGD(merged.parameters(), 0.1).step()
    assert torch.equal(pop(x, all_individuals=True), before)
    fresh = mlp()
    fresh.load_state_dict(merged.state_dict())


def test_the_best_is_merged_and_ties_go_to_the_lower_index():
    pop, x = population(), numbers(3, 2)

    def is_merged(fitnesses, individual):
        return torch.equal(pop.select_and_merge_best_(fitnesses)(x), pop.merge_(individual)(x))

    assert is_merged(torch.tensor([-5.0, -1.0, -2.0, -3.0]), 1)
    assert is_merged([1.0, 2.0, 2.0, 0.0], 1)
    assert is_merged(torch.tensor([torch.nan, torch.inf, -7.0, -torch.inf]), 2)
    assert is_merged(torch.full((4,), torch.nan), 0)


def test_fitnesses_with_a_graph_are_accepted(tmp_path):
    pop = population()
    x = numbers(1, 2).requires_grad_()
    fitnesses = pop(x, all_individuals=True).flatten()
    assert fitnesses.requires_grad
    pop.merge_(fitnesses.argmax())
    pop.select_and_merge_best_(list(fitnesses))
    result = pop.select("deterministic", fitnesses)
    parents = pop.select_parents("roulette", fitnesses, 2, result.selected_out_indices)
    assert not parents.requires_grad
    pop.evolve_(fitnesses)
    pop.save_individual(tmp_path / "best.pt", fitnesses.argmax())
    assert not any(weights.requires_grad for weights in genes(pop))


@pytest.mark.parametrize(
    ("fitnesses", "error", "message"),
    [
        (torch.zeros(3), ValueError, r"fitnesses have shape \(3,\) and the population has 4"),
        (torch.zeros(4, 1), ValueError, r"shape \(4, 1\).*pass shape \(4,\)"),
        (None, TypeError, "fitnesses are NoneType None: pass a tensor or list of 4 numbers"),
        ([1, 2, 3, None], TypeError, "fitnesses are list .*pass a tensor or list of 4 numbers"),
    ],
)
def test_bad_fitnesses_are_refused(fitnesses, error, message):
    pop = population()
    for call in (
        pop.evolve_,
        pop.select_and_merge_best_,
        lambda f: pop.select("deterministic", f),
        lambda f: pop.select_parents("tournament", f, 1),
    ):
        with pytest.raises(error, match=message):
            call(fitnesses)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(5, 3), nn.Linear(3, 5, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        return self.head(self.embedding(tokens))


def test_merging_a_layer_that_shares_its_weight_leaves_the_other_alone():
    """D-37."""
    pop, tokens = population(Tied()), torch.arange(5)
    for i in range(4):
        merged = pop.merge_(i)
        assert torch.equal(merged.embedding.weight, pop.model.embedding.weight)
        assert not torch.equal(merged.head.weight, merged.embedding.weight)
        assert_close(pop(tokens, individual=i), merged(tokens))
        again = Population(merged, pop_size=1, low_rank=1, init="zero").merge_(0)
        again.load_state_dict(merged.state_dict())
        assert_close(again(tokens), merged(tokens))


def test_two_layers_that_share_their_weight_have_individuals_of_their_own():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    pop, x = population(model), numbers(4, 3)
    assert list(pop.individuals) == ["0", "1"]
    assert_close(
        pop(x, all_individuals=True), torch.cat([pop.merge_(i)(x[i : i + 1]) for i in range(4)])
    )


# --- files


def evolved(seed=0):
    pop = population(model=Standardized(Normalizer(2), mlp()), seed=seed)
    pop.normalizer.propose_([Moments(2, torch.ones(2).double(), torch.ones(2).double())])
    pop.evolve_(FITNESSES)
    pop.mutate_("full_gaussian", individual=1)
    pop.normalizer.propose_([Moments(3, torch.zeros(2).double(), torch.ones(2).double())])
    return pop


def test_a_loaded_population_continues_exactly(tmp_path):
    pop, other = (
        evolved(),
        population(model=Standardized(Normalizer(2), mlp()), seed=7, eval_seed=3),
    )
    pop.save(tmp_path / "population.pt")
    other.load(tmp_path / "population.pt")
    x = numbers(4, 2)
    for _ in range(2):
        assert same(genes(pop), genes(other))
        assert torch.equal(pop(x, all_individuals=True), other(x, all_individuals=True))
        assert (pop.generation, pop.eval_seed) == (other.generation, other.eval_seed)
        for one in (pop, other):
            one.evolve_(FITNESSES, selection_type="probabilistic", parent_selection_type="roulette")
            one.mutate_("full_gaussian", all_individuals=True)
    assert other.normalizer.count.item() == 5


def test_saving_changes_nothing(tmp_path):
    pop, other = evolved(), evolved()
    other.model.load_state_dict(pop.model.state_dict())
    pop.save(tmp_path / "population.pt")
    pop.load(tmp_path / "population.pt")
    for one in (pop, other):
        one.evolve_(FITNESSES)
    assert same(genes(pop), genes(other))


def test_files_load_with_weights_only(tmp_path):
    pop = evolved()
    pop.save(tmp_path / "population.pt")
    pop.save_individual(tmp_path / "one.pt", torch.tensor(2))
    whole = torch.load(tmp_path / "population.pt", weights_only=True)
    assert (whole["pop_size"], whole["low_rank"], whole["generation"]) == (4, 3, 1)
    one = torch.load(str(tmp_path / "one.pt"), weights_only=True)
    assert torch.equal(one["weights"]["model.0"]["down"], pop.individuals["model.0"].down[2])


def test_an_individual_is_saved_and_loaded_into_any_place(tmp_path):
    pop, other, x = population(), population(seed=1), numbers(3, 2)
    other.model.load_state_dict(pop.model.state_dict())
    expected = pop(x, individual=2)
    pop.save_individual(str(tmp_path / "best.pt"), 2)
    rest = other(x, individuals=[0, 1, 2])
    other.load_individual(tmp_path / "best.pt", 3)
    assert torch.equal(other(x, individual=3), expected)
    assert torch.equal(other(x, individuals=[0, 1, 2]), rest)
    other.load_individual(path=str(tmp_path / "best.pt"))
    assert torch.equal(other(x, individual=0), expected)


def test_files_that_do_not_fit_are_refused_and_nothing_is_changed(tmp_path):
    population().save(tmp_path / "population.pt")
    population().save_individual(tmp_path / "one.pt", 0)
    cases = [
        ({"pop_size": 5}, "pop_size is 5 here and 4 in the file", None),
        ({"low_rank": 2}, "low_rank is 2 here and 3", r"0\.down is \(2, 2\) here and \(2, 3\)"),
        ({"lora_targets": ["0"]}, r"adapted at \['0', '2'\], this one", r"adapts \['0', '2'\] and"),
        ({"model": nn.Linear(2, 1)}, r"this one has \['bias', 'weight'\]", r"population \[''\]"),
        (
            {"model": nn.Sequential(nn.Linear(2, 9), nn.ReLU(), nn.Linear(9, 1))},
            r"0\.weight is \(9, 2\) here and \(8, 2\) in the file",
            r"0\.up is \(9, 3\) here and \(8, 3\) in the file",
        ),
    ]
    for options, whole, one in cases:
        pop = population(**options)
        before = genes(pop)
        with pytest.raises(ValueError, match=whole):
            pop.load(tmp_path / "population.pt")
        if one is not None:
            with pytest.raises(ValueError, match=one):
                pop.load_individual(tmp_path / "one.pt", 1)
        assert same(genes(pop), before)


def test_files_of_another_kind_are_refused(tmp_path):
    pop = population()
    pop.save(tmp_path / "population.pt")
    pop.save_individual(tmp_path / "one.pt", 0)
    with pytest.raises(ValueError, match="holds individual, not one population"):
        pop.load(tmp_path / "one.pt")
    with pytest.raises(ValueError, match="holds population, not one individual"):
        pop.load_individual(tmp_path / "population.pt")
    (tmp_path / "one.pt").write_bytes(b"no")
    with pytest.raises(DamagedFile):
        pop.load_individual(tmp_path / "one.pt")
    with pytest.raises(ValueError, match=r"individuals \[4\] must lie in 0\.\.3"):
        pop.save_individual(tmp_path / "one.pt", 4)


# --- copies of individuals


def test_individuals_are_copied_to_a_population_on_the_same_base():
    model = mlp()
    pop, x = population(model), numbers(3, 2)
    other = pop.with_individuals([pop.individual_state(2), pop.base_state()])
    assert other.pop_size == 2
    assert torch.equal(other(x, individual=0), pop(x, individual=2))
    assert_close(other(x, individual=1), model(x))
    other.individuals["0"].down.zero_()
    with torch.no_grad():
        pop.model[0].bias.add_(1)
    assert_close(other(x, individual=0), other.merge_(0)(x))
    assert pop.pop_size == 4
    assert (pop.individuals["0"].down != 0).any()


@pytest.mark.parametrize("individual", [-1, 4])
def test_an_individual_that_does_not_exist_is_not_written(individual):
    pop = population()
    with pytest.raises(ValueError, match=r"must lie in 0\.\.3"):
        pop.write_individual_(individual, pop.base_state())


# --- observation statistics


def test_a_new_generation_takes_over_what_the_last_one_saw():
    pop = evolved()
    assert pop.normalizer.count.item() == 2
    pop.generation = pop.generation
    assert pop.normalizer.count.item() == 2
    pop.generation += 1
    assert pop.normalizer.count.item() == 5
    assert population().normalizer is None


def test_the_merged_policy_takes_raw_observations():
    """D-32."""
    pop = evolved()
    x = numbers(4, 2) * 3 + 100
    assert_close(pop(x, individual=1), pop.merge_(1)(x))
    assert pop.merge_(1).normalizer.shift.tolist() == [1.0, 1.0]


# --- fitness functions and ranks


def test_the_three_forms_of_a_fitness_function():
    pop = population()
    assert pop.evaluate_distributed(lambda population, idx: idx * 2).tolist() == [0, 2, 4, 6]
    assert pop.evaluate_distributed(
        fitness=lambda population, individuals: individuals
    ).tolist() == [
        0,
        1,
        2,
        3,
    ]
    every = pop.evaluate_distributed(lambda population: torch.arange(population.pop_size))
    assert every.dtype == torch.float32
    assert every.tolist() == [0, 1, 2, 3]


def test_one_process_is_rank_0_of_1(monkeypatch):
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert is_main_rank()
    monkeypatch.setenv("RANK", "1")
    assert not is_main_rank()
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(RuntimeError, match=r"evaluate_distributed runs in one process.*is 2"):
        population().evaluate_distributed(lambda population, idx: 0)


def test_a_population_of_one():
    """D-51."""
    pop = population(pop_size=1)
    x = numbers(3, 2)
    before = pop(x, all_individuals=True)
    for selection in ("deterministic", "probabilistic"):
        pop.evolve_(torch.tensor([2.0]), selection_type=selection)
    assert torch.equal(pop(x, individual=0), before)
    assert pop.generation == 2
    pop.evolve_([torch.nan], elite_frac=0)
    assert all(weights.isfinite().all() for weights in genes(pop))
    assert not torch.equal(pop(x, individual=0), before)
