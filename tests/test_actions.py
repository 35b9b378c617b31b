import math

import numpy as np
import pytest
import torch
from gymnasium.spaces import (
    Box,
    Discrete,
    MultiBinary,
    MultiDiscrete,
    Text,
    Tuple,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from populora_envs.action_map import ActionMap
from populora_envs.actions import ActionHead, heads, make_action, register_head
from populora_envs.seeds import hash_uniform

NAMES = list(heads)
BOX_HEADS = [
    ("squashed_gaussian", {}),
    ("beta", {}),
    ("beta", {"beta_rescale_neg_one_one": False}),
]
HEADS = [("categorical", {}), ("categorical", {"num_categories": [3, 5]}), *BOX_HEADS]
all_heads = pytest.mark.parametrize(("name", "options"), HEADS)
box_heads = pytest.mark.parametrize(("name", "options"), BOX_HEADS)


def make_output(rows=6, size=8, seed=0, dtype=torch.float32):
    return torch.randn(rows, size, generator=torch.Generator().manual_seed(seed)).to(dtype)


def make_keys(rows=6):
    return torch.stack([torch.arange(rows) * 7 + 3, torch.arange(rows) % 2], dim=1)


# Every head


def test_every_registered_head_is_tested():
    assert {name for name, _ in HEADS} == set(NAMES) == {"categorical", "squashed_gaussian", "beta"}


@all_heads
@pytest.mark.parametrize("lead", [(), (4,), (2, 3)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_any_leading_dimensions_pass(name, options, lead, dtype):
    head = make_action(name, **options)
    output = torch.zeros(*lead, 8, dtype=dtype)
    for action in (head(output), head.mean(output)):
        assert action.shape[: len(lead)] == lead
        assert action.dtype == (torch.int64 if name == "categorical" else dtype)
        log_prob = head.log_prob(output, action)
        assert log_prob.shape == lead
        assert log_prob.dtype == dtype
        assert log_prob.isfinite().all()


@all_heads
def test_the_output_is_never_changed(name, options):
    head = make_action(name, **options)
    output = make_output()
    before = output.clone()
    action = head(output)
    head(output, make_keys())
    head.log_prob(output, action)
    head.mean(output)
    assert torch.equal(output, before)


@all_heads
def test_noise_depends_on_the_row_key_alone(name, options):
    head = make_action(name, **options)
    output, keys = make_output(rows=37), make_keys(rows=37)
    whole = head(output, keys)
    for size in (1, 2, 5, 36):
        pieces = zip(output.split(size), keys.split(size), strict=True)
        assert torch.equal(torch.cat([head(part, key) for part, key in pieces]), whole)
    order = torch.randperm(37, generator=torch.Generator().manual_seed(1))
    assert torch.equal(head(output[order], keys[order]), whole[order])
    assert not torch.equal(head(output, keys + 1), whole)


@all_heads
def test_the_mean_does_not_depend_on_the_batch(name, options):
    head = make_action(name, **options)
    output = make_output(rows=37)
    rows = [head.mean(row.clone()) for row in output.split(1)]
    assert torch.equal(torch.cat(rows), head.mean(output))


@all_heads
def test_keyed_noise_leaves_the_global_generator_alone(name, options):
    before = torch.get_rng_state()
    make_action(name, **options)(make_output(), make_keys())
    assert torch.equal(torch.get_rng_state(), before)


@all_heads
def test_without_keys_the_global_generator_is_used(name, options):
    head = make_action(name, **options)
    with torch.random.fork_rng():
        torch.manual_seed(3)
        first = head(make_output())
        torch.manual_seed(3)
        assert torch.equal(head(make_output()), first)
        assert not torch.equal(head(make_output()), first)


@all_heads
def test_one_key_per_row_is_needed(name, options):
    with pytest.raises(ValueError, match=r"6\] rows, keys \[5\]: pass one key per row"):
        make_action(name, **options)(make_output(), make_keys(rows=5))


@all_heads
def test_a_head_that_does_not_sample_gives_the_mean(name, options):
    head = make_action(name, sample=False, **options)
    assert head.sample is False
    assert torch.equal(head(make_output()), head.mean(make_output()))
    assert torch.equal(head(make_output(), make_keys()), head.mean(make_output()))


@all_heads
def test_a_low_temperature_draws_near_the_mean(name, options):
    cold = make_action(name, temperature=1e-6, **options)
    output, keys = make_output(rows=50), make_keys(rows=50)
    near = cold(output, keys).double()
    np.testing.assert_allclose(near, cold.mean(output).double(), atol=0.02)


@all_heads
@pytest.mark.parametrize("temperature", [0, -1.0, math.nan, math.inf])
def test_a_temperature_that_is_not_positive_is_refused(name, options, temperature):
    with pytest.raises(ValueError, match="temperature must be a positive number"):
        make_action(name, temperature=temperature, **options)


@all_heads
def test_log_prob_has_gradients(name, options):
    head = make_action(name, **options)
    output = make_output().requires_grad_()
    head.log_prob(output, head(output).detach()).sum().backward()
    assert output.grad.isfinite().all()
    assert output.grad.abs().sum() > 0


# make_action


@pytest.mark.parametrize(
    ("space", "name", "size"),
    [
        (Discrete(3, start=4), "Categorical", 3),
        (MultiDiscrete([3, 4]), "Categorical", 7),
        (MultiDiscrete([[2, 3], [4, 5]]), "Categorical", 14),
        (Box(-2, 2, (3, 2)), "SquashedGaussian", 12),
        (Box(-2, 2, ()), "SquashedGaussian", 2),
    ],
)
def test_a_space_chooses_its_head(space, name, size):
    head = make_action(space)
    assert type(head).__name__ == name
    assert head.output_size(space) == size
    action = head(torch.zeros(2, size), make_keys(2))
    assert ActionMap(space, head.range).map(action)[0].shape == (2, *space.shape)


@pytest.mark.parametrize("name", NAMES)
def test_an_unknown_option_lists_near_ones(name):
    with pytest.raises(TypeError, match=f"{name!r} has no option 'temprature'; near.*temperature"):
        make_action(name, temprature=1.0)


@pytest.mark.parametrize("name", sorted(set(NAMES) - {"beta"}))
def test_only_beta_takes_the_beta_option(name):
    with pytest.raises(TypeError, match="beta_rescale_neg_one_one"):
        make_action(name, beta_rescale_neg_one_one=True)


def test_an_unknown_head_lists_near_ones():
    with pytest.raises(
        ValueError, match=r"unknown action head 'gaussian'; near.*squashed_gaussian"
    ):
        make_action("gaussian")


@pytest.mark.parametrize("space", [MultiBinary(2), Tuple((Discrete(2),)), Text(3)])
def test_a_space_without_a_head_is_refused(space):
    with pytest.raises(ValueError, match="no action head samples"):
        make_action(space)


@pytest.mark.parametrize(
    ("name", "space"),
    [("categorical", Box(0, 1)), ("beta", Discrete(2)), ("squashed_gaussian", MultiBinary(2))],
)
def test_a_head_refuses_a_space_it_does_not_fit(name, space):
    with pytest.raises(ValueError, match="does not fit"):
        make_action(name).output_size(space)


def test_a_plain_categorical_head_refuses_several_factors():
    with pytest.raises(ValueError, match=r"num_categories=None, MultiDiscrete\(\[3 4\]\)"):
        make_action("categorical").output_size(MultiDiscrete([3, 4]))


def test_a_head_of_the_user_is_found_by_name():
    class Half(ActionHead):
        range = (0.0, 1.0)

        def mean(self, output):
            return output * 0 + 0.5

        def log_prob(self, output, action):
            return output.sum(-1) * 0

        def output_size(self, space):
            return 1

        def _draw(self, output, keys):
            return self.mean(output)

    register_head("test_half")(Half)
    try:
        assert make_action("test_half")(torch.ones(2, 1)).tolist() == [[0.5], [0.5]]
    finally:
        del heads._entries["test_half"]


# Categorical


def test_categorical_mean_is_the_largest_logit():
    output = torch.tensor([[0.0, 3.0, 1.0, -2.0, -1.0], [4.0, 3.0, 1.0, 0.5, 0.0]])
    assert make_action("categorical").mean(output).tolist() == [1, 0]
    factors = make_action("categorical", num_categories=(3, 2))
    assert factors.mean(output).tolist() == [[1, 1], [0, 0]]
    assert factors.range is None


def test_categorical_draws_follow_the_logits():
    logits = torch.tensor([0.1, 0.2, 0.7]).log().expand(20000, 3)
    keys = torch.arange(20000)[:, None]
    for temperature, expected in ((1.0, [0.1, 0.2, 0.7]), (0.5, [0.01, 0.04, 0.49])):
        drawn = make_action("categorical", temperature=temperature)(logits, keys)
        shares = drawn.bincount(minlength=3) / 20000
        np.testing.assert_allclose(shares, np.array(expected) / sum(expected), atol=0.015)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_categorical_log_prob_is_torchs(temperature):
    output = make_output(dtype=torch.float64)
    head = make_action("categorical", num_categories=[3, 5], temperature=temperature)
    action = head(output)
    expected = sum(
        torch.distributions.Categorical(logits=logits / temperature).log_prob(index)
        for logits, index in zip(output.split([3, 5], -1), action.unbind(-1), strict=True)
    )
    np.testing.assert_allclose(head.log_prob(output, action), expected, rtol=1e-12)


@pytest.mark.parametrize("wrong", [[], [3, 0]])
def test_categories_are_counted_from_one(wrong):
    with pytest.raises(ValueError, match="one count of 1 or more per factor"):
        make_action("categorical", num_categories=wrong)


def test_a_wrong_number_of_logits_is_named():
    with pytest.raises(ValueError, match=r"gives 6 logits .* num_categories=\[3, 4\] wants 7"):
        make_action("categorical", num_categories=[3, 4])(torch.zeros(2, 6))


# Heads for a Box


def test_log_prob_at_the_middle_and_at_the_ends_is_finite():
    """D-53: it was -inf or exploded at the ends."""
    head = make_action("squashed_gaussian")
    output = torch.zeros(3, 2)
    log_prob = head.log_prob(output, torch.tensor([[0.0], [1.0], [-1.0]]))
    assert log_prob[0].item() == pytest.approx(-0.918939, abs=1e-6)
    assert log_prob.isfinite().all()
    assert log_prob[1] == log_prob[2]
    two = head.log_prob(torch.zeros(4), torch.zeros(2))
    assert two.item() == pytest.approx(-2 * 0.918939, abs=1e-5)


def test_tanh_is_applied_once():
    """D-54: it was applied twice, which halved the reach."""
    head = make_action("squashed_gaussian", sample=False)
    action = head(torch.tensor([[1.0, 0.0]]))
    assert action.item() == pytest.approx(0.761594, abs=1e-6)
    mapped, _ = ActionMap(Box(0, 10, (1,)), head.range).map(action)
    assert mapped.item() == pytest.approx(8.80797, abs=1e-5)


def test_squashed_gaussian_reads_means_first():
    head = make_action("squashed_gaussian")
    mean = head.mean(torch.tensor([0.5, -1.0, 3.0, 3.0]))
    assert mean.tolist() == pytest.approx([math.tanh(0.5), math.tanh(-1.0)])


@pytest.mark.parametrize(("log_std", "std"), [(-9.0, math.exp(-5)), (0.0, 1.0), (7.0, math.exp(2))])
def test_the_log_std_is_clamped(log_std, std):
    output = torch.tensor([[0.0, log_std]], dtype=torch.float64)
    keys = torch.tensor([[4]])
    noise = torch.special.ndtri(hash_uniform(keys, 1)).item()
    head = make_action("squashed_gaussian", temperature=0.5)
    assert head(output, keys).item() == pytest.approx(math.tanh(0.5 * std * noise), rel=1e-12)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_squashed_gaussian_log_prob_is_torchs(temperature):
    output = make_output(dtype=torch.float64) / 2
    head = make_action("squashed_gaussian", temperature=temperature)
    action = head(output)
    normal = torch.distributions.Normal(output[:, :4], temperature * output[:, 4:].exp())
    expected = torch.distributions.TransformedDistribution(
        normal, [torch.distributions.TanhTransform()]
    ).log_prob(action)
    np.testing.assert_allclose(head.log_prob(output, action), expected.sum(-1), rtol=1e-9)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_beta_log_prob_is_torchs(temperature):
    output = make_output(dtype=torch.float64)
    mean, total = output[:, :4].sigmoid(), 2 + torch.nn.functional.softplus(output[:, 4:])
    total = total / temperature
    expected = torch.distributions.Beta(mean * total, (1 - mean) * total)
    on_unit = make_action("beta", temperature=temperature, beta_rescale_neg_one_one=False)
    action = on_unit(output)
    wanted = expected.log_prob(action).sum(-1)
    np.testing.assert_allclose(on_unit.log_prob(output, action), wanted, rtol=1e-9)
    wide = make_action("beta", temperature=temperature)
    np.testing.assert_allclose(
        wide.log_prob(output, 2 * action - 1), wanted - 4 * math.log(2), rtol=1e-9
    )


def test_beta_mean_is_the_sigmoid_on_its_range():
    output = torch.tensor([0.0, 1.0, 5.0, -5.0])
    narrow = make_action("beta", beta_rescale_neg_one_one=False)
    assert narrow.range == (0.0, 1.0)
    assert narrow.mean(output).tolist() == pytest.approx([0.5, 0.731059], abs=1e-6)
    wide = make_action("beta")
    assert wide.range == (-1.0, 1.0)
    assert wide.mean(output).tolist() == pytest.approx([0.0, 0.462117], abs=1e-6)


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(BOX_HEADS), st.floats(-1.5, 1.5), st.floats(-1.5, 1.5))
def test_the_density_integrates_to_one(case, first, second):
    name, options = case
    head = make_action(name, **options)
    low, high = head.range
    # Substituting a logistic for the action makes densities that rise at the ends integrable.
    t = torch.linspace(-35, 35, 20001, dtype=torch.float64)
    place, slope = torch.sigmoid(t), torch.sigmoid(t) * torch.sigmoid(-t)
    action = (low + (high - low) * place)[:, None]
    output = torch.tensor([first, second], dtype=torch.float64).expand(len(t), 2)
    density = head.log_prob(output, action).exp() * slope * (high - low)
    assert torch.trapezoid(density, t).item() == pytest.approx(1.0, abs=1e-3)


def draw_sorted(head, numbers, count=20000):
    output = torch.tensor(numbers, dtype=torch.float64).expand(count, 2)
    return head(output, torch.arange(count)[:, None])[:, 0].sort().values


def assert_distribution(cumulative):
    """The largest gap of 20000 draws to their distribution (Kolmogorov-Smirnov, 0.1 %)."""
    expected = (torch.arange(len(cumulative)) + 0.5) / len(cumulative)
    assert (cumulative - expected).abs().max() < 1.95 / math.sqrt(len(cumulative))


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("numbers", [(0.0, 0.0), (1.0, -1.0), (-2.0, 0.5)])
def test_squashed_gaussian_draws_follow_their_distribution(temperature, numbers):
    drawn = draw_sorted(make_action("squashed_gaussian", temperature=temperature), numbers)
    std = temperature * math.exp(numbers[1])
    assert_distribution(torch.special.ndtr((drawn.atanh() - numbers[0]) / std))


@pytest.mark.parametrize(
    ("numbers", "temperature", "cumulative"),
    [
        ((0.0, -50.0), 1.0, lambda x: x),  # Beta(1, 1)
        ((math.log(2), math.log(math.e - 1)), 1.0, lambda x: x**2),  # Beta(2, 1)
        ((0.0, -50.0), 2.0, lambda x: x.sqrt().asin() * 2 / math.pi),  # Beta(1/2, 1/2)
        ((math.log(1 / 3), -50.0), 0.5, lambda x: 1 - (1 - x) ** 3),  # Beta(1, 3)
    ],
)
def test_beta_draws_follow_their_distribution(numbers, temperature, cumulative):
    options = {"temperature": temperature}
    narrow = make_action("beta", beta_rescale_neg_one_one=False, **options)
    assert_distribution(cumulative(draw_sorted(narrow, numbers)))
    assert_distribution(cumulative((draw_sorted(make_action("beta", **options), numbers) + 1) / 2))


@pytest.mark.parametrize("temperature", [0.1, 1.0, 8.0])
@pytest.mark.parametrize("numbers", [(0.0, 0.0), (1.0, 2.0), (-3.0, -1.0), (2.0, 100.0)])
def test_beta_draws_have_the_mean_and_the_spread(temperature, numbers):
    head = make_action("beta", temperature=temperature)
    drawn = draw_sorted(head, numbers)
    mean = head.mean(torch.tensor(numbers, dtype=torch.float64)).item()
    total = (2 + math.log1p(math.exp(numbers[1]))) / temperature
    std = math.sqrt((1 - mean**2) / (total + 1))
    assert drawn.mean().item() == pytest.approx(mean, abs=4 * std / math.sqrt(20000))
    assert drawn.std().item() == pytest.approx(std, rel=0.05)


@box_heads
def test_extreme_outputs_give_finite_actions(name, options):
    head = make_action(name, **options)
    values = torch.tensor([-1e30, -1000.0, -50.0, 0.0, 50.0, 1000.0, 1e30])
    output = torch.cartesian_prod(values, values)
    low, high = head.range
    for action in (head(output, torch.arange(49)[:, None]), head.mean(output)):
        assert action.isfinite().all()
        assert action.min() >= low
        assert action.max() <= high


@box_heads
def test_a_policy_that_gives_nan_gives_nan(name, options):
    """The map replaces it and counts the row."""
    head = make_action(name, **options)
    action = head(torch.tensor([[math.nan, 0.0], [0.0, 0.0]]), torch.tensor([[1], [2]]))
    assert action.isnan().tolist() == [[True], [False]]


@box_heads
def test_an_odd_number_of_outputs_is_refused(name, options):
    with pytest.raises(ValueError, match=r"gives 5 numbers per observation.*2 numbers per dim"):
        make_action(name, **options)(torch.zeros(2, 5))


@box_heads
def test_an_action_at_an_end_has_a_finite_log_prob(name, options):
    head = make_action(name, **options)
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        ends = torch.tensor([[end] for end in head.range], dtype=dtype)
        assert head.log_prob(torch.zeros(2, 2), ends).isfinite().all()
