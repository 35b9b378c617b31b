import pytest
import torch
from torch import nn

from populora_envs.population import Population
from tests.populations import assert_close, genes, mlp, numbers, population


def with_delta(weight, delta, dtype=torch.float32):
    """Individual i changes the single weight by delta[i]."""
    model = nn.Linear(1, 1, bias=False).to(dtype)
    with torch.no_grad():
        model.weight.fill_(weight)
    pop = population(model, pop_size=len(delta), low_rank=1)
    pop.individuals[""].down.fill_(1)
    pop.individuals[""].up.copy_(torch.tensor(delta).reshape(-1, 1, 1))
    return pop


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
    model = nn.Linear(2, 2, bias=False).to(torch.bfloat16)
    with torch.no_grad():
        model.weight.fill_(1.0)
    for dtype in (None, torch.bfloat16):
        pop = population(model, pop_size=1, low_rank=2, dtype=dtype)
        pop.individuals[""].down.fill_(1)
        pop.individuals[""].up.fill_(0.003)
        assert (pop.merge_(0).weight == 1.0078125).all()


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
