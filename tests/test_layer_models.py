"""Models of many kinds of layers: ranks by target, tied weights, state, and what is refused."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from populora_envs import Population, interact_with_env
from populora_envs.targets import find_ranks, find_targets
from tests.populations import assert_close
from tests.tiny import Aim


def numbers(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


class Mixed(nn.Module):
    """Images and tokens in, one number out; by attention over what a recurrent layer has seen."""

    def __init__(self):
        super().__init__()
        self.see = nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=2), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 2, groups=2)
        )
        self.read = nn.Embedding(10, 8)
        self.norm = nn.LayerNorm(8)
        self.think = nn.GRU(8, 8, batch_first=True)
        self.look = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, 1)

    def forward(self, image, tokens, state=None):
        seen = torch.cat([self.see(image).flatten(2).transpose(1, 2), self.read(tokens)], dim=1)
        thought, state = self.think(self.norm(seen), state)
        return self.head(self.look(thought, thought, thought)[0].mean(1)), state


def population(**settings):
    settings = {"pop_size": 4, "low_rank": 2, "seed": 0, **settings}
    pop = Population(Mixed(), **settings)
    pop.mutate_("full_gaussian", all_individuals=True)
    return pop


IDS = [3, 0, 3, 1]


def test_a_model_of_many_kinds_of_layers_threads_the_state_of_each_row():
    pop = population(lora_targets="*", adapt_bias=True, adapt_norm=True)
    assert len(pop.individuals) == 10
    image, tokens = numbers(4, 3, 8, 8), torch.arange(8).reshape(4, 2)
    state, alone = None, [None] * 4
    for _ in range(3):
        output, state = pop(image, tokens, state, individuals=IDS)
        for k, i in enumerate(IDS):
            one = pop.merge_(i)(image[k : k + 1], tokens[k : k + 1], alone[k])
            assert_close(output[k : k + 1], one[0])
            alone[k] = one[1]
    assert state.shape == (1, 4, 8)


def test_a_state_of_one_row_is_shown_to_everyone():
    pop = Population(nn.LSTM(3, 5, batch_first=True), pop_size=3, low_rank=2, seed=0)
    x, state = numbers(1, 4, 3), (numbers(1, 1, 5), numbers(1, 1, 5, seed=1))
    output, last = pop(x, state, all_individuals=True)
    for i in range(3):
        expected, ends = pop.merge_(i)(x, state)
        assert_close(output[i : i + 1], expected)
        assert_close(last[1][:, i : i + 1], ends[1])
    with pytest.raises(
        ValueError, match=r"the state of a LSTM is \(2, 3, 5\): it must be \(1, 3, 5"
    ):
        pop(x.expand(3, 4, 3), (numbers(2, 3, 5), numbers(2, 3, 5)), all_individuals=True)


def test_sequences_that_are_packed_are_refused():
    packed = nn.utils.rnn.pack_padded_sequence(numbers(2, 4, 3), [4, 2], batch_first=True)
    pop = Population(nn.GRU(3, 5, batch_first=True), pop_size=2, low_rank=2, seed=0)
    with pytest.raises(
        TypeError, match="a routed GRU takes padded sequences, not a PackedSequence"
    ):
        pop.model(packed)


# --- ranks


def test_ranks_by_path_then_glob_then_default():
    ranks = {"see.*": 3, "*.0": 5, "look": 4, "look.in_proj_weight": 6, "default": 2}
    found = find_ranks(ranks, find_targets(Mixed(), "*"))
    assert (
        found
        == {
            "see.0": 3,
            "see.3": 3,
            "read": 2,
            "think.weight_ih_l0": 2,
            "think.weight_hh_l0": 2,
            "look.in_proj_weight": 6,
            "look.out_proj": 4,
            "head": 1,  # its smaller side
        }
        | {}
    )


@pytest.mark.parametrize(
    ("low_rank", "message"),
    [
        ({"see.*": 3}, r"low_rank says nothing of 'think\.weight_ih_l0'"),
        ({"default": 3, "sea.*": 2}, r"low_rank names 'sea\.\*', which matches no target"),
        ({"default": 0}, r"low_rank\['default'\] must be"),
        ({}, "low_rank says nothing of 'see\\.0'"),
        (0, "low_rank must be"),
    ],
)
def test_ranks_that_do_not_cover_the_targets_are_refused(low_rank, message):
    with pytest.raises(ValueError, match=message):
        Population(Mixed(), pop_size=2, low_rank=low_rank)


def test_a_population_with_ranks_by_target_goes_through_its_files(tmp_path):
    ranks = {"head": 1, "see.*": 3, "default": 2}
    pop, other = population(low_rank=ranks), population(low_rank=ranks, seed=9)
    other.model.load_state_dict(pop.model.state_dict())
    image, tokens = numbers(4, 3, 8, 8), torch.arange(8).reshape(4, 2)
    expected = pop(image, tokens, all_individuals=True)[0]
    pop.save(tmp_path / "all.pt")
    other.load(tmp_path / "all.pt")
    assert torch.equal(other(image, tokens, all_individuals=True)[0], expected)
    with pytest.raises(ValueError, match="low_rank is 2 here and"):
        population().load(tmp_path / "all.pt")
    assert pop.save_individual(tmp_path / "thin.pt", 1, low_rank=1) > 0


def test_ranks_are_named_as_in_the_users_model_where_a_normaliser_lies_around_it():
    model = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
    with interact_with_env([Aim()], standardize=True) as interactor:
        pop = interactor.population(model, pop_size=2, low_rank={"0": 1, "default": 2})
    assert pop.ranks == {"model.0": 1, "model.2": 1}
    assert pop.individuals["model.0"].rank == 1


# --- targets


def test_embeddings_and_norms_are_adapted_where_they_are_asked_for():
    model = Mixed()
    plain = ["see.0", "see.3", "think", "look", "look.out_proj", "head"]
    assert list(find_targets(model, None)) == plain
    assert list(find_targets(model, "norm")) == ["norm"]
    assert list(find_targets(model, ["read"], adapt_norm=True)) == ["see.1", "read", "norm"]
    assert list(find_targets(model, ["look"])) == ["look", "look.out_proj"]
    assert list(find_targets(model, ["look.out_proj"])) == ["look.out_proj"]
    assert "norm" not in find_targets(model, "*")


class OwnAttention(nn.MultiheadAttention):
    def forward(self, x):
        return super().forward(x, x, x)


def test_a_part_of_an_attention_of_ones_own_is_refused():
    model = nn.ModuleDict({"own": OwnAttention(4, 2), "head": nn.Linear(4, 1)})
    assert list(find_targets(model, None)) == ["head"]
    with pytest.raises(
        ValueError, match=r"'own\.out_proj' is part of a layer that is a OwnAttention"
    ):
        find_targets(model, ["own.out_proj"])


class Tied(nn.Module):
    """An embedding whose weight is that of the last layer, and a layer that is called twice."""

    def __init__(self):
        super().__init__()
        self.read, self.twice = nn.Embedding(7, 4), nn.Linear(4, 4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.read.weight

    def forward(self, tokens):
        return self.head(self.twice(torch.tanh(self.twice(self.read(tokens)))))


@pytest.mark.parametrize("targets", [["read"], ["head"], ["read", "head"], "*"])
def test_layers_that_share_a_weight_are_each_adapted_alone(targets):
    pop = Population(Tied(), pop_size=3, low_rank=2, lora_targets=targets, seed=0)
    pop.mutate_("full_gaussian", all_individuals=True)
    x = torch.arange(6).reshape(3, 2)
    merged = [pop.merge_(i) for i in range(3)]
    expected = torch.cat([m(row[None]) for m, row in zip(merged, x, strict=True)])
    assert_close(pop(x, all_individuals=True), expected)
    assert merged[0].read.weight is not merged[0].head.weight
    assert pop.model.read.weight is pop.model.head.weight
    assert torch.equal(merged[0].read.weight, pop.model.read.weight) == (targets == ["head"])


def test_tokens_without_a_batch_dimension_are_not_taken_for_rows():
    class Positions(nn.Module):
        def __init__(self):
            super().__init__()
            self.place = nn.Embedding(8, 4)

        def forward(self, x):
            return x + self.place(torch.arange(x.shape[1]))

    pop = Population(Positions(), pop_size=2, low_rank=2, lora_targets="place", seed=0)
    with pytest.raises(ValueError, match="met 4 tokens without a batch dimension for 2 rows"):
        pop(numbers(2, 4, 4), all_individuals=True)


# --- what is refused, or said


class Dead(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.unused = nn.Linear(2, 2), nn.Linear(2, 2)
        self.conv, self.norm = nn.Conv1d(2, 2, 1), nn.LayerNorm(2)

    def forward(self, x):
        return self.used(x)


@pytest.mark.parametrize("routed", [True, False])
def test_targets_that_no_forward_reaches_are_named_once(routed):
    pop = Population(Dead(), pop_size=2, low_rank=1, adapt_norm=True, seed=0)

    def call():
        x = numbers(2, 2)
        return pop.routed(x, torch.tensor([0, 1])) if routed else pop(x, all_individuals=True)

    with pytest.warns(UserWarning, match=r"of Dead did not reach \['unused', 'conv', 'norm'\]"):
        call()
    call()


def test_a_model_on_a_device_without_numbers_is_refused():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, device="meta"))
    with pytest.raises(TypeError, match="weights without numbers"):
        Population(model, pop_size=2, low_rank=1)


def test_a_model_of_integers_is_refused():
    model = nn.Sequential(nn.Linear(2, 2))
    model[0].weight = nn.Parameter(torch.ones(2, 2, dtype=torch.int8), requires_grad=False)
    with pytest.raises(
        ValueError, match=r"'0' has weights of torch.int8: individuals change float"
    ):
        Population(model, pop_size=2, low_rank=1)


@pytest.mark.filterwarnings("ignore:.*quant")  # it is old
def test_a_quantised_model_is_refused():
    model = torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(2, 2)))
    with pytest.raises(TypeError, match="'0' is a Linear, whose weights are integers"):
        Population(model, pop_size=2, low_rank=1)


def test_a_scripted_or_compiled_part_of_a_model_is_refused():
    model = nn.Sequential(nn.Linear(2, 2), torch.compile(nn.Linear(2, 2), backend="eager"))
    with pytest.raises(TypeError, match="base policy's '1' is a compiled module"):
        Population(model, pop_size=2, low_rank=1)


def test_a_batch_norm_that_looks_at_the_batch_is_refused():
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2, track_running_stats=False))
    with pytest.raises(TypeError, match="'1' is a BatchNorm1d without running statistics"):
        Population(model, pop_size=2, low_rank=1)


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (nn.Embedding(4, 2, max_norm=1.0), r"rewrites its weight in every forward \(max_norm\)"),
        (nn.LayerNorm(2, elementwise_affine=False), "has no scale and no shift"),
        (nn.LazyConv2d(2, 3), "without sizes: run the model once before"),
        (nn.ConvTranspose2d(2, 2, 3), "a kind of layer that individuals cannot change"),
        (
            nn.utils.parametrizations.weight_norm(nn.Conv1d(2, 2, 1)),
            "has a weight that is computed",
        ),
    ],
)
def test_layers_that_cannot_be_adapted_say_why(layer, reason):
    with pytest.raises(ValueError, match=reason):
        find_targets(nn.ModuleDict({"layer": layer}), ["layer"])


def test_an_output_that_is_no_tensor_comes_out_as_it_is():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 3)

        def forward(self, x):
            return {"out": (self.layer(x), len(x)), "name": "kept"}

    pop = Population(Named(), pop_size=2, low_rank=1, seed=0)
    output = pop(numbers(2, 2), all_individuals=True)
    assert output["name"] == "kept"
    assert output["out"][1] == 2
    assert_close(output["out"][0][1], pop.merge_(1)(numbers(2, 2)[1:])["out"][0][0])


def test_dropout_and_batch_norm_behave_as_in_evaluation():
    model = nn.Sequential(nn.Conv1d(2, 4, 1), nn.BatchNorm1d(4), nn.Dropout(0.5)).train()
    pop, x = Population(model, pop_size=2, low_rank=1, adapt_norm=True, seed=0), numbers(4, 2, 3)
    before = {name: tensor.clone() for name, tensor in pop.model.state_dict().items()}
    assert torch.equal(pop(x, individuals=[0, 1]), pop(x, individuals=[0, 1]))
    assert all(torch.equal(before[n], t) for n, t in pop.model.state_dict().items())
    assert model.training


def test_a_module_that_was_not_handed_out_is_no_individual():
    pop = population()
    with pytest.raises(ValueError, match=r"holds no low-rank change of 'see\.0'"):
        pop.load_individual_(0, pop.merge_(1))
    with pytest.raises(ValueError, match="here and"):
        pop.load_individual_(0, population(low_rank=1).to_lora(1))


def test_a_convolution_in_another_memory_format_is_adapted():
    model = nn.Conv2d(4, 4, 3).to(memory_format=torch.channels_last)
    pop, x = Population(model, pop_size=2, low_rank=2, seed=0), numbers(2, 4, 5, 5)
    expected = torch.cat([pop.merge_(i)(x[i : i + 1]) for i in range(2)])
    assert_close(pop(x.to(memory_format=torch.channels_last), all_individuals=True), expected)


@pytest.mark.parametrize("size", [(5, 9), (9, 5), (400, 1)])
def test_a_rank_that_makes_any_change_leaves_one_factor_the_identity(size):
    """A factor of one number could be near zero, and hold the other still."""
    pop = Population(nn.Linear(*size), pop_size=30, low_rank=16, seed=0)
    layer = pop.individuals[""]
    assert layer.rank == min(size)
    pop.mutate_("full_gaussian", all_individuals=True)
    before = layer.up @ layer.down.transpose(1, 2)
    pop.mutate_("full_gaussian", individuals=range(20), epsilon=0.1)
    identity = layer.down if size[0] <= size[1] else layer.up
    assert torch.equal(identity, torch.eye(min(size)).expand(30, -1, -1))
    moved = layer.up @ layer.down.transpose(1, 2) - before
    assert (moved[20:] == 0).all()
    steps = moved[:20].flatten(1).std(dim=1) * size[0] ** 0.5
    assert ((steps > 0.05) & (steps < 0.5)).all()
