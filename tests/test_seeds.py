import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from populora_envs import seeds
from populora_envs.seeds import (
    Purpose,
    derive_seed,
    fresh_seed,
    hash_uniform,
    job_seed,
    make_generator,
    normal,
    seeded_globals,
)

any_int = st.integers(-(2**70), 2**70)
int64 = st.integers(-(2**63), 2**63 - 1)


def many_seeds(seed, purpose=Purpose.SELECTION):
    return [job_seed(seed, purpose, g, episode) for g in range(20) for episode in range(20)]


# --- seeds of jobs


@given(any_int, st.sampled_from(Purpose), st.integers(0, 10**6), st.integers(0, 10**6))
def test_a_job_seed_is_a_plain_int_in_the_range_of_its_purpose(seed, purpose, generation, episode):
    found = job_seed(seed, purpose, generation, episode)
    assert type(found) is int
    assert purpose * 2**29 <= found < (purpose + 1) * 2**29 < 2**31
    assert found == job_seed(seed, purpose, generation, episode)


def test_adjacent_runs_share_no_seeds():
    """D-22."""
    sets = [set(many_seeds(seed)) for seed in (0, 1, 2)]
    assert [len(s) for s in sets] == [400] * 3
    assert len(set.union(*sets)) == 1200


def test_purposes_share_no_seeds():
    sets = [set(many_seeds(0, purpose)) for purpose in Purpose]
    assert len(set.union(*sets)) == 1200


def test_a_numpy_seed_is_the_same_seed():
    assert job_seed(np.int64(3), Purpose.REPORT, np.int32(1), 2) == job_seed(
        3, Purpose.REPORT, 1, 2
    )


@given(st.lists(st.one_of(any_int, st.text()), max_size=4))
def test_a_derived_seed_fits_into_63_bits(parts):
    assert 0 <= derive_seed(*parts) < 2**63
    assert derive_seed(*parts) == derive_seed(*parts)


def test_parts_are_told_apart_by_type_place_and_number():
    found = [
        derive_seed(*parts) for parts in [(1, 2), (12,), ("12",), (2, 1), (1, 2, 0), ("1", 2), ()]
    ]
    assert len(set(found)) == len(found)
    with pytest.raises(TypeError):
        derive_seed(1.5)


def test_derived_seeds_are_the_same_in_every_process_and_version():
    assert [derive_seed(), derive_seed(0, "a")] == [6510301506637419378, 7860516897884754361]


def test_fresh_seeds_differ():
    found = {fresh_seed() for _ in range(20)}
    assert len(found) > 15
    assert all(0 <= seed < 2**31 for seed in found)


def test_a_generator_depends_on_its_parts_alone():
    one, same, other = make_generator(0, "a"), make_generator(0, "a"), make_generator(0, "b")
    drawn = normal((100,), one)
    assert drawn.dtype == torch.float32
    assert torch.equal(drawn, normal((100,), same))
    assert not torch.equal(drawn, normal((100,), other))


# --- noise by hashing


def keys(count, step=0):
    return torch.stack([torch.arange(count), torch.full((count,), step)], dim=1)


def correlation(one, other):
    return np.corrcoef(one.flatten().numpy(), other.flatten().numpy())[0, 1]


def test_uniform_numbers_have_the_moments_of_a_uniform():
    drawn = hash_uniform(keys(2000), 20)
    assert drawn.shape == (2000, 20)
    assert drawn.dtype == torch.float64
    assert drawn.mean().item() == pytest.approx(1 / 2, abs=0.005)
    assert drawn.var().item() == pytest.approx(1 / 12, abs=0.002)
    counts = torch.histc(drawn.float(), 10, 0, 1)
    assert ((counts - 4000).abs() < 300).all()


