import random

import numpy as np
import pytest
import torch
from torch import nn

from populora_envs import Population, interact_with_env
from populora_envs.judges import FunctionJudge, RolloutJudge
from populora_envs.seeds import Purpose, job_seed
from tests.tiny import Aim, Record, linear


def population_of(pop_size=4):
    return Population(nn.Linear(2, 1), pop_size=pop_size, low_rank=1, seed=0)


def rollout_judge(interactor, population, num_episodes=2, seed=3, action=None):
    where = (action, 8, population.device)
    generation = interactor.evaluation(*where)
    trials = interactor.evaluation(*where, sample=False)
    return RolloutJudge(generation, trials, seed, num_episodes)


# --- rollouts


def test_selection_and_trials_play_disjoint_seeds():
    record = Record()
    with interact_with_env(lambda: Aim(record), num_envs=2) as interactor:
        population = interactor.population(linear(), pop_size=2, low_rank=2)
        judge = rollout_judge(interactor, population)
        judge.judge(population)
        selection = set(record.seeds)
        record.seeds.clear()
        judge.trial(population, Purpose.CHAMPION, range(3))
        champion = set(record.seeds)
        record.seeds.clear()
        interactor.evaluate_policy(population.merge_(0), num_episodes=3, horizon=8)
        report = set(record.seeds)
    assert selection == {job_seed(3, Purpose.SELECTION, 0, e) for e in range(2)}
    assert champion == {job_seed(3, Purpose.CHAMPION, 0, e) for e in range(3)}
    assert len(selection | champion | report) == 2 + 3 + 3


def test_trial_does_not_depend_on_the_generation():
    with interact_with_env(Aim) as interactor:
        population = interactor.population(linear(), pop_size=3, low_rank=2)
        judge = rollout_judge(interactor, population)
        first = judge.trial(population, Purpose.CHAMPION, range(4))
        population.generation = 7
        again = judge.trial(population, Purpose.CHAMPION, range(2, 4))
    assert torch.equal(first.returns[:, 2:], again.returns)
    assert first.returns.shape == (3, 4)
    assert first.cost == first.env_steps > 0


def test_heads_do_not_draw_in_a_trial():
    with interact_with_env(Aim) as interactor:
        population = interactor.population(linear(2, 2), pop_size=3, low_rank=2)
        judge = rollout_judge(interactor, population, action="squashed_gaussian")
        calm = rollout_judge(interactor, population, action=lambda out: out[:, :1].tanh())
        returns = judge.trial(population, Purpose.CHAMPION, range(3)).returns
        expected = calm.trial(population, Purpose.CHAMPION, range(3)).returns
        drawn = judge.judge(population).fitnesses
    assert torch.allclose(returns, expected, atol=1e-4)
    assert not torch.allclose(drawn, calm.judge(population).fitnesses, atol=1e-4)


def test_only_the_generation_is_counted_by_the_normaliser():
    with interact_with_env(Aim, standardize=True) as interactor:
        population = interactor.population(linear(), pop_size=3, low_rank=2)
        judge = rollout_judge(interactor, population)
        judged = judge.judge(population)
        proposed = int(population.normalizer.next_count)
        assert proposed == judged.env_steps
        judge.trial(population, Purpose.CHAMPION, range(3))
        assert int(population.normalizer.next_count) == proposed


def test_error_in_a_trial_names_the_generation():
    class Breaks(Aim):
        def step(self, action):
            message = "broken"
            raise RuntimeError(message)

    with interact_with_env(Breaks) as interactor:
        population = interactor.population(linear(), pop_size=3, low_rank=2)
        population.generation = 4
        judge = rollout_judge(interactor, population)
        with pytest.raises(RuntimeError, match="broken") as caught:
            judge.judge(population)
        assert "in generation 4" in caught.value.__notes__
        with pytest.raises(RuntimeError, match="broken") as caught:
            judge.trial(population, Purpose.CHAMPION, [0])
        assert "in a trial of generation 4" in caught.value.__notes__


# --- functions


FORMS = {
    "all": lambda population: torch.arange(population.pop_size) * 2.0,
    "batched": lambda population, individuals: [2.0 * i for i in individuals],
    "ids": lambda population, ids: np.array(ids) * 2.0,
    "single": lambda population, idx: 2 * idx,
    "individual": lambda population, individual: torch.tensor(2.0 * individual),
}


