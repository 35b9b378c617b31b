"""The evolution strategy: its step against the formula in NumPy, its noise, its state."""

import numpy as np
import pytest
import torch
from torch import nn

from populora_envs import files
from populora_envs.population import Population
from populora_envs.search import EvolutionStrategy, make_search

FULL, FACTORS = 8, 2


def mlp():
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 4))


def population(pop_size=8, low_rank=FACTORS, adapt_bias=True, seed=0, model=None):
    model = mlp() if model is None else model
    return Population(model, pop_size=pop_size, low_rank=low_rank, adapt_bias=adapt_bias, seed=seed)


def changes(layer):
    """What each individual adds to a weight and to a bias, float64."""
    up, down = layer.up.double().numpy(), layer.down.double().numpy()
    weights = np.einsum("pok,pik->poi", up, down)
    return weights, None if layer.offset is None else layer.offset.double().numpy()


def utilities(fitnesses):
    """The shaping of NES, ties averaged, in plain NumPy."""
    values = np.where(np.isfinite(fitnesses), fitnesses, -np.inf)
    count = len(values)
    raw = np.maximum(0.0, np.log(count / 2 + 1) - np.log(np.arange(1, count + 1)))
    by_rank = raw / raw.sum() - 1 / count
    ranked = -np.sort(-values)
    return np.array([by_rank[ranked == value].mean() for value in values])


def base(pop):
    return {n: (x.weight.detach().clone(), x.bias.detach().clone()) for n, x in _layers(pop)}


def _layers(pop):
    return pop.individuals.items()


def assert_step_is(pop, fitnesses, rate, before, asked):
    """The base has moved by rate times the utility-weighted sum of the changes that were asked."""
    shaped = rate * utilities(np.array(fitnesses))
    for name, layer in _layers(pop):
        weights, offsets = asked[name]
        weight, bias = before[name]
        expected = weight.numpy() + np.einsum("p,poi->oi", shaped, weights)
        np.testing.assert_allclose(layer.weight.detach().numpy(), expected, atol=2e-6)
        expected = bias.numpy() + (0.0 if offsets is None else shaped @ offsets)
        np.testing.assert_allclose(layer.bias.detach().numpy(), expected, atol=2e-6)


# --- the step


@pytest.mark.parametrize(
    "fitnesses",
    [
        [1.0, 5.0, -2.0, 3.0, 0.5, 4.0, -7.0, 2.0],
        [1.0, 1.0, 0.0, 3.0, 3.0, 3.0, 0.0, 2.0],
        [1.0, np.nan, 0.0, np.inf, 3.0, -np.inf, 0.0, 2.0],
        [4.0, 1.0, 2.0, 3.0, 2.5],
        [0.0, 1.0],
    ],
    ids=["distinct", "ties", "not_finite", "odd", "two"],
)
@pytest.mark.parametrize("adapt_bias", [False, True])
@pytest.mark.parametrize("low_rank", [FACTORS, FULL])
def test_a_step_is_the_weighted_sum_of_the_changes(low_rank, adapt_bias, fitnesses):
    pop = population(len(fitnesses), low_rank, adapt_bias)
    search = make_search("es", pop, first_rate=1.25, last_rate=0.5, half_life=2.0)
    for rate in (1.25, 0.5 + 0.75 * 2**-0.5, 0.5 + 0.75 / 2):
        search.ask()
        assert search.rate == pytest.approx(rate)
        before, asked = base(pop), {name: changes(layer) for name, layer in _layers(pop)}
        search.tell(fitnesses)
        assert_step_is(pop, fitnesses, rate, before, asked)


def test_the_rate_halves_its_distance_to_the_last_one():
    pop = population()
    search = make_search("es", pop)
    rates = []
    for generation in (0, 40, 80, 100_000):
        pop.generation = generation
        rates.append(search.rate)
    assert rates == pytest.approx([1.5, 1.05, 0.825, 0.6])


@pytest.mark.parametrize("low_rank", [FACTORS, FULL])
def test_it_steps_towards_the_better_half(low_rank):
    pop = population(2, low_rank)
    search = make_search("es", pop)
    search.ask()
    before, (change, _) = base(pop)["0"][0], changes(pop.individuals["0"])
    search.tell([0.0, 1.0])
    moved = (pop.individuals["0"].weight.detach() - before).numpy()
    assert (moved * change[1]).sum() > 0


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_fitness_that_is_not_finite_ranks_last(bad):
    ends = []
    for worst in (bad, -1e9):
        pop = population(4)
        search = make_search("es", pop)
        search.ask()
        search.tell([1.0, worst, 2.0, 0.0])
        ends.append(pop.model.state_dict())
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


@pytest.mark.parametrize("value", [0.0, -3.5, np.nan, -np.inf])
def test_all_equal_fitness_moves_nothing(value):
    pop = population(5)
    before = {name: tensor.clone() for name, tensor in pop.model.state_dict().items()}
    search = make_search("es", pop)
    search.ask()
    search.tell([value] * 5)
    assert pop.base_change() is None
    assert all(torch.equal(before[name], now) for name, now in pop.model.state_dict().items())


# --- the perturbations


