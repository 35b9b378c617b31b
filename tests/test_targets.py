import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, weight_norm

from populora_envs.population import Population
from populora_envs.targets import find_targets


def model():
    encoder = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 4))
    return nn.ModuleDict({"encoder": encoder, "conv": nn.Conv1d(2, 2, 1), "head": nn.Linear(4, 2)})


@pytest.mark.parametrize(
    ("patterns", "found"),
    [
        (None, ["encoder.0", "encoder.2", "conv", "head"]),
        (["head"], ["head"]),
        ("head", ["head"]),
        (["head", "encoder.0"], ["encoder.0", "head"]),
        (["encoder.*"], ["encoder.0", "encoder.2"]),
        ("*", ["encoder.0", "encoder.2", "conv", "head"]),
        (["*.0", "h*d", "head"], ["encoder.0", "head"]),
        (("encoder.[2-9]",), ["encoder.2"]),
        (iter(["head"]), ["head"]),
    ],
)
def test_targets_are_exact_paths_or_globs(patterns, found):
    base = model()
    targets = find_targets(base, patterns)
    assert list(targets) == found
    assert all(base.get_submodule(name) is layer for name, layer in targets.items())


ALL = "'encoder.0', 'encoder.2', 'conv', 'head'"


@pytest.mark.parametrize(
    ("patterns", "message"),
    [
        (["haed"], f"the target 'haed' matches no layer to adapt; there are: {ALL}"),
        (
            ["head", "decoder.*"],
            f"the target 'decoder.*' matches no layer to adapt; there are: {ALL}",
        ),
        (["con"], f"the target 'con' matches no layer to adapt; there are: {ALL}"),
        (
            ["encoder"],
            "the target 'encoder' is a Sequential, a kind of layer that individuals cannot change; "
            f"layers to adapt: {ALL}",
        ),
        (["encoder.1"], "the target 'encoder.1' is a ReLU, a kind of layer that"),
        ([""], "the target '' is a ModuleDict, a kind of layer that"),
        ([], f"lora_targets names no layer: name some of {ALL}"),
    ],
)
def test_a_target_that_matches_nothing_to_adapt_is_refused(patterns, message):
    with pytest.raises(ValueError) as error:  # noqa: PT011 - the whole message is compared
        Population(model(), pop_size=2, low_rank=2, lora_targets=patterns)
    assert message in str(error.value)


def test_a_model_that_is_a_linear_has_the_empty_path():
    layer = nn.Linear(2, 2)
    for patterns in (None, "", [""], ["*"]):
        assert find_targets(layer, patterns) == {"": layer}


def test_one_layer_under_two_names_is_found_once_under_the_first():
    shared = nn.Linear(3, 3)
    base = nn.ModuleDict({"a": shared, "b": nn.Sequential(shared), "c": nn.Linear(3, 3)})
    assert list(find_targets(base, None)) == ["a", "c"]
    assert list(find_targets(base, ["b.0"])) == ["a"]
    assert list(find_targets(base, ["b.*", "a"])) == ["a"]


