"""What each operator promises, by the definition in its paper; every registered one is tested."""

import pytest
import torch
from torch import nn

from populora_envs import Population
from populora_envs.operators import crossovers, mutations, parent_selections, selections
from populora_envs.operators.choose import option_names
from populora_envs.operators.subspace import mean_change, singular

NO_STEP = {"epsilon": 0.0, "alpha": 0.0, "decay": 0.0, "threshold": 0.0}


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def parents(children=3, count=2, rows=6, columns=4, rank=2):
    down = torch.randn(children, count, rows, rank, generator=generator(1))
    return down, torch.randn(children, count, columns, rank, generator=generator(2))


def crossed(name, down, up, seed=0, **options):
    return crossovers.get(name)(down, up, generator(seed), **options)


def mutated(name, down, up, seed=0, **options):
    return mutations.get(name)(down, up, generator(seed), **options)


# --- laws of all


@pytest.mark.parametrize("name", mutations)
def test_a_mutation_without_a_step_changes_nothing(name):
    down, up = (part[:, 0] for part in parents())
    still = {o: NO_STEP[o] for o in option_names(mutations.get(name)) if o in NO_STEP}
    assert still, "name the option that is its step in NO_STEP"
    varied = mutated(name, down, up, **still)
    assert torch.equal(varied[0], down)
    assert torch.equal(varied[1], up)


@pytest.mark.parametrize("name", crossovers)
def test_a_child_depends_on_no_individual_that_is_not_its_parent(name):
    down, up = parents()
    others = down.clone(), up.clone()
    for part in others:
        part[1:] = torch.randn(part[1:].shape, generator=generator(9))
    for one, other in zip(crossed(name, down, up), crossed(name, *others), strict=True):
        assert torch.equal(one[0], other[0])
        assert not torch.equal(one[1:], other[1:])


@pytest.mark.parametrize("name", mutations)
def test_a_mutant_depends_on_no_other_individual(name):
    down, up = (part[:, 0] for part in parents(4))
    others = down.clone(), up.clone()
    for part in others:
        part[1:] += 1.0
    for one, other in zip(mutated(name, down, up), mutated(name, *others), strict=True):
        assert torch.equal(one[0], other[0])


@pytest.mark.parametrize("name", crossovers)
def test_a_bias_is_its_up_factor_where_the_down_factor_is_one(name):
    _, biases = parents(rank=1)
    ones = torch.ones(3, 2, 1, 1)
    options = {"iso": 0.0} if name == "isoline" else {}
    same = biases[:, :1].expand(-1, 2, -1, -1)
    torch.testing.assert_close(crossed(name, ones, same, **options)[1], biases[:, 0])


@pytest.mark.parametrize("crossover", crossovers)
@pytest.mark.parametrize("mutation", ["full_gaussian", "svd_structured"])
def test_elites_stay_bit_equal_and_parents_are_survivors(crossover, mutation):
    population = Population(nn.Linear(5, 4), pop_size=8, low_rank=2, seed=3, adapt_bias=True)
    before = [population.individual_state(i) for i in range(8)]
    fitnesses = torch.tensor([0.0, 5.0, 1.0, 7.0, 2.0, 6.0, 3.0, 4.0])
    ids = population.lineage.ids.tolist()
    selected = population.evolve_(
        fitnesses, crossover_type=crossover, mutation_type=mutation, elite_frac=0.25
    )
    assert selected.elites.tolist() == [3, 5]
    for elite in (3, 5):
        after = population.individual_state(elite)
        for name, parts in after.items():
            assert all(torch.equal(w, before[elite][name][part]) for part, w in parts.items())
    survivors = {ids[i] for i in selected.survivors.tolist()}
    for place, row in enumerate(population.lineage.rows()):
        assert place in (3, 5) or set(row["parents"]) <= survivors


@pytest.mark.parametrize("parent_selection", parent_selections)
@pytest.mark.parametrize("selection", selections)
def test_every_pair_of_selections_makes_a_generation(selection, parent_selection):
    population = Population(nn.Linear(3, 2), pop_size=6, low_rank=1, seed=3)
    fitnesses = torch.tensor([1.0, -torch.inf, 3.0, 3.0, 0.0, 2.0])
    population.evolve_(fitnesses, selection_type=selection, parent_selection_type=parent_selection)
    assert population.generation == 1


