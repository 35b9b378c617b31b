import numpy as np
import pytest
import torch
from torch import nn

from populora_envs.files import DamagedFile
from populora_envs.normalizer import Moments, Normalizer, Standardized, moments_of
from tests.populations import FITNESSES, assert_close, genes, mlp, numbers, population, same

# --- files


def evolved(seed=0):
    pop = population(model=Standardized(Normalizer(2), mlp()), seed=seed)
    pop.normalizer.propose_([Moments(2, torch.ones(2).double(), torch.ones(2).double())])
    pop.evolve_(FITNESSES)
    pop.mutate_("full_gaussian", individual=1)
    pop.normalizer.propose_([Moments(3, torch.zeros(2).double(), torch.ones(2).double())])
    return pop


def test_a_loaded_population_continues_exactly(tmp_path):
    pop, other = (
        evolved(),
        population(model=Standardized(Normalizer(2), mlp()), seed=7, eval_seed=3),
    )
    pop.save(tmp_path / "population.pt")
    other.load(tmp_path / "population.pt")
    x = numbers(4, 2)
    for _ in range(2):
        assert same(genes(pop), genes(other))
        assert torch.equal(pop(x, all_individuals=True), other(x, all_individuals=True))
        assert (pop.generation, pop.eval_seed) == (other.generation, other.eval_seed)
        for one in (pop, other):
            one.evolve_(FITNESSES, selection_type="probabilistic", parent_selection_type="roulette")
            one.mutate_("full_gaussian", all_individuals=True)
    assert other.normalizer.count.item() == 5


def test_saving_changes_nothing(tmp_path):
    pop, other = evolved(), evolved()
    other.model.load_state_dict(pop.model.state_dict())
    pop.save(tmp_path / "population.pt")
    pop.load(tmp_path / "population.pt")
    for one in (pop, other):
        one.evolve_(FITNESSES)
    assert same(genes(pop), genes(other))


def test_files_load_with_weights_only(tmp_path):
    pop = evolved()
    pop.save(tmp_path / "population.pt")
    pop.save_individual(tmp_path / "one.pt", torch.tensor(2))
    whole = torch.load(tmp_path / "population.pt", weights_only=True)
    assert (whole["pop_size"], whole["low_rank"], whole["generation"]) == (4, 3, 1)
    one = torch.load(str(tmp_path / "one.pt"), weights_only=True)
    assert torch.equal(one["weights"]["model.0"]["down"], pop.individuals["model.0"].down[2])


def test_an_individual_is_saved_and_loaded_into_any_place(tmp_path):
    pop, other, x = population(), population(seed=1), numbers(3, 2)
    other.model.load_state_dict(pop.model.state_dict())
    expected = pop(x, individual=2)
    pop.save_individual(str(tmp_path / "best.pt"), 2)
    rest = other(x, individuals=[0, 1, 2])
    other.load_individual(tmp_path / "best.pt", 3)
    assert torch.equal(other(x, individual=3), expected)
    assert torch.equal(other(x, individuals=[0, 1, 2]), rest)
    other.load_individual(path=str(tmp_path / "best.pt"))
    assert torch.equal(other(x, individual=0), expected)


def test_files_that_do_not_fit_are_refused_and_nothing_is_changed(tmp_path):
    population().save(tmp_path / "population.pt")
    population().save_individual(tmp_path / "one.pt", 0)
    cases = [
        ({"pop_size": 5}, "pop_size is 5 here and 4 in the file", None),
        ({"low_rank": 1}, "low_rank is 1 here and 3", r"0\.down is \(2, 1\) here and \(2, 2\)"),
        ({"lora_targets": ["0"]}, r"adapted at \['0', '2'\], this one", r"adapts \['0', '2'\] and"),
        ({"model": nn.Linear(2, 1)}, r"this one has \['bias', 'weight'\]", r"population \[''\]"),
        (
            {"model": nn.Sequential(nn.Linear(2, 9), nn.ReLU(), nn.Linear(9, 1))},
            r"0\.weight is \(9, 2\) here and \(8, 2\) in the file",
            r"0\.up is \(9, 2\) here and \(8, 2\) in the file",
        ),
    ]
    for options, whole, one in cases:
        pop = population(**options)
        before = genes(pop)
        with pytest.raises(ValueError, match=whole):
            pop.load(tmp_path / "population.pt")
        if one is not None:
            with pytest.raises(ValueError, match=one):
                pop.load_individual(tmp_path / "one.pt", 1)
        assert same(genes(pop), before)


