"""Archives keep the best of each kind, and the lucky out."""

import copy

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from populora_envs import evolve_with_env, files, interact_with_env
from populora_envs.archive import CVTArchive, GridArchive
from populora_envs.behaviour import episodes_of
from populora_envs.elite import Elite
from populora_envs.search import make_search
from tests.populations import population
from tests.tiny import Aim, Clock, linear, same

GRID = {"low": [0.0, -1.0], "high": [1.0, 1.0]}


def grid(shape=(4, 4)):
    return GridArchive(**GRID, shape=shape)


def elite(fitness, descriptor, state=None):
    one = Elite(state or {})
    one.note_(fitness, descriptor)
    return one


def flat(state):
    return [weights for parts in state.values() for weights in parts.values()]


@pytest.mark.parametrize(
    ("descriptor", "cell"),
    [
        ((0.0, -1.0), 0),
        ((0.0, 1.0), 3),
        ((0.3, -1.0), 4),
        ((1.0, 1.0), 15),
        ((9.0, -9.0), 12),
        ((0.25, 0.0), 6),
    ],
)
def test_a_grid_counts_its_cells_row_by_row_and_the_outside_as_its_border(descriptor, cell):
    assert grid().cells_of([descriptor]).tolist() == [cell]


@pytest.mark.parametrize("archive", [grid(), CVTArchive(**GRID, num_cells=10, num_points=500)])
def test_a_cell_does_not_depend_on_who_else_is_asked(archive):
    points = torch.rand((300, 2), generator=torch.Generator().manual_seed(0)) * 2 - 0.5
    alone = [int(archive.cells_of(point[None])[0]) for point in points]
    assert archive.cells_of(points).tolist() == alone
    assert set(alone) <= set(range(archive.num_cells))


def test_niches_are_spread_evenly_and_made_again_from_the_seed():
    archive = CVTArchive(**GRID, num_cells=16, num_points=4000)
    again = CVTArchive(**GRID, num_cells=16, num_points=4000)
    assert torch.equal(archive.centroids, again.centroids)
    points = torch.rand((4000, 2), generator=torch.Generator().manual_seed(9))
    points = points * torch.tensor([1.0, 2.0]) - torch.tensor([0.0, 1.0])
    shares = torch.bincount(archive.cells_of(points), minlength=16) / 4000
    assert shares.min() > 0.5 / 16
    assert shares.max() < 1.6 / 16


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.floats(-5, 5) | st.sampled_from([float("-inf"), float("nan")]),
            st.floats(0, 1),
            st.floats(-1, 1),
        ),
        max_size=30,
    )
)
def test_each_cell_holds_the_best_that_was_offered_to_it(offers):
    archive, best = grid(), {}
    for fitness, *descriptor in offers:
        archive.insert_(elite(fitness, descriptor))
        if np.isfinite(fitness):
            cell = int(archive.cells_of([descriptor])[0])
            best[cell] = max(best.get(cell, fitness), fitness)
    assert {cell: held.fitness for cell, held in archive.elites.items()} == best
    top = archive.best
    assert (top is None) == (not best)
    assert top is None or top.fitness == max(best.values())


def test_an_equal_one_does_not_replace_the_first():
    archive = grid()
    first = elite(1.0, (0.1, 0.0))
    assert archive.insert_(first)
    assert not archive.insert_(elite(1.0, (0.1, 0.0)))
    assert archive.rival_of(elite(0.0, (0.1, 0.0))) is first


def test_an_elite_that_proves_worse_elsewhere_leaves_its_cell():
    archive = grid()
    moving, staying = elite(2.0, (0.1, 0.0)), elite(3.0, (0.9, 0.0))
    archive.insert_(moving)
    archive.insert_(staying)
    moving.note_(0.0, (1.9, 0.0))
    archive.place_again_(moving)
    assert list(archive) == [staying]


@pytest.mark.parametrize(
    ("low", "high"), [([], []), ([0.0], [0.0]), ([0.0], [1.0, 2.0]), ([0.0], [float("inf")])]
)
def test_bounds_that_cannot_be_are_refused(low, high):
    with pytest.raises(ValueError, match="finite bounds, low below high"):
        GridArchive(low, high, (2,) * len(low))