@pytest.mark.parametrize("fitness", FORMS.values(), ids=FORMS)
def test_all_forms_of_a_fitness_function(fitness):
    judge, population = FunctionJudge(fitness), population_of()
    judged = judge.judge(population)
    assert judged.fitnesses.tolist() == [0.0, 2.0, 4.0, 6.0]
    assert judged.fitnesses.dtype == torch.float32
    assert judged.cost == 4
    assert judged.env_steps == 0
    trial = judge.trial(population, Purpose.CHAMPION, range(3))
    assert trial.returns.tolist() == [[0.0] * 3, [2.0] * 3, [4.0] * 3, [6.0] * 3]
    assert trial.returns.dtype == torch.float64
    assert trial.cost == 8  # two calls that agree; the third would, too


@pytest.mark.parametrize(
    "fitness",
    [lambda: 0, lambda population, who: 0, lambda population, a, b: 0, lambda a, idx, c: 0],
    ids=["none", "who", "three", "third"],
)
def test_other_forms_are_refused(fitness):
    with pytest.raises(ValueError, match="a fitness function takes"):
        FunctionJudge(fitness).judge(population_of())


@pytest.mark.parametrize(
    "fitness",
    [
        lambda population: torch.zeros(3),
        lambda population: torch.zeros(4, 1),
        lambda population, individuals: [0.0],
    ],
)
def test_wrong_number_of_values_is_refused(fitness):
    with pytest.raises(ValueError, match="for 4 individuals"):
        FunctionJudge(fitness).judge(population_of())


@pytest.mark.parametrize(
    "fitness",
    [lambda population: None, lambda population, idx: None, lambda population, ids: [None] * 4],
    ids=["all", "single", "batched"],
)
def test_no_value_at_all_is_named(fitness):
    with pytest.raises(TypeError, match="None"):
        FunctionJudge(fitness).judge(population_of())


@pytest.mark.parametrize("bad", [float("inf"), float("-inf"), float("nan")])
def test_fitness_that_is_not_finite_is_the_worst(bad):
    judged = FunctionJudge(lambda p: [1.0, bad, 2.0, 3.0]).judge(population_of())
    assert judged.fitnesses.tolist() == [1.0, -np.inf, 2.0, 3.0]


def test_every_generation_and_every_fresh_episode_has_its_own_eval_seed():
    seen = []

    def fitness(population):
        seen.append(population.eval_seed)
        return torch.zeros(population.pop_size)

    judge, population = FunctionJudge(fitness), population_of()
    for generation in range(3):
        population.generation = generation
        judge.judge(population)
    team = population_of(1)
    judge.trial(team, Purpose.CHAMPION, range(3))
    judge.trial(team, Purpose.REPORT, range(3))
    assert len(seen) == len(set(seen)) == 9


def test_function_that_draws_from_global_generators_is_reproducible_and_leaves_no_trace():
    def fitness(population, idx):
        return random.random() + np.random.rand() + torch.rand(()).item()  # noqa: NPY002

    judge, population = FunctionJudge(fitness), population_of()
    before = (random.getstate(), np.random.get_state()[2], torch.get_rng_state().tolist())  # noqa: NPY002
    first = judge.judge(population).fitnesses
    assert torch.equal(first, judge.judge(population).fitnesses)
    population.generation = 1
    assert not torch.equal(first, judge.judge(population).fitnesses)
    after = (random.getstate(), np.random.get_state()[2], torch.get_rng_state().tolist())  # noqa: NPY002
    assert before == after


def calls_of(values, episodes=4):
    """How often a function is called in a trial, and what the trial says."""
    calls = []

    def fitness(population):
        calls.append(population.pop_size)
        return values(population, len(calls))

    trial = FunctionJudge(fitness).trial(population_of(1), Purpose.CHAMPION, range(episodes))
    assert trial.cost == len(calls)
    return len(calls), trial.returns.tolist()[0]


def test_a_function_that_gives_the_same_twice_is_called_no_further():
    assert calls_of(lambda population, call: [3.0]) == (2, [3.0] * 4)
    assert calls_of(lambda population, call: [3.0], episodes=1) == (1, [3.0])


def test_one_that_gives_something_else_is_called_for_every_episode():
    assert calls_of(lambda population, call: [float(call)]) == (4, [1.0, 2.0, 3.0, 4.0])


@pytest.mark.parametrize(
    "draw",
    [lambda p: p.eval_seed, lambda p: torch.rand(()), lambda p: np.random.rand()],  # noqa: NPY002
)
def test_one_that_could_draw_is_called_for_every_episode(draw):
    """Two wins in a row may be luck."""

    def wins(population, call):
        draw(population)
        return [1.0 if call < 3 else 0.0]

    assert calls_of(wins) == (4, [1.0, 1.0, 0.0, 0.0])


def test_nan_does_not_agree_with_itself():
    assert calls_of(lambda population, call: [float("nan")])[0] == 4