def test_files_of_another_kind_are_refused(tmp_path):
    pop = population()
    pop.save(tmp_path / "population.pt")
    pop.save_individual(tmp_path / "one.pt", 0)
    with pytest.raises(ValueError, match="holds individual, not one population"):
        pop.load(tmp_path / "one.pt")
    with pytest.raises(ValueError, match="holds population, not one individual"):
        pop.load_individual(tmp_path / "population.pt")
    (tmp_path / "one.pt").write_bytes(b"no")
    with pytest.raises(DamagedFile):
        pop.load_individual(tmp_path / "one.pt")
    with pytest.raises(ValueError, match=r"individuals \[4\] must lie in 0\.\.3"):
        pop.save_individual(tmp_path / "one.pt", 4)


# --- copies of individuals


def test_individuals_are_copied_to_a_population_on_the_same_base():
    model = mlp()
    pop, x = population(model), numbers(3, 2)
    other = pop.with_individuals([pop.individual_state(2), pop.base_state()])
    assert other.pop_size == 2
    assert torch.equal(other(x, individual=0), pop(x, individual=2))
    assert_close(other(x, individual=1), model(x))
    other.individuals["0"].down.zero_()
    with torch.no_grad():
        pop.model[0].bias.add_(1)
    assert_close(other(x, individual=0), other.merge_(0)(x))
    assert pop.pop_size == 4
    assert (pop.individuals["0"].down != 0).any()


@pytest.mark.parametrize("individual", [-1, 4])
def test_an_individual_that_does_not_exist_is_not_written(individual):
    pop = population()
    with pytest.raises(ValueError, match=r"must lie in 0\.\.3"):
        pop.write_individual_(individual, pop.base_state())


# --- observation statistics


def test_a_new_generation_takes_over_what_the_last_one_saw():
    pop = evolved()
    assert pop.normalizer.count.item() == 2
    pop.generation = pop.generation
    assert pop.normalizer.count.item() == 2
    pop.generation += 1
    assert pop.normalizer.count.item() == 5
    assert population().normalizer is None


def test_the_merged_policy_takes_raw_observations():
    """D-32."""
    pop = evolved()
    x = numbers(4, 2) * 3 + 100
    assert_close(pop(x, individual=1), pop.merge_(1)(x))
    assert pop.merge_(1).normalizer.shift.tolist() == [1.0, 1.0]


def standardized(seen):
    pop = population(Standardized(Normalizer(2), nn.Linear(2, 1)), 3, 2)
    if seen is not None:
        sums = np.array(seen, dtype=np.float64)
        pop.normalizer.propose_([moments_of(1, sums, sums**2)])
        pop.normalizer.advance_()
    return pop


def test_a_saved_individual_sees_the_same_numbers_after_loading(tmp_path):
    one, fresh = standardized([4.0, -2.0]), standardized(None)
    fresh.model.model.load_state_dict(one.model.model.state_dict())
    one.save_individual(tmp_path / "one.pt", 1)
    fresh.load_individual(tmp_path / "one.pt", 2)
    x = torch.tensor([[4.5, -2.5]])
    assert torch.equal(one(x, individual=1), fresh(x, individual=2))


def test_an_individual_among_other_statistics_is_warned_of(tmp_path):
    standardized([4.0, -2.0]).save_individual(tmp_path / "one.pt", 1)
    with pytest.warns(UserWarning, match="other observation statistics"):
        standardized([1.0, 1.0]).load_individual(tmp_path / "one.pt", 2)
