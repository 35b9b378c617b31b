"""A base that a search moves: everyone moves with it, and what the user gave is kept."""

from __future__ import annotations

import copy
import pickle

import gymnasium
import pytest
import torch
from torch import nn

from populora_envs import interact_with_env
from populora_envs.normalizer import Moments, Normalizer, Standardized
from populora_envs.routing import RoutedLinear
from tests.populations import FITNESSES, assert_close, mlp, numbers, population, same
from tests.tiny import Aim, linear


def step(pop, scale=0.5, seed=7, *, bias=True):
    """A dense change of all layers."""
    change = {}
    for name, layer in pop.individuals.items():
        weight = scale * numbers(*layer.weight.shape, seed=seed).double()
        change[name] = {"weight": weight.to(torch.promote_types(layer.weight.dtype, torch.float32))}
        if bias and layer.bias is not None:
            drawn = scale * numbers(*layer.bias.shape, seed=seed + 1)
            change[name]["bias"] = drawn.to(change[name]["weight"])
    return change


def flat(change):
    return [t for parts in change.values() for t in parts.values()]


def parts(pop):
    return [w.clone() for layer in pop.individuals.values() for w in layer.parts.values()]


def base(pop):
    return {name: tensor.clone() for name, tensor in pop.model.state_dict().items()}


def output(pop):
    return pop(numbers(pop.pop_size, 2), all_individuals=True)


def by_merging(pop, x):
    return torch.cat([pop.merge_(i)(row[None]) for i, row in enumerate(x)])


@pytest.fixture(params=[False, True], ids=["materialised", "factored"])
def plan(request, monkeypatch):
    monkeypatch.setattr(RoutedLinear, "materialises", property(lambda _: not request.param))


# --- moving


def test_a_layer_without_a_bias_moves_its_weight():
    pop = population(nn.Linear(2, 3, bias=False), adapt_bias=True)
    pop.move_base_(step(pop))
    assert list(pop.base_change()[""]) == ["weight"]


@pytest.mark.parametrize("adapt_bias", [True, False])
def test_everyone_moves_and_the_weights_given_stay(plan, adapt_bias):
    model = mlp()
    given = copy.deepcopy(model.state_dict())
    pop = population(model, adapt_bias=adapt_bias)
    assert pop.base_change() is None
    genes, before, x, moved = parts(pop), output(pop), numbers(4, 2), step(pop)
    for k in (1, 2):
        pop.move_base_(moved)
        for name, added in moved.items():
            weight, bias = pop.model[int(name)].weight, pop.model[int(name)].bias
            assert_close(weight, given[f"{name}.weight"] + k * added["weight"])
            assert_close(bias, given[f"{name}.bias"] + k * added["bias"])
        assert_close(pop(x, all_individuals=True), by_merging(pop, x))
        assert_close(torch.as_tensor(pop.routed(x.numpy(), torch.arange(4))), by_merging(pop, x))
        assert same(flat(pop.base_change()), [k * t for t in flat(moved)])
    assert not torch.allclose(output(pop), before)
    assert same(parts(pop), genes)
    assert same(model.state_dict().values(), given.values())


def test_what_a_step_leaves_out_stays():
    pop = population()
    before = base(pop)
    pop.move_base_({"2": {"weight": torch.ones(1, 8)}})
    now = base(pop)
    assert_close(now["2.weight"], before["2.weight"] + 1)
    assert all(torch.equal(now[name], before[name]) for name in ("0.weight", "0.bias", "2.bias"))
    change = pop.base_change()
    assert [(change[n][p] != 0).any().item() for n in "02" for p in ("weight", "bias")] == [
        0,
        0,
        1,
        0,
    ]


def test_steps_and_changes_are_copies():
    pop = population()
    moved = step(pop)
    pop.move_base_(moved)
    expected, change = base(pop), pop.base_change()
    for tensor in [*flat(moved), *flat(change)]:
        tensor.zero_()
    pop.move_base_({})
    assert same(base(pop).values(), expected.values())
    assert all((t != 0).any() for t in flat(pop.base_change()))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_many_small_steps_count_in_any_precision(dtype):
    model = nn.Linear(2, 3).to(dtype)
    with torch.no_grad():
        model.weight.fill_(1.0)
        model.bias.fill_(-1.0)
    pop = population(model, init="zero")
    small = {"": {"weight": torch.full((3, 2), 1e-5), "bias": torch.full((3,), -1e-5)}}
    for _ in range(10_000):
        pop.move_base_(small)
    weight, bias = pop.model.weight, pop.model.bias
    assert (weight.dtype, bias.dtype) == (dtype, dtype)
    assert torch.allclose(weight.float(), torch.tensor(1.1), rtol=0, atol=0.005)
    assert torch.allclose(bias.float(), torch.tensor(-1.1), rtol=0, atol=0.005)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    assert pop.base_change()[""]["weight"].dtype == wide