@pytest.mark.parametrize("low_rank", [1, FACTORS, 3, 4, FULL])
@pytest.mark.parametrize("pop_size", [1, 2, 5, 8])
def test_pairs_cancel_and_an_odd_last_one_is_the_mean(low_rank, pop_size):
    pop = population(pop_size, low_rank)
    make_search("es", pop).ask()
    for _, layer in _layers(pop):
        for change in changes(layer):
            pairs = change[: pop_size // 2 * 2]
            assert np.array_equal(pairs[::2], -pairs[1::2])
            assert not change[len(pairs) :].any()
            assert pop_size == 1 or pairs.any()


@pytest.mark.parametrize("scale", [0.5, 2.0])
@pytest.mark.parametrize("low_rank", [1, FACTORS, 3, 4, FULL])
def test_a_weight_varies_by_the_scale_over_the_root_of_the_fan_in(low_rank, scale):
    pop = population(4000, low_rank)
    make_search("es", pop, scale=scale).ask()
    for _, layer in _layers(pop):
        expected = scale / layer.down.shape[1] ** 0.5
        weights, offsets = changes(layer)
        # over 2000 pairs a standard deviation is known to 2 %, to 4 % for products of two normals
        np.testing.assert_allclose(weights.std(axis=0), expected, rtol=0.15)
        np.testing.assert_allclose(weights.std(), expected, rtol=0.05)
        np.testing.assert_allclose(offsets.std(axis=0), expected, rtol=0.1)


def test_layers_generations_and_seeds_draw_different_noise():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    seen = []
    for seed in (0, 1):
        pop = population(2, low_rank=4, seed=seed, model=model)
        search = make_search("es", pop)
        for _ in range(2):
            search.ask()
            seen += [changes(layer)[0][0] for _, layer in _layers(pop)]
            search.tell([0.0, 1.0])
    assert len({one.tobytes() for one in seen}) == len(seen) == 8


# --- what it keeps and what it leaves alone


def test_the_model_passed_in_is_never_changed():
    model = mlp()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    pop = population(model=model)
    search = make_search("es", pop)
    for _ in range(3):
        search.ask()
        search.tell(range(8))
    assert all(torch.equal(before[name], now) for name, now in model.state_dict().items())
    assert not torch.equal(pop.model.state_dict()["0.weight"], before["0.weight"])


def test_merge_gives_the_moved_base_plus_the_individual():
    pop = population()
    search = make_search("es", pop)
    for _ in range(3):
        search.ask()
        search.tell(range(8))
    search.ask()
    merged, moved = pop.merge_(3), pop.base_change()
    for name, layer in _layers(pop):
        start = mlp().get_submodule(name).weight.detach().numpy()
        expected = start + moved[name]["weight"].numpy() + changes(layer)[0][3]
        weight = merged.get_submodule(name).weight.detach().numpy()
        np.testing.assert_allclose(weight, expected, atol=1e-5)


def test_the_centre_is_the_base_where_it_stands():
    pop = population()
    search = make_search("es", pop)
    search.ask()
    search.tell(range(8))
    centre = pop.with_individuals([search.centre()], pop.base_change()).merge_(0)
    for name, layer in _layers(pop):
        assert torch.equal(centre.get_submodule(name).weight, layer.weight)
        assert torch.equal(centre.get_submodule(name).bias, layer.bias)


def tensors_of(state):
    """All tensors in a nested dict."""
    if isinstance(state, torch.Tensor):
        return [state]
    return [t for v in state.values() for t in tensors_of(v)] if isinstance(state, dict) else []


def test_nothing_of_the_size_of_all_individuals_is_kept_beside_them():
    pop = population(pop_size=500)
    search = make_search("es", pop)
    search.ask()
    search.tell(range(500))
    size_of_base = sum(parameter.numel() for parameter in pop.model.parameters())
    assert sum(t.numel() for t in tensors_of(search.state())) == 500  # the fitnesses
    state = pop.state()
    del state["individuals"]
    assert sum(t.numel() for t in tensors_of(state.pop("lineage"))) == 3 * 500
    # the base, where it began, and what was added
    assert sum(t.numel() for t in tensors_of(state)) <= 3 * size_of_base


@pytest.mark.parametrize("low_rank", [FACTORS, FULL])
def test_it_goes_on_from_a_file_bit_for_bit(low_rank, tmp_path):
    def go(pop, search, generations):
        for generation in generations:
            search.ask()
            search.tell([(7 * i + generation) % 5 for i in range(8)])

    whole = population(low_rank=low_rank)
    search = make_search("es", whole)
    go(whole, search, range(3))
    content = {"population": whole.state(), "search": search.state()}
    files.save_file(tmp_path / "state.pt", content)
    go(whole, search, range(3, 6))

    saved = files.load_file(tmp_path / "state.pt")
    resumed = population(low_rank=low_rank, seed=5, model=nn.Sequential(*mlp()))
    again = make_search("es", resumed)
    resumed.load_state_(saved["population"])
    again.load_state_(saved["search"])
    go(resumed, again, range(3, 6))
    pairs = zip(tensors_of(whole.state()), tensors_of(resumed.state()), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("name", ["scale", "first_rate", "last_rate", "half_life"])
@pytest.mark.parametrize("value", [0, -1.0, np.nan, np.inf])
def test_wrong_settings_are_refused(name, value):
    with pytest.raises(ValueError, match=f"{name} must be above 0 and finite, not {value}"):
        EvolutionStrategy(population(), **{name: value})
