import pytest
import torch

from populora_envs.operators import (
    crossovers,
    mutations,
    parent_selections,
    register_mutation,
    selections,
)
from populora_envs.operators.crossover import average, clone
from populora_envs.operators.draws import normal_like
from populora_envs.operators.mutation import full_gaussian
from populora_envs.operators.parents import roulette, tournament
from populora_envs.operators.selection import deterministic, probabilistic

INF = float("inf")


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def shares(drawn, count):
    return (torch.bincount(drawn.flatten(), minlength=count) / drawn.numel()).tolist()


# --- every registered operator

FITNESSES = {
    "spread": [3.0, -1.0, 2.0, 2.0, 0.0],
    "equal": [2.0] * 5,
    "partly unknown": [-INF, 1.0, -INF, 4.0, 0.0],
    "unknown": [-INF] * 5,
    "huge": [3e38, -3e38, 0.0, 1.0, 3e38],
    "one": [7.0],
}


@pytest.mark.parametrize("fitnesses", FITNESSES.values(), ids=FITNESSES)
@pytest.mark.parametrize("name", selections)
def test_every_selection_gives_different_indices(name, fitnesses):
    for count in range(1, len(fitnesses) + 1):
        survivors = selections.get(name)(torch.tensor(fitnesses), count, generator())
        assert survivors.dtype == torch.int64
        assert survivors.shape == (count,)
        assert len(set(survivors.tolist()) & set(range(len(fitnesses)))) == count


@pytest.mark.parametrize("fitnesses", FITNESSES.values(), ids=FITNESSES)
@pytest.mark.parametrize("name", parent_selections)
def test_every_parent_selection_gives_indices_of_survivors(name, fitnesses):
    for children, parents in [(1, 1), (4, 2), (3, 3)]:
        drawn = parent_selections.get(name)(torch.tensor(fitnesses), children, parents, generator())
        assert drawn.dtype == torch.int64
        assert drawn.shape == (children, parents)
        assert set(drawn.flatten().tolist()) <= set(range(len(fitnesses)))


@pytest.mark.parametrize("parents", [1, 2, 5])
@pytest.mark.parametrize("name", crossovers)
def test_every_crossover_makes_one_finite_child_of_its_parents(name, parents):
    down = torch.randn(3, parents, 6, 2, generator=generator(1))
    up = torch.randn(3, parents, 4, 2, generator=generator(2))
    kept = down.clone(), up.clone()
    children = crossovers.get(name)(down, up, generator())
    assert [tuple(part.shape) for part in children] == [(3, 6, 2), (3, 4, 2)]
    assert all(part.isfinite().all() and part.dtype == torch.float32 for part in children)
    assert torch.equal(down, kept[0])
    assert torch.equal(up, kept[1])


@pytest.mark.parametrize("name", crossovers)
def test_every_crossover_of_equal_parents_is_that_parent(name):
    down = torch.randn(3, 1, 6, 2, generator=generator(1)).expand(3, 2, 6, 2)
    up = torch.randn(3, 1, 4, 2, generator=generator(2)).expand(3, 2, 4, 2)
    options = {"iso": 0.0} if name == "isoline" else {}  # the noise that it adds
    child_down, child_up = crossovers.get(name)(down, up, generator(), **options)
    torch.testing.assert_close(child_up @ child_down.mT, up[:, 0] @ down[:, 0].mT)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", mutations)
def test_every_mutation_keeps_shapes_and_types_and_draws_from_its_generator_alone(name, dtype):
    down = torch.randn(3, 6, 2, generator=generator(1)).to(dtype)
    up = torch.randn(3, 4, 2, generator=generator(2)).to(dtype)
    kept, before = (down.clone(), up.clone()), torch.get_rng_state()
    once, again, other = (mutations.get(name)(down, up, generator(seed)) for seed in (0, 0, 1))
    for part, source in zip(once, kept, strict=True):
        assert part.shape == source.shape
        assert part.dtype == dtype
        assert part.isfinite().all()
    assert all(torch.equal(a, b) for a, b in zip(once, again, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(once, other, strict=True))
    assert torch.equal(down, kept[0])
    assert torch.equal(up, kept[1])
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("registry", "names"),
    [
        (selections, {"deterministic", "probabilistic", "fuss"}),
        (parent_selections, {"tournament", "roulette", "fuss", "queen_bee"}),
        (
            crossovers,
            {"average", "clone", "uniform", "layer_wise", "dare", "svd_subspace", "xes", "sbx"}
            | {"extrapolative", "isoline"},
        ),
        (
            mutations,
            {"full_gaussian", "svd_structured", "layer_selective_gaussian", "component_masking"}
            | {"neftune_style", "antithetic_gaussian", "weight_decay", "soft_threshold"},
        ),
    ],
    ids=lambda value: getattr(value, "kind", ""),
)
def test_the_operators_that_were_asked_for_are_registered(registry, names):
    assert names <= set(registry)


