import random

import numpy as np
import pytest
import torch
from torch import nn

from tests.populations import FITNESSES, assert_close, genes, mlp, numbers, population, same, wide

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
    assert pop.individuals["0"].down.shape == (4, 5, 5)  # which makes any change
    assert pop.individuals["0"].up.shape == (4, 32, 5)


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
    pops = [population(wide(), seed=seed) for seed in (0, 0, np.int64(0), 1)]
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
