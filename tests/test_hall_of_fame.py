import pytest
import torch

from populora_envs import files
from populora_envs.hall_of_fame import HallOfFame
from tests.populations import population, same


def weights(pop, i):
    return [w[i].clone() for layer in pop.individuals.values() for w in layer.parts.values()]


def hall_of(fitnesses, capacity=8):
    """Members that are the individuals 0, 1, 0, 1, ... of populations that go on changing."""
    pop, hall, kept = population(), HallOfFame(capacity), []
    for number, fitness in enumerate(fitnesses):
        hall.add(pop, number % 2, fitness)
        kept.append(weights(pop, number % 2))
        pop.evolve_(torch.arange(4.0))
    return pop, hall, kept


def fitnesses_of(members):
    return [member.fitness for member in members]


def test_members_come_back_bit_by_bit_with_their_lineage():
    pop, hall, kept = hall_of([1.0, 5.0, 3.0])
    hall.reseed_(pop, [3, 1], "best")
    assert same(weights(pop, 3), kept[1])
    assert same(weights(pop, 1), kept[2])
    row = pop.lineage.rows()[3]
    assert (row["parents"], row["operator"]) == ((hall.members[1].birth[0],), "hall_of_fame")


def test_samples_are_the_newest_the_best_or_drawn_without_repeats():
    pop, hall, _ = hall_of([1.0, 5.0, 3.0, 4.0])
    assert fitnesses_of(hall.sample(pop, 2, "recent")) == [4.0, 3.0]
    assert fitnesses_of(hall.sample(pop, 3, "best")) == [5.0, 4.0, 3.0]
    assert fitnesses_of(hall.sample(pop, 6, "best")) == [5.0, 4.0, 3.0, 1.0, 5.0, 4.0]
    assert sorted(fitnesses_of(hall.sample(pop, 4))) == [1.0, 3.0, 4.0, 5.0]
    again = hall.sample(pop, 4)
    assert fitnesses_of(hall.sample(pop, 4)) == fitnesses_of(again)


def test_every_member_is_drawn_equally_often():
    pop, hall, _ = hall_of([1.0, 2.0, 3.0, 4.0])
    counts = dict.fromkeys([1.0, 2.0, 3.0, 4.0], 0)
    for generation in range(400):
        pop.generation = generation
        counts[hall.sample(pop, 1)[0].fitness] += 1
    assert all(70 < count < 130 for count in counts.values())


def test_a_full_hall_loses_its_worst_and_never_its_best_or_the_one_just_added():
    _, hall, _ = hall_of([5.0, 1.0, 3.0, 2.0, 0.0], capacity=3)
    assert fitnesses_of(hall.members) == [5.0, 3.0, 0.0]
    assert hall.best.fitness == 5.0


def test_opponents_act_as_the_members_did_and_leave_the_population_alone():
    pop = population()
    hall, x = HallOfFame(), torch.ones(1, 2)
    expected = pop(x, individuals=[2]).clone()
    hall.add(pop, 2, 1.0)
    pop.evolve_(torch.arange(4.0))
    before = [weights(pop, i) for i in range(4)]
    team = hall.opponents(pop, 2)
    assert torch.equal(team(x, all_individuals=True), expected.expand(2, 1))
    assert all(same(weights(pop, i), before[i]) for i in range(4))
    assert team.lineage.ids.tolist() == [2, 2]


def test_members_from_before_the_base_moved_keep_their_policy():
    pop = population(low_rank=8)
    hall, x = HallOfFame(), torch.ones(1, 2)
    hall.add(pop, 1, 1.0)
    expected = pop(x, individual=1).clone()
    pop.move_base_({"0": {"weight": torch.full((8, 2), 0.5)}})
    hall.add(pop, 1, 2.0)
    later = pop(x, individual=1).clone()
    pop.move_base_({"2": {"weight": torch.full((1, 8), 0.5)}})
    team = hall.opponents(pop, 2, "best")
    torch.testing.assert_close(team(x, individual=1), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(team(x, individual=0), later, rtol=1e-4, atol=1e-5)


def test_a_hall_goes_on_from_a_file(tmp_path):
    pop, hall, _ = hall_of([1.0, 5.0, 3.0])
    files.save_file(tmp_path / "hall.pt", hall.state())
    read = HallOfFame(8)
    read.load_state_(files.load_file(tmp_path / "hall.pt"))
    assert [m[2:] for m in read.members] == [m[2:] for m in hall.members]
    other = population()
    for each, one in ((pop, hall), (other, read)):
        one.reseed_(each, range(3), "recent")
    assert all(same(weights(pop, i), weights(other, i)) for i in range(3))


def test_what_cannot_be_is_refused():
    pop, hall, _ = hall_of([1.0])
    with pytest.raises(ValueError, match="kind must be one of 'uniform', 'recent', 'best'"):
        hall.sample(pop, 1, "worst")
    with pytest.raises(ValueError, match="the hall of fame is empty"):
        HallOfFame().sample(pop, 1)
    with pytest.raises(ValueError, match="finite fitness, not nan"):
        hall.add(pop, 0, float("nan"))