def test_a_linear_inside_nested_containers_is_adapted():
    """D-38."""
    inner = nn.ModuleDict({"a": nn.ModuleList([nn.Linear(2, 2)])})

    class Nested(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(inner)

        def forward(self, x):
            return self.body[0]["a"][0](x)

    pop = Population(Nested(), pop_size=2, low_rank=2, seed=0)
    assert list(pop.individuals) == ["body.0.a.0"]
    x = torch.ones(1, 2)
    before = pop(x, all_individuals=True)
    pop.mutate_("full_gaussian", all_individuals=True)
    assert not torch.allclose(pop(x, all_individuals=True), before)
    assert "body.0.a.0" in dict(pop.merge_(0).named_modules())


def test_a_model_with_nothing_to_adapt_is_refused():
    """D-38."""
    message = "no layer to adapt: Sequential holds none"
    with pytest.raises(ValueError, match=message):
        Population(nn.Sequential(nn.ReLU()), pop_size=2, low_rank=2)


class Doubled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


def test_a_linear_that_computes_something_else_is_left_out_or_refused():
    base = nn.Sequential(nn.Linear(2, 2), Doubled(2, 2))
    assert list(find_targets(base, None)) == ["0"]
    with pytest.raises(
        ValueError, match="'1' is a Doubled, which does not compute as a Linear doe"
    ):
        find_targets(base, ["1"])
    with pytest.raises(ValueError, match=r"no layer to adapt: '1' is a Doubled, which does"):
        find_targets(base[1:], None)
    pop = Population(base, pop_size=2, low_rank=1, seed=0)
    x = torch.ones(2, 2)
    torch.testing.assert_close(pop(x, individual=1), pop.merge_(1)(x))


@pytest.mark.parametrize(
    "computed",
    [
        lambda: parametrizations.weight_norm(nn.Linear(2, 2)),
        lambda: parametrizations.spectral_norm(nn.Linear(2, 2)),
    ],
)
def test_a_linear_whose_weight_is_computed_is_left_out_or_refused(computed):
    base = nn.Sequential(computed(), nn.Linear(2, 2))
    assert parametrize.is_parametrized(base[0])
    assert list(find_targets(base, None)) == ["1"]
    with pytest.raises(ValueError, match="'0' has a weight that is computed"):
        find_targets(base, ["0"])
    pop = Population(base.eval(), pop_size=2, low_rank=1, seed=0)
    x = torch.ones(2, 2)
    torch.testing.assert_close(pop(x, individual=1), pop.merge_(1)(x))


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")  # the old one is the case
def test_old_weight_norm_that_has_run_is_refused_and_the_model_is_unharmed():
    """D-40."""
    base = nn.Sequential(weight_norm(nn.Linear(2, 2)), nn.Linear(2, 2))
    x = torch.ones(1, 2)
    expected = base(x)
    with pytest.raises(
        TypeError, match=r"the base policy Sequential cannot be copied \(.*weight no"
    ):
        Population(base, pop_size=2, low_rank=2)
    assert torch.equal(base(x), expected)


def test_a_lazy_linear_asks_for_a_first_run():
    with pytest.raises(ValueError, match="'0' is a LazyLinear without sizes: run the model once"):
        find_targets(nn.Sequential(nn.LazyLinear(2)), None)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")  # old modules are the case
@pytest.mark.filterwarnings("ignore:.*torch.jit.*:FutureWarning")
@pytest.mark.parametrize("seal", [torch.jit.script, lambda m: torch.jit.trace(m, torch.ones(1, 2))])
def test_a_scripted_or_traced_model_is_refused(seal):
    """D-39."""
    sealed = seal(nn.Sequential(nn.Linear(2, 2)))
    with pytest.raises(TypeError, match=r"is a TorchScript module, .*pass the plain one"):
        Population(sealed, pop_size=2, low_rank=2)


def test_a_compiled_model_is_refused_or_used_uncompiled():
    plain = nn.Sequential(nn.Linear(2, 2))
    with pytest.raises(
        TypeError, match=r"is a compiled module: pass the module given to torch\.comp"
    ):
        Population(torch.compile(plain, backend="eager"), pop_size=2, low_rank=2)
    plain.compile(backend="eager")
    pop = Population(plain, pop_size=2, low_rank=2, seed=0)
    x = torch.ones(1, 2)
    torch.testing.assert_close(pop(x, individual=1), pop.merge_(1)(x))


@pytest.mark.parametrize("other", [None, len, nn.Linear, {"0": nn.Linear(2, 2)}])
def test_what_is_no_module_is_refused(other):
    with pytest.raises(TypeError, match=r"the base policy must be a torch\.nn\.Module, not "):
        Population(other, pop_size=2, low_rank=2)
