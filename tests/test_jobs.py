import pytest
from hypothesis import given
from hypothesis import strategies as st

from populora_envs.jobs import Job, JobQueue, make_jobs
from populora_envs.seeds import Purpose, job_seed


def test_jobs_run_episode_by_episode_so_that_neighbours_share_a_start_state():
    assert make_jobs(2, [7, 9]) == [
        Job(individual=0, episode=0, seed=7),
        Job(individual=1, episode=0, seed=7),
        Job(individual=0, episode=1, seed=9),
        Job(individual=1, episode=1, seed=9),
    ]


@given(pop_size=st.integers(1, 20), seeds=st.lists(st.integers(0, 2**31 - 1), max_size=5))
def test_every_individual_plays_every_seed_once(pop_size, seeds):
    jobs = make_jobs(pop_size, seeds)
    assert len(jobs) == len(set(jobs)) == pop_size * len(seeds)
    for individual in range(pop_size):
        assert [job.seed for job in jobs if job.individual == individual] == seeds


def test_queue_hands_each_job_out_once_and_then_none():
    jobs = make_jobs(3, [5])
    queue = JobQueue(jobs)
    assert [queue.take() for _ in range(5)] == [*jobs, None, None]


def test_queue_without_jobs_gives_none():
    assert JobQueue([]).take() is None


@given(
    seed=st.integers(0, 2**31 - 1),
    generation=st.integers(0, 10**6),
    episode=st.integers(0, 10**6),
)
def test_seed_ranges_of_the_purposes_are_disjoint(seed, generation, episode):
    quarter = 2**29
    for purpose in Purpose:
        value = job_seed(seed, purpose, generation, episode)
        assert type(value) is int
        assert purpose * quarter <= value < (purpose + 1) * quarter
    assert len(Purpose) * quarter <= 2**31


def test_seeds_of_adjacent_runs_and_generations_are_disjoint():
    blocks = [
        {job_seed(seed, Purpose.SELECTION, generation, episode) for episode in range(4)}
        for seed in (0, 1)
        for generation in (0, 1)
    ]
    assert len(set.union(*blocks)) == 16


@pytest.mark.parametrize("purpose", list(Purpose))
def test_same_run_gives_the_same_seeds(purpose):
    assert job_seed(3, purpose, 4, 5) == job_seed(3, purpose, 4, 5)