def test_neighbours_are_not_correlated():
    drawn, later = hash_uniform(keys(2000), 20), hash_uniform(keys(2000, step=1), 20)
    assert abs(correlation(drawn[:, 1:], drawn[:, :-1])) < 0.02
    assert abs(correlation(drawn[1:], drawn[:-1])) < 0.02
    assert abs(correlation(drawn, later)) < 0.02
    assert abs(correlation(drawn[1:], later[:-1])) < 0.02
    assert len(drawn.unique()) == drawn.numel()


@given(st.lists(st.tuples(int64, int64), min_size=1, max_size=5), st.integers(1, 6))
def test_a_row_depends_on_its_own_key_alone(pairs, size):
    rows = torch.tensor(pairs)
    drawn = hash_uniform(rows, size)
    assert ((drawn > 0) & (drawn < 1)).all()
    for k in range(len(rows)):
        assert torch.equal(hash_uniform(rows[k : k + 1], size), drawn[k : k + 1])
    assert torch.equal(hash_uniform(rows.flip(0), size), drawn.flip(0))
    assert torch.equal(hash_uniform(rows, size + 3)[:, :size], drawn)


@pytest.mark.parametrize("bits", [-1, 0, 2**63 - 1, -(2**63)])
def test_the_outermost_hashes_stay_inside_the_open_interval(bits, monkeypatch):
    monkeypatch.setattr(seeds, "_mix", lambda given: torch.full_like(given, bits))
    (drawn,) = hash_uniform(torch.zeros(1, 1, dtype=torch.int64), 1).flatten().tolist()
    assert 0 < drawn < 1


def test_the_parts_of_a_key_are_told_apart():
    rows = torch.tensor([[0, 1], [1, 0], [0, 0], [-1, 0], [0, -1]])
    assert len(hash_uniform(rows, 1).unique()) == 5


# --- global generators


def states():
    key, *rest = np.random.get_state()[1:]  # noqa: NPY002
    return random.getstate(), key.tolist(), rest, torch.get_rng_state().tolist()


DRAWS = {
    "random.random": random.random,
    "random.gauss": lambda: random.gauss(0, 1),
    "numpy.random.rand": lambda: np.random.rand(),  # noqa: NPY002
    "numpy.random.randn": lambda: np.random.randn(),  # noqa: NPY002
    "torch.rand": lambda: torch.rand(1),
    "torch.randint": lambda: torch.randint(9, (1,)),
    "torch.multinomial": lambda: torch.multinomial(torch.ones(3), 1),
    "Tensor.normal_": lambda: torch.empty(1).normal_(),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_one_draw_from_a_global_generator_is_seen_seeded_and_undone(draw):
    before, drawn = states(), []
    for _ in range(2):
        with seeded_globals(5) as drew:
            drawn.append(float(draw()))
        assert drew == [True]
        assert states() == before
        draw()
        before = states()
    assert drawn[0] == drawn[1]


def test_other_seeds_give_other_draws():
    def draws(seed):
        with seeded_globals(seed):
            return [random.random(), np.random.rand(), torch.rand(1).item()]  # noqa: NPY002

    assert not set(draws(1)) & set(draws(2))


@pytest.mark.parametrize(
    "work",
    [
        lambda: None,
        lambda: torch.rand(3, generator=torch.Generator().manual_seed(0)),
        lambda: np.random.default_rng(0).random(),
        lambda: random.Random(0).random(),
    ],
    ids=["nothing", "torch", "numpy", "random"],
)
def test_draws_from_generators_of_ones_own_are_none_of_ours(work):
    with seeded_globals(0) as drew:
        work()
    assert drew == [False]


def test_an_error_restores_the_generators_too():
    before = states()
    with pytest.raises(KeyError), seeded_globals(0):  # noqa: PT012 - the draw belongs to the case
        random.random()
        raise KeyError
    assert states() == before


@pytest.mark.parametrize("seed", [0, 2**31 - 1, 2**63 - 1])
def test_large_seeds_are_taken(seed):
    with seeded_globals(seed) as drew:
        pass
    assert drew == [False]