WRONG = [
    (crossovers, "dare", {"drop": 1.0}, r"drop must lie in \[0, 1\), not 1"),
    (crossovers, "sbx", {"eta": -1.0}, "eta must be 0 or more"),
    (crossovers, "xes", {"spread": -0.1}, "spread must be 0 or more"),
    (crossovers, "extrapolative", {"extrapolation": -1}, "extrapolation must be 0 or more"),
    (crossovers, "isoline", {"iso": -1}, "iso must be 0 or more"),
    (crossovers, "isoline", {"line": float("nan")}, "line must be 0 or more"),
    (mutations, "layer_selective_gaussian", {"layer_share": 1.1}, "layer_share must lie in"),
    (mutations, "component_masking", {"component_share": -0.1}, "component_share must lie in"),
    (mutations, "neftune_style", {"alpha": -1}, "alpha must be 0 or more"),
    (mutations, "weight_decay", {"decay": 2}, "decay must lie in"),
    (mutations, "soft_threshold", {"threshold": -1}, "threshold must be 0 or more"),
    (mutations, "svd_structured", {"epsilon": -1}, "epsilon must be 0 or more"),
]


@pytest.mark.parametrize(("registry", "name", "options", "says"), WRONG)
def test_options_out_of_their_range_are_refused(registry, name, options, says):
    down, up = parents()
    given = (down, up) if registry is crossovers else (down[:, 0], up[:, 0])
    with pytest.raises(ValueError, match=says):
        registry.get(name)(*given, generator(), **options)


# --- crossovers


def test_uniform_takes_each_weight_from_one_parent_and_from_all_alike():
    down, up = parents(1, 4, rows=200, columns=200, rank=5)
    child, _ = crossed("uniform", down, up)
    taken = (child[:, None] == down).float()
    assert (taken.sum(dim=1) == 1).all()
    assert taken.mean(dim=(0, 2, 3)).tolist() == pytest.approx([0.25] * 4, abs=0.05)


def test_layer_wise_takes_a_layer_whole():
    down, up = parents(200, 3)
    child_down, child_up = crossed("layer_wise", down, up)
    from_down = (child_down[:, None] == down).flatten(2).all(dim=2)
    from_up = (child_up[:, None] == up).flatten(2).all(dim=2)
    assert torch.equal(from_down, from_up)
    assert from_down.sum(dim=1).tolist() == [1] * 200
    assert from_down.float().mean(dim=0).tolist() == pytest.approx([1 / 3] * 3, abs=0.1)


def test_dare_drops_differences_and_keeps_the_mean():
    down, up = parents(1)
    drop = 0.8
    many = down.expand(10_000, -1, -1, -1), up.expand(10_000, -1, -1, -1)
    child, _ = crossed("dare", *many, drop=drop)
    first, gap = down[0, 0], down.mean(dim=1)[0] - down[0, 0]
    is_dropped = torch.isclose(child, first, atol=1e-7)
    assert is_dropped.float().mean().item() == pytest.approx(drop, abs=0.01)
    torch.testing.assert_close(
        child[~is_dropped], (first + gap / (1 - drop)).expand_as(child)[~is_dropped]
    )
    torch.testing.assert_close(child.mean(dim=0), first + gap, atol=0.1, rtol=0)


def test_svd_subspace_takes_whole_directions_and_keeps_the_rank():
    down, up = parents(50, 2, rows=7, columns=5, rank=3)
    child = crossed("svd_subspace", down, up)
    left, values, right = singular(down, up)
    directions = torch.einsum("cpok,cpk,cpik->cpkoi", left, values, right)
    product = child[1].double() @ child[0].double().mT
    options = [
        directions[:, choice, range(3)].sum(dim=1)
        for choice in torch.cartesian_prod(*[torch.arange(2)] * 3)
    ]
    nearest = torch.stack([(product - o).flatten(1).norm(dim=1) for o in options]).amin(dim=0)
    assert nearest.max().item() < 1e-5
    assert torch.linalg.matrix_rank(product, atol=1e-4).max().item() <= 3


@pytest.mark.parametrize("rank", [1, 3, 9])
def test_singular_directions_are_those_of_the_product(rank):
    down, up = (part[:, 0] for part in parents(4, rows=6, columns=5, rank=rank))
    left, values, right = singular(down, up)
    product = up.double() @ down.double().mT
    torch.testing.assert_close((left * values[:, None]) @ right.mT, product)
    expected = torch.linalg.svdvals(product)[:, : values.shape[1]]
    torch.testing.assert_close(values, expected)