def test_an_archive_is_saved_as_a_folder_of_individuals_and_read_again(tmp_path):
    pop, archive = population(), grid()
    for i in range(4):
        archive.add(pop, i, float(i), (i / 4, 0.0))
    archive.save(tmp_path, pop)
    assert len(list(tmp_path.glob("cell_*.pt"))) == 4
    read = grid()
    read.load_(tmp_path, pop)
    assert read.elites.keys() == archive.elites.keys()
    for one, other in zip(read, archive, strict=True):
        assert same(flat(one.state), flat(other.state))
        assert one == Elite(one.state, other.birth, other.fitnesses, other.descriptors)
    other = population()
    other.load_individual(tmp_path / f"cell_{min(read.elites)}.pt", 3)
    assert same(flat(other.individual_state(3)), flat(pop.individual_state(0)))
    with pytest.raises(ValueError, match=r"shape=\(2, 2\)\) here and .*shape=\(4, 4\)"):
        grid((2, 2)).load_(tmp_path, pop)


def test_a_population_of_elites_plays_as_they_did():
    pop, archive = population(), grid()
    for i in (2, 0):
        archive.add(pop, i, 1.0, (i / 4, 0.0))
    team = archive.population(pop)
    x = torch.ones(1, 2)
    assert torch.equal(team(x, all_individuals=True), pop(x, individuals=[0, 2]))


# --- the search


def changes(pop):
    """The change of each layer, `[P, out, in]`."""
    return [layer.up @ layer.down.transpose(1, 2) for layer in pop.individuals.values()]


def described(population):
    """Two numbers of each individual: the first weights of both layers."""
    return torch.stack([change[:, 0, 0] for change in changes(population)], dim=1).sigmoid()


def searching(evaluations=1, pop_size=8, **options):
    pop = population(pop_size=pop_size)
    archive = GridArchive([0.0, 0.0], [1.0, 1.0], (4, 4))
    given = {"descriptor": described, "archive": archive, "evaluations": evaluations, **options}
    return pop, make_search("map_elites", pop, **given)


def skill(pop):
    """A fitness without noise."""
    return -sum(change.flatten(1).square().sum(1) for change in changes(pop))


def test_without_a_descriptor_there_is_no_map():
    with pytest.raises(TypeError, match="wants descriptor="):
        make_search("map_elites", population())


def test_elites_stay_as_they_are_bit_by_bit_and_the_best_is_never_lost():
    pop, search = searching()
    best = -np.inf
    for _ in range(12):
        before = {cell: (e, copy.deepcopy(e.state)) for cell, e in search.archive.elites.items()}
        search.ask()
        scores = skill(pop)
        search.tell(scores)
        best = max(best, float(scores.max()))
        assert search.archive.best.fitness == pytest.approx(best)
        for cell, (was, state) in before.items():
            now = search.archive.elites[cell]
            assert now.fitness >= was.fitness
            if now is was:
                assert same(flat(now.state), flat(state))
    assert len(search.archive) > 3


def test_it_finds_better_ones_and_more_kinds():
    pop, search = searching(pop_size=16)
    progress = []
    for _ in range(30):
        search.ask()
        search.tell(skill(pop))
        progress.append((len(search.archive), search.archive.best.fitness))
    assert progress[-1][0] > progress[0][0]
    assert progress[-1][1] > progress[0][1]


def test_who_is_judged_again_is_written_bit_by_bit():
    pop, search = searching(evaluations=3)
    search.ask()
    search.tell(skill(pop))
    waiting = [copy.deepcopy(e.state) for e in search.waiting]
    assert waiting
    assert not search.archive
    search.ask()
    for place, state in enumerate(waiting):
        assert same(flat(pop.individual_state(place)), flat(state))
        assert pop.lineage.birth(place) == search.waiting[place].birth


def luck(pop, generation):
    """Noise that drowns the skill."""
    generator = torch.Generator().manual_seed(generation)
    return skill(pop) + 20 * torch.randn(pop.pop_size, generator=generator)


def true_error(search, pop):
    """How far the archive overrates its elites, on average."""
    team = search.archive.population(pop)
    said = torch.tensor([elite.fitness for elite in search.archive])
    return float((said - skill(team)).mean())