def test_a_name_is_registered_once():
    with pytest.raises(ValueError, match="the mutation 'full_gaussian' is registered already"):
        register_mutation("full_gaussian")(full_gaussian)


# --- each by hand


def test_deterministic_keeps_the_best_and_the_lower_index_of_equals():
    fitnesses = torch.tensor([1.0, 5.0, -INF, 5.0, 3.0])
    assert deterministic(fitnesses, 3, generator()).tolist() == [1, 3, 4]
    assert deterministic(torch.zeros(4), 2, generator()).tolist() == [0, 1]


def test_probabilistic_draws_with_chances_that_fall_linearly_with_the_rank():
    fitnesses = torch.tensor([0.0, 100.0, -INF, 1.0])
    source = generator()
    drawn = torch.cat([probabilistic(fitnesses, 1, source) for _ in range(4000)])
    assert shares(drawn, 4) == pytest.approx([0.2, 0.4, 0.1, 0.3], abs=0.03)


def test_a_tournament_of_one_draws_everyone_alike():
    drawn = tournament(torch.tensor([1.0, 2.0, -INF, 0.0]), 2000, 2, generator(), 1)
    assert shares(drawn, 4) == pytest.approx([0.25] * 4, abs=0.03)


def test_a_large_tournament_is_always_won_by_the_best():
    drawn = tournament(torch.tensor([1.0, 5.0, 0.0, 5.0]), 50, 2, generator(), tournament_size=500)
    assert set(drawn.flatten().tolist()) == {1}


def test_a_tournament_of_two_is_won_in_proportion_to_the_rank():
    drawn = tournament(torch.tensor([3.0, 1.0, 2.0]), 4000, 2, generator(), tournament_size=2)
    assert shares(drawn, 3) == pytest.approx([5 / 9, 1 / 9, 3 / 9], abs=0.02)


@pytest.mark.parametrize("fitness", [2.0, -INF])
def test_roulette_on_equal_fitnesses_draws_everyone_alike(fitness):
    drawn = roulette(torch.full((4,), fitness), 2000, 2, generator())
    assert shares(drawn, 4) == pytest.approx([0.25] * 4, abs=0.03)


def test_roulette_draws_in_proportion_to_the_lead_over_the_worst():
    drawn = roulette(torch.tensor([-10.0, -9.0, -7.0, -INF]), 3000, 2, generator())
    chances = [0.01, 1 / 3 + 0.01, 1.01]
    assert shares(drawn, 4) == pytest.approx([c / sum(chances) for c in chances] + [0], abs=0.02)
    assert 3 not in drawn


def test_roulette_on_fitnesses_whose_difference_overflows():
    drawn = roulette(torch.tensor([3e38, -3e38, 0.0]), 2000, 2, generator())
    assert shares(drawn, 3) == pytest.approx([1.01 / 1.53, 0.01 / 1.53, 0.51 / 1.53], abs=0.03)


def test_average_takes_the_mean_of_each_factor():
    down = torch.tensor([[[[1.0, 2.0]], [[3.0, -2.0]]]])
    up = torch.tensor([[[[0.0, 1.0]], [[1.0, 0.0]]]])
    child_down, child_up = average(down, up, generator())
    assert child_down.tolist() == [[[2.0, 0.0]]]
    assert child_up.tolist() == [[[0.5, 0.5]]]


def test_clone_takes_the_first_parent():
    down = torch.arange(12.0).reshape(2, 2, 3, 1)
    up = torch.arange(8.0).reshape(2, 2, 2, 1)
    child_down, child_up = clone(down, up, generator())
    assert child_down.flatten().tolist() == [0, 1, 2, 6, 7, 8]
    assert child_up.flatten().tolist() == [0, 1, 4, 5]


def test_full_gaussian_adds_noise_of_the_stated_scale():
    down, up = torch.full((50, 64, 4), 2.0), torch.full((50, 32, 4), -1.0)
    new_down, new_up = full_gaussian(down, up, generator(), epsilon=0.5)
    assert (new_down - down).std().item() == pytest.approx(0.5 / 8, rel=0.05)
    assert (new_up - up).std().item() == pytest.approx(0.5 / 2, rel=0.05)
    assert (new_down - down).mean().item() == pytest.approx(0, abs=0.005)


def test_full_gaussian_of_epsilon_zero_changes_nothing():
    down, up = torch.ones(2, 3, 1), torch.ones(2, 4, 1)
    new_down, new_up = full_gaussian(down, up, generator(), epsilon=0)
    assert torch.equal(new_down, down)
    assert torch.equal(new_up, up)
    with pytest.raises(ValueError, match="epsilon must be 0 or more, not nan"):
        full_gaussian(down, up, generator(), epsilon=float("nan"))


def test_noise_is_the_same_in_every_dtype():
    noise = normal_like(torch.zeros(4, 3), generator())
    assert torch.equal(normal_like(torch.zeros(4, 3).double(), generator()).float(), noise)