def test_the_average_of_one_policy_in_two_disguises_is_that_policy():
    down, up = parents(3, 1)
    disguised = torch.cat([down, -down], dim=1), torch.cat([up, -up], dim=1)
    child = crossed("average_exact", *disguised)
    torch.testing.assert_close(child[1] @ child[0].mT, up[:, 0] @ down[:, 0].mT)
    by_factors = crossed("average", *disguised)
    assert not (by_factors[1] @ by_factors[0].mT).any()


@pytest.mark.parametrize("rank", [1, 2, 4])
def test_the_exact_average_is_the_nearest_of_its_rank_and_says_what_is_lost(rank):
    down, up = parents(5, 3, rows=6, columns=4, rank=rank)
    child_down, child_up, lost = mean_change(down, up)
    mean = (up.double() @ down.double().mT).mean(dim=1)
    values = torch.linalg.svdvals(mean)
    error = (mean - child_up.double() @ child_down.double().mT).flatten(1).norm(dim=1)
    tail = values[:, rank:].square().sum(dim=1).sqrt()
    torch.testing.assert_close(error, tail, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(lost, tail / values.square().sum(dim=1).sqrt(), atol=1e-6, rtol=1e-6)
    assert (lost.max() < 1e-6) == (rank == 4)


def test_extrapolative_goes_away_from_the_others():
    down, up = parents(500)
    child_down, child_up = crossed("extrapolative", down, up, extrapolation=0.5)
    gone = [(c - p[:, 0]) / (p[:, 0] - p[:, 1]) for c, p in ((child_down, down), (child_up, up))]
    shares = gone[0][:, 0, 0]
    torch.testing.assert_close(
        gone[0], shares[:, None, None].expand_as(gone[0]), atol=1e-3, rtol=1e-3
    )
    torch.testing.assert_close(gone[1][:, 0, 0], shares, atol=1e-3, rtol=1e-3)
    assert 0 <= shares.min() < 0.02
    assert 0.48 < shares.max() <= 0.5


def test_xes_spreads_as_far_as_the_parents_lie_apart():
    down, up = parents(1, 4)
    child, _ = crossed("xes", down.expand(10_000, -1, -1, -1), up.expand(10_000, -1, -1, -1))
    torch.testing.assert_close(child.mean(dim=0), down.mean(dim=1)[0], atol=0.06, rtol=0)
    spread = down.std(dim=1, correction=0)[0]
    torch.testing.assert_close(child.std(dim=0), spread, atol=0.05, rtol=0.05)


@pytest.mark.parametrize("eta", [0.0, 2.0, 15.0])
def test_sbx_has_the_density_of_its_paper(eta):
    down, up = torch.zeros(10_000, 2, 1, 1), torch.zeros(10_000, 2, 1, 1)
    down[:, 0], down[:, 1] = 1.0, -1.0
    child, _ = crossed("sbx", down, up, eta=eta)
    factor = child.abs()  # of a distance of 1 from the mean
    assert (factor <= 1).float().mean().item() == pytest.approx(0.5, abs=0.02)
    # the median of b within [0, 1], where its distribution is b**(eta + 1)
    assert factor[factor <= 1].median().item() == pytest.approx(0.5 ** (1 / (eta + 1)), abs=0.02)
    assert (child > 0).float().mean().item() == pytest.approx(0.5, abs=0.02)


def test_isoline_steps_along_the_line_and_around_it():
    down, up = parents(10_000, rows=1, columns=1, rank=1)
    child, _ = crossed("isoline", down, up, iso=0.0, line=0.2)
    steps = ((child - down[:, 0]) / (down[:, 1] - down[:, 0])).flatten()
    assert steps.std().item() == pytest.approx(0.2, rel=0.05)
    child, _ = crossed("isoline", down, up, iso=0.1, line=0.0)
    assert (child - down[:, 0]).std().item() == pytest.approx(0.1, rel=0.05)


# --- mutations


def blank(count=2000, rows=9, columns=4, rank=3):
    return torch.zeros(count, rows, rank), torch.zeros(count, columns, rank)


def test_svd_structured_stays_within_the_directions_that_are_there():
    down, up = (part[:, 0] for part in parents(2000, rows=9, columns=8, rank=2))
    new_down, new_up = mutated("svd_structured", down, up, epsilon=0.5)
    before, after = up.double() @ down.double().mT, new_up.double() @ new_down.double().mT
    left, _, right = singular(down, up)
    inside = left @ (left.mT @ after @ right) @ right.mT
    torch.testing.assert_close(inside, after, atol=1e-5, rtol=1e-5)
    size = (after - before).square().sum(dim=(1, 2)).mean().sqrt()
    assert size.item() == pytest.approx(0.5 * 8**0.5, rel=0.03)


def test_layer_selective_varies_whole_layers_of_some_individuals():
    down, up = mutated("layer_selective_gaussian", *blank(), layer_share=0.3)
    is_varied = (down != 0).flatten(1).any(dim=1)
    assert torch.equal(is_varied, (up != 0).flatten(1).any(dim=1))
    assert is_varied.float().mean().item() == pytest.approx(0.3, abs=0.04)
    assert down[is_varied].std().item() == pytest.approx(0.7 / 3, rel=0.05)


def test_component_masking_varies_whole_components():
    down, up = mutated("component_masking", *blank(), component_share=0.25)
    is_varied = (down != 0).any(dim=1)
    assert torch.equal(is_varied, (down != 0).all(dim=1))
    assert torch.equal(is_varied, (up != 0).any(dim=1))
    assert is_varied.float().mean().item() == pytest.approx(0.25, abs=0.03)
    assert is_varied.sum(dim=1).float().var().item() > 0


def test_neftune_noise_is_uniform_and_smaller_the_larger_the_factor():
    down, up = mutated("neftune_style", *blank(), alpha=6.0)
    for noise in (down, up):
        reach = 6.0 / (noise.shape[1] * noise.shape[2]) ** 0.5
        assert noise.abs().max().item() == pytest.approx(reach, rel=0.01)
        assert noise.abs().max() <= reach
        assert noise.std().item() == pytest.approx(reach / 3**0.5, rel=0.05)


@pytest.mark.parametrize("count", [1, 4, 5])
def test_antithetic_noise_of_a_pair_sums_to_nothing(count):
    for noise in mutated("antithetic_gaussian", *blank(count)):
        pairs = noise[: count // 2 * 2].unflatten(0, (-1, 2))
        assert torch.equal(pairs[:, 0], -pairs[:, 1])
        assert noise.any()


def test_antithetic_noise_has_the_scale_of_full_gaussian():
    down, up = mutated("antithetic_gaussian", *blank(), epsilon=0.6)
    assert down.std().item() == pytest.approx(0.6 / 3, rel=0.05)
    assert up.std().item() == pytest.approx(0.6 / 3**0.5, rel=0.05)


def test_weight_decay_shrinks_the_change():
    down, up = (part[:, 0] for part in parents())
    new_down, new_up = mutated("weight_decay", down, up, decay=0.25, epsilon=0.0)
    torch.testing.assert_close(new_up @ new_down.mT, 0.75 * up @ down.mT)


def test_soft_threshold_makes_small_weights_nothing():
    up = torch.tensor([[[0.3], [-0.05], [-0.5], [0.1]]])
    down = torch.ones(1, 2, 1)
    _, new = mutated("soft_threshold", down, up, threshold=0.1, epsilon=0.0)
    torch.testing.assert_close(new, torch.tensor([[[0.2], [0.0], [-0.4], [0.0]]]))


# --- selections and parents


def test_levels_drawn_uniformly_fall_to_who_is_nearest():
    fitnesses = torch.tensor([10.0, 0.0, -torch.inf, 1.0])
    drawn = parent_selections.get("fuss")(fitnesses, 5000, 2, generator())
    shares = (torch.bincount(drawn.flatten(), minlength=4) / drawn.numel()).tolist()
    assert shares == pytest.approx([0.45, 0.05, 0.0, 0.5], abs=0.02)


def test_equals_share_their_level():
    fitnesses = torch.tensor([1.0, 0.0, 0.0, 0.0])
    drawn = parent_selections.get("fuss")(fitnesses, 5000, 1, generator())
    shares = (torch.bincount(drawn.flatten(), minlength=4) / drawn.numel()).tolist()
    assert shares == pytest.approx([0.5, 1 / 6, 1 / 6, 1 / 6], abs=0.03)


def test_fuss_keeps_rare_levels():
    fitnesses = torch.cat([torch.zeros(30), torch.tensor([1.0])])
    kept = [30 in selections.get("fuss")(fitnesses, 2, generator(s)).tolist() for s in range(200)]
    assert sum(kept) / 200 == pytest.approx(0.75, abs=0.1)  # one of 31 would be 0.06


def test_the_queen_is_a_parent_of_everyone():
    fitnesses = torch.tensor([1.0, 9.0, 3.0, 9.0])
    drawn = parent_selections.get("queen_bee")(fitnesses, 300, 2, generator(), tournament_size=1)
    assert (drawn[:, 0] == 1).all()
    assert set(drawn[:, 1].tolist()) == {0, 1, 2, 3}