def test_lucky_ones_do_not_replace_the_good():
    overrated = {}
    for evaluations in (1, 4):
        pop, search = searching(evaluations, pop_size=32)
        for generation in range(40):
            search.ask()
            search.tell(luck(pop, generation))
        overrated[evaluations] = true_error(search, pop)
    assert overrated[4] < 0.6 * overrated[1]


def test_a_lucky_one_is_sent_away_when_it_is_judged_again():
    pop, search = searching(evaluations=2, pop_size=2)
    fixed = torch.tensor([[0.1, 0.1], [0.9, 0.9]])
    search.descriptor = lambda population: fixed
    for scores in ([1.0, 1.0], [1.0, 1.0]):
        search.ask()
        search.tell(scores)
    good = [e.birth[0] for e in search.archive]
    assert len(good) == 2
    search.ask()
    search.tell([9.0, 0.0])  # a child in the cell of the first is lucky once
    (lucky,) = search.waiting
    search.ask()
    assert same(flat(pop.individual_state(0)), flat(lucky.state))
    search.descriptor = lambda population: torch.tensor([[0.1, 0.1], [0.1, 0.1]])
    search.tell([-9.0, 1.0])  # it plays beside its rival
    assert [e.birth[0] for e in search.archive] == good
    assert not search.waiting
    assert [len(e.fitnesses) for e in search.archive] == [3, 2]


def test_a_fitness_that_is_not_finite_is_kept_out():
    pop, search = searching()
    search.ask()
    search.tell([float("nan")] * pop.pop_size)
    assert not search.archive
    search.ask()
    search.tell(skill(pop))
    assert search.archive


def test_it_goes_on_from_a_file_bit_for_bit(tmp_path):
    (pop, search), (other_pop, other) = searching(2), searching(2)
    for _ in range(3):
        search.ask()
        search.tell(skill(pop))
    saved = {"population": pop.state(), "search": search.state()}
    files.save_file(tmp_path / "state.pt", saved)
    read = files.load_file(tmp_path / "state.pt")
    other_pop.load_state_(read["population"])
    other.load_state_(read["search"])
    for _ in range(3):
        for p, s in ((pop, search), (other_pop, other)):
            s.ask()
            s.tell(skill(p))
    assert repr(pop.lineage.rows()) == repr(other_pop.lineage.rows())
    assert search.archive.elites.keys() == other.archive.elites.keys()
    for one, two in zip(search.archive, other.archive, strict=True):
        assert same(flat(one.state), flat(two.state))
        assert (one.fitnesses, one.descriptors) == (two.fitnesses, two.descriptors)


def test_children_name_the_elites_they_come_from():
    pop, search = searching(pop_size=16)
    search.ask()
    search.tell(skill(pop))
    known = {elite.birth[0] for elite in search.archive}
    search.ask()
    for row in pop.lineage.rows():
        assert row["operator"] == "iso_line"
        assert set(row["parents"]) <= known
        assert row["born"] == 1


# --- descriptors of episodes


class Telling(Aim):
    """Tells where it is, and what no descriptor can use."""

    def step(self, action):
        *seen, info = super().step(action)
        info = {"place": self.place, "twice": np.array([self.place, self.place]), "words": "no"}
        return *seen, {**info, "itself": self}


def place_and_spread(episode):
    return episode.info["place"], episode.std[0]


def mapped(num_workers=0, **settings):
    archive = GridArchive([-2.0, 0.0], [2.0, 1.0], (6, 6))
    kept = {"num_generations": 6, "horizon": 8, "pop_size": 8, "low_rank": 2, **settings}
    given = {"search": "map_elites", "descriptor": place_and_spread, "archive": archive}
    evolve_with_env(Telling, linear(), num_workers=num_workers, **given, **kept)
    return archive


def table(archive):
    return {c: (e.birth, e.fitnesses, e.descriptors) for c, e in archive.elites.items()}


def test_workers_fill_the_same_archive():
    assert table(mapped()) == table(mapped(num_workers=2))