@pytest.mark.parametrize(
    "misfit",
    [
        {"9": {"weight": torch.ones(8, 2)}},
        {"0": {"weight": torch.ones(1, 2)}},
        {"0": {"up": torch.ones(8)}},
    ],
    ids=["unknown layer", "another shape", "unknown part"],
)
def test_a_step_that_does_not_fit_is_refused_and_nothing_moves(misfit):
    pop = population()
    pop.move_base_(step(pop))
    before, change = base(pop), flat(pop.base_change())
    with pytest.raises(ValueError, match=r"[09]\.(weight|up) is "):
        pop.move_base_({"2": {"weight": torch.ones(1, 8)}, **misfit})
    assert same(flat(pop.base_change()), change)
    assert same(base(pop).values(), before.values())


def test_a_base_that_was_moved_in_inference_mode_moves_on():
    model = mlp()
    pop, other = population(model), population(model)
    with torch.inference_mode():
        pop.move_base_(step(pop))
    pop.move_base_(step(pop, seed=9))
    for seed in (7, 9):
        other.move_base_(step(other, seed=seed))
    assert torch.equal(output(pop), output(other))
    x = numbers(4, 2).requires_grad_()
    pop(x, all_individuals=True).sum().backward()
    assert (x.grad != 0).any()


class Tied(nn.Module):
    """Three layers with one weight, and a fourth with the first one's bias."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(3, 3) for _ in range(3))
        self.second.weight = self.third.weight = self.first.weight
        self.third.bias = self.first.bias

    def forward(self, x):
        return self.third(torch.tanh(self.second(torch.tanh(self.first(x)))))


@pytest.mark.parametrize("adapted", [["first", "second", "third"], ["first"]])
def test_layers_that_share_weights_move_alone(plan, adapted):
    model = Tied()
    given = copy.deepcopy(model.state_dict())
    pop, x = population(model, lora_targets=adapted), numbers(4, 3)
    added = {"weight": torch.ones(3, 3), "bias": torch.ones(3)}
    pop.move_base_({"first": added})
    now = base(pop)
    for part in ("weight", "bias"):
        assert_close(now[f"first.{part}"], given[f"first.{part}"] + 1)
        for name in ("second", "third"):
            assert torch.equal(now[f"{name}.{part}"], given[f"{name}.{part}"])
    assert_close(pop(x, all_individuals=True), by_merging(pop, x))
    assert same(model.state_dict().values(), given.values())


def test_the_base_still_requires_gradients_where_it_did():
    model = mlp()
    model[0].weight.requires_grad_(False)
    pop = population(model)
    pop.move_base_(step(pop))
    assert [p.requires_grad for p in pop.model.parameters()] == [False, True, True, True]
    assert [p.requires_grad for p in pop.merge_(0).parameters()] == [False, True, True, True]


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda pop: pickle.loads(pickle.dumps(pop))])
def test_copies_move_alone(clone):
    pop = population(adapt_bias=True)
    pop.move_base_(step(pop))
    expected = output(pop)
    other = clone(pop)
    assert torch.equal(output(other), expected)
    assert same(flat(other.base_change()), flat(pop.base_change()))
    other.move_base_(step(pop))
    assert torch.equal(output(pop), expected)


# --- teams


def test_a_team_stands_on_the_base_that_it_was_found_on():
    model = mlp()
    pop = population(model, adapt_bias=True)
    pop.move_base_(step(pop))
    found, change, x = pop.individual_state(2), pop.base_change(), numbers(4, 2)
    expected = pop(x, individual=2)
    pop.move_base_(step(pop, seed=9))
    present = output(pop)
    team = pop.with_individuals([found, pop.base_state()], change)
    assert torch.equal(team(x, individual=0), expected)
    assert same(flat(team.base_change()), flat(change))
    assert_close(team.merge_(0)(x), expected)
    start = pop.with_individuals([pop.base_state()], None)
    assert_close(start(x, individual=0), model(x))
    here = pop.with_individuals([pop.individual_state(i) for i in range(4)], pop.base_change())
    assert torch.equal(output(here), present)
    for other in (team, start, here):
        other.move_base_(step(pop))
    assert torch.equal(output(pop), present)
    assert same(flat(team._moved.start), flat(pop._moved.start))


def test_a_team_shares_the_parameters_of_a_base_that_has_not_moved():
    pop = population(adapt_bias=True)
    team = pop.with_individuals([pop.individual_state(1)], None)
    shared = zip(team.model.parameters(), pop.model.parameters(), strict=True)
    assert all(one is other for one, other in shared)
    assert torch.equal(team(numbers(1, 2), individual=0), pop(numbers(1, 2), individual=1))
    before = base(pop)
    team.move_base_(step(pop))
    assert same(base(pop).values(), before.values())
    assert pop.base_change() is None


def test_a_team_may_stand_on_a_moved_base_of_a_population_that_has_not_moved():
    model, x = mlp(), numbers(3, 2)
    pop, moved = (population(model, adapt_bias=True) for _ in range(2))
    moved.move_base_(step(moved))
    before = base(pop)
    team = pop.with_individuals([pop.individual_state(1)], moved.base_change())
    assert torch.equal(team(x, individual=0), moved(x, individual=1))
    assert same(flat(team.base_change()), flat(moved.base_change()))
    assert same(base(pop).values(), before.values())
    assert pop.base_change() is None


def test_a_team_that_moves_leaves_the_change_that_it_was_given():
    pop = population()
    pop.move_base_(step(pop))
    change = pop.base_change()
    expected = [t.clone() for t in flat(change)]
    team = pop.with_individuals([pop.base_state()], change)
    team.move_base_(step(pop, seed=9))
    assert same(flat(change), expected)
    assert same(flat(pop.base_change()), expected)


# --- files


def moved_population(seed=0, *, standardized=False, **options):
    model = Standardized(Normalizer(2), mlp()) if standardized else mlp()
    pop = population(model, seed=seed, adapt_bias=True, **options)
    if standardized:
        pop.normalizer.propose_([Moments(2, torch.ones(2).double(), torch.ones(2).double())])
        pop.normalizer.advance_()
    pop.move_base_(step(pop))
    pop.evolve_(FITNESSES)
    pop.move_base_(step(pop, 0.01, seed=3))
    return pop


@pytest.mark.parametrize("has_moved", [False, True])
@pytest.mark.parametrize("standardized", [False, True])
def test_a_moved_population_continues_exactly(tmp_path, has_moved, standardized):
    pop = moved_population(standardized=standardized)
    before, given = base(pop), [t.clone() for t in flat(pop._moved.start)]
    pop.save(tmp_path / "population.pt")
    whole = torch.load(tmp_path / "population.pt", weights_only=True)
    assert sorted(whole["moved"]) == ["change", "start"]
    assert same(base(pop).values(), before.values())
    model = Standardized(Normalizer(2), mlp()) if standardized else mlp()
    other = population(model, seed=1, adapt_bias=True)
    if has_moved:
        other.move_base_(step(other, 3.0, seed=11))
    other.load(tmp_path / "population.pt")
    for _ in range(2):
        assert same(base(other).values(), base(pop).values())
        assert same(flat(other._moved.start), given)
        assert same(flat(other.base_change()), flat(pop.base_change()))
        assert same(parts(other), parts(pop))
        assert torch.equal(output(other), output(pop))
        for one in (pop, other):
            one.evolve_(FITNESSES)
            one.move_base_(step(pop, 0.1, seed=5))


def test_a_moved_population_takes_over_one_that_has_not_moved(tmp_path):
    still, pop = population(seed=1, adapt_bias=True), moved_population()
    still.save(tmp_path / "population.pt")
    pop.load(tmp_path / "population.pt")
    assert pop.base_change() is None
    assert torch.equal(output(pop), output(still))
    pop.move_base_(step(pop))
    still.move_base_(step(still))
    assert same(base(pop).values(), base(still).values())


# --- workers


def pendulums():
    return [gymnasium.make("Pendulum-v1") for _ in range(3)]


@pytest.mark.parametrize(("make", "num_in"), [(lambda: Aim, 2), (pendulums, 3)])
def test_workers_play_biases_and_a_moved_base_alike(make, num_in):
    shown = []
    for num_workers in (0, 2):
        options = {"num_workers": num_workers, "seed": 4, "standardize": True}
        with interact_with_env(make(), **options) as interactor:
            pop = interactor.population(linear(num_in), pop_size=4, low_rank=2, adapt_bias=True)
            for seed in range(3):
                played = interactor.rollout(pop, horizon=20, num_episodes=2)
                shown.append([played.returns, played.fitnesses])
                pop.evolve_(played.fitnesses)
                pop.move_base_(step(pop, seed=seed))
            shown.append([*base(pop).values(), *parts(pop)])
    assert all(same(one, other) for one, other in zip(shown[:4], shown[4:], strict=True))
    assert shown[0][0].isfinite().all()
    assert not torch.equal(shown[0][0], shown[1][0])