def test_a_resumed_run_fills_the_same_archive(tmp_path):
    mapped(checkpoint_dir=tmp_path, num_generations=3)
    resumed = mapped(checkpoint_dir=tmp_path, num_generations=6, resume=True)
    assert table(resumed) == table(mapped())


def test_an_episode_shows_its_last_observation_and_the_moments_of_those_acted_on():
    with interact_with_env(Clock, num_envs=2, standardize=False) as interactor:
        pop = interactor.population(linear(1, 2), pop_size=2, low_rank=1)
        pop.watched = True
        episodes = episodes_of(interactor.rollout(pop, horizon=9))
    for (episode,) in episodes:
        assert episode.final.tolist() == [4.0]  # 1 at the reset, then 2, 3, 4
        assert episode.mean.tolist() == [2.0]
        assert episode.std.tolist() == pytest.approx([(2 / 3) ** 0.5])
        assert (episode.episode_return, episode.length, episode.end) == (6.0, 3, "terminated")


def test_a_descriptor_reads_the_info_of_the_last_step():
    told = []

    def descriptor(episode):
        told.append(episode)
        return episode.info["place"], episode.info["twice"][1]

    evolve_with_env(
        Telling,
        linear(),
        search="map_elites",
        descriptor=descriptor,
        num_generations=2,
        pop_size=4,
        low_rank=1,
        horizon=6,
    )
    assert len(told) == 8
    for episode in told:
        assert set(episode.info) == {"place", "twice"}
        assert np.float32(episode.info["place"]) == episode.final[0]


class Pictures(Clock):
    """Shows a picture."""

    def __init__(self):
        super().__init__()
        self.observation_space = spaces.Box(0, 255, (4, 4, 1), np.uint8)

    def reset(self, **options):
        super().reset(**options)
        return np.zeros((4, 4, 1), np.uint8), {}

    def step(self, action):
        _, *rest = super().step(action)
        return np.full((4, 4, 1), self.clock, np.uint8), *rest


def test_pictures_are_described_by_all_but_their_pixels():
    seen = []

    def descriptor(episode):
        seen.append(episode)
        return 0.5, episode.length / 10

    evolve_with_env(
        Pictures,
        nn.Sequential(nn.Flatten(), nn.Linear(16, 2)),
        search="map_elites",
        descriptor=descriptor,
        num_generations=1,
        pop_size=2,
        low_rank=1,
        horizon=5,
    )
    assert [(e.final, e.mean, e.std, e.length) for e in seen] == [(None, None, None, 3)] * 2


def test_a_fitness_function_has_its_archive_filled_by_a_descriptor_of_the_population():
    archive = GridArchive([0.0, 0.0], [1.0, 1.0], (8, 8))
    evolve_with_env(
        None,
        linear(),
        fitness=lambda population: skill(population),
        search="map_elites",
        descriptor=lambda population: described(population),
        archive=archive,
        num_generations=5,
        low_rank=2,
        adapt_bias=False,
    )
    assert len(archive) > 5


def test_descriptors_of_another_size_are_refused():
    with pytest.raises(ValueError, match=r"descriptor= gave shape \(1,\) and the archive wants"):
        evolve_with_env(
            Aim,
            linear(),
            search="map_elites",
            descriptor=lambda episode: episode.final[:1],
            num_generations=1,
            pop_size=4,
            low_rank=1,
            horizon=4,
        )


def test_episodes_cannot_be_described_where_none_were_played():
    search = make_search("map_elites", population(), descriptor=place_and_spread)
    search.ask()
    with pytest.raises(ValueError, match="none were played"):
        search.tell([0.0] * 4)


def test_a_heatmap_shows_the_elites_where_they_are(tmp_path):
    pytest.importorskip("matplotlib")
    from populora_envs.heatmap import heatmap, raster

    archive = grid((2, 2))
    archive.insert_(elite(3.0, (0.9, -0.9)))
    pixels = raster(archive, 2)
    assert pixels[0, 1] == 3.0
    assert np.isnan(pixels).sum() == 3
    heatmap(archive, tmp_path / "map.png")
    assert (tmp_path / "map.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="2 dimensions, not of 1"):
        heatmap(GridArchive([0.0], [1.0], (3,)))
