import numpy as np
import pytest
import torch
from torch import nn

from populora_envs import EnvInteractor, Policy, Population, interact_with_env
from populora_envs.normalizer import Normalizer
from populora_envs.seeds import Purpose, job_seed
from tests.tiny import Aim, Clock, Record, aim_discrete, linear, same


@pytest.fixture
def interactor():
    with interact_with_env(Aim, seed=6) as interactor:
        yield interactor


# --- population


def test_population_is_built_from_the_spaces(interactor):
    population = interactor.population()
    assert population.pop_size == 16
    assert population.low_rank == 16
    assert isinstance(population.normalizer, Normalizer)
    assert interactor.evaluate(population, horizon=8).shape == (16,)


def test_population_takes_what_population_takes(interactor):
    population = interactor.population(
        linear(),
        pop_size=3,
        low_rank=2,
        lora_targets=["2"],
        device="cpu",
        dtype=torch.float64,
        seed=1,
        eval_seed=2,
        init="zero",
    )
    own = Population(linear(), pop_size=3, low_rank=2, lora_targets=["2"], seed=1, eval_seed=2)
    assert list(population.individuals) == ["2"]
    assert population.individuals["2"].down.dtype == torch.float64
    assert not population.individuals["2"].up.any()
    assert population.eval_seed == own.eval_seed
    with pytest.raises(TypeError, match="num_heads"):
        interactor.population(linear(), num_heads=2)


def test_population_inherits_the_seed_of_the_interactor(interactor):
    first = interactor.population(linear(), pop_size=2, low_rank=2)
    assert first.seed == 6
    again = interactor.population(linear(), pop_size=2, low_rank=2)
    assert same(first.individual_state(1)["0"], again.individual_state(1)["0"])


def test_users_model_is_standardised_only_when_asked(interactor):
    assert interactor.population(linear(), pop_size=2).normalizer is None
    with (
        interact_with_env(Aim, standardize=True) as on,
        interact_with_env(Aim, standardize=False) as off,
    ):
        assert on.population(linear(), pop_size=2).normalizer is not None
        assert off.population(pop_size=2).normalizer is None


def test_head_decides_the_width_of_the_built_policy(interactor):
    population = interactor.population(action="squashed_gaussian", pop_size=2)
    assert population(torch.zeros(1, 2), all_individuals=True).shape == (2, 2)
    assert interactor.evaluate(population, "squashed_gaussian", horizon=8).shape == (2,)
    assert interactor.population(pop_size=2)(torch.zeros(1, 2), individual=0).shape == (1, 1)


# --- evaluate


def test_evaluate_gives_float32_on_the_cpu(interactor):
    population = interactor.population(linear(), pop_size=4, low_rank=2)
    fitnesses = interactor.evaluate(population, horizon=8, num_episodes=2)
    evaluated = interactor.rollout(population, horizon=8, num_episodes=2)
    assert fitnesses.dtype == torch.float32
    assert fitnesses.device.type == "cpu"
    assert not fitnesses.requires_grad
    assert torch.equal(fitnesses, evaluated.fitnesses)
    assert evaluated.returns.shape == evaluated.lengths.shape == (4, 2)


def test_positional_arguments_of_evaluate(interactor):
    population = interactor.population(linear(), pop_size=3, low_rank=2)
    named = interactor.evaluate(population, action=torch.tanh, horizon=5, num_episodes=2)
    placed = interactor.evaluate(population, torch.tanh, None, 5, 2)
    assert torch.equal(named, placed)


def test_hand_written_loop_improves():
    with interact_with_env(Aim, seed=1) as interactor:
        population = interactor.population(linear(), pop_size=12, low_rank=2)
        means = []
        for _ in range(20):
            fitnesses = interactor.evaluate(population, horizon=8, num_episodes=4)
            means.append(fitnesses.mean().item())
            population.evolve_(fitnesses)
        policy = interactor.policy(population.merge_(fitnesses.argmax()))
        score = interactor.evaluate_policy(policy, horizon=8)
        base = interactor.evaluate_policy(linear(), horizon=8)
    assert np.mean(means[-5:]) > means[0]
    assert score.mean > base.mean


@pytest.mark.parametrize(
    "fitness",
    [
        lambda population: torch.arange(3.0),
        lambda population, individuals: [float(i) for i in individuals],
        lambda population, idx: idx,
    ],
)
def test_fitness_function_replaces_the_rollout(fitness):
    record = Record()
    with interact_with_env(lambda: Aim(record)) as interactor:
        population = interactor.population(linear(), pop_size=3, low_rank=2)
        assert interactor.evaluate(population, fitness=fitness).tolist() == [0.0, 1.0, 2.0]
    assert record.steps == 0


def test_fitness_function_that_is_not_finite_is_the_worst(interactor):
    population = interactor.population(linear(), pop_size=3, low_rank=2)
    bad = [float("inf"), float("nan"), 1.0]
    fitnesses = interactor.evaluate(population, fitness=lambda population: bad)
    assert fitnesses.tolist() == [-np.inf, -np.inf, 1.0]


def test_any_population_of_fitting_shape_can_be_evaluated(interactor):
    population = Population(linear(), pop_size=3, low_rank=1, seed=6)
    assert interactor.evaluate(population, horizon=8).isfinite().all()


# --- policies


def test_evaluate_policy_gives_mean_error_returns_and_lengths(interactor):
    population = interactor.population(linear(), pop_size=3, low_rank=2)
    policy = interactor.policy(population.merge_(1))
    score = interactor.evaluate_policy(policy, num_episodes=12, horizon=8)
    assert score.returns.shape == score.lengths.shape == (12,)
    assert score.returns.dtype == torch.float64
    assert score.lengths.dtype == torch.int64
    assert score.mean == pytest.approx(score.returns.mean().item())
    assert score.standard_error == pytest.approx(score.returns.std().item() / 12**0.5)
    assert set(score.lengths.tolist()) <= set(range(1, 9))


def test_policy_and_plain_module_and_population_agree(interactor):
    population = interactor.population(linear(), pop_size=3, low_rank=2)
    merged = population.merge_(1)
    seeds = [job_seed(6, Purpose.REPORT, 0, episode) for episode in range(10)]
    as_individual = interactor.rollout(population, horizon=8, episode_seeds=seeds).returns[1]
    as_policy = interactor.evaluate_policy(interactor.policy(merged), num_episodes=10, horizon=8)
    as_module = interactor.evaluate_policy(merged, num_episodes=10, horizon=8)
    assert torch.equal(as_policy.returns, as_module.returns)
    assert torch.allclose(as_individual, as_policy.returns, atol=1e-4)


def test_report_is_repeatable_and_does_not_depend_on_slots():
    scores = []
    for num_envs in (1, 5, None):
        with interact_with_env(Aim, seed=6, num_envs=num_envs) as interactor:
            scores += [interactor.evaluate_policy(linear(), None, 10, 8) for _ in range(2)]
    assert torch.equal(scores[0].returns, scores[1].returns)
    assert all(torch.allclose(scores[0].returns, score.returns) for score in scores[1:])


def test_policy_brings_its_own_action(interactor):
    model = linear(2, 2)
    policy = interactor.policy(model, "squashed_gaussian")
    assert isinstance(policy, Policy)
    own = interactor.evaluate_policy(policy, num_episodes=5, horizon=8)
    named = interactor.evaluate_policy(model, "squashed_gaussian", num_episodes=5, horizon=8)
    other = interactor.evaluate_policy(policy, lambda out: out[:, 1:], 5, horizon=8)
    assert torch.equal(own.returns, named.returns)
    assert not torch.equal(own.returns, other.returns)


def test_heads_do_not_draw_when_a_policy_is_scored():
    with interact_with_env(aim_discrete) as interactor:
        model = linear(2, 3)
        drawn = interactor.evaluate_policy(model, "categorical", num_episodes=5, horizon=8)
        best = interactor.evaluate_policy(model, num_episodes=5, horizon=8)
    assert torch.equal(drawn.returns, best.returns)


def test_module_is_scored_in_evaluation_mode_and_stays_as_it_was(interactor):
    model = nn.Sequential(nn.Linear(2, 8), nn.Dropout(0.5), nn.Linear(8, 1), nn.Tanh())
    first = interactor.evaluate_policy(model, num_episodes=5, horizon=8)
    again = interactor.evaluate_policy(model, num_episodes=5, horizon=8)
    assert torch.equal(first.returns, again.returns)
    assert model.training


def test_module_without_parameters_can_be_scored(interactor):
    class Towards(nn.Module):
        def forward(self, observation):
            return (observation[:, 1:] - observation[:, :1]).clamp(-1, 1)

    score = interactor.evaluate_policy(Towards(), num_episodes=20, horizon=8)
    assert score.mean > interactor.evaluate_policy(linear(), num_episodes=20, horizon=8).mean


def test_one_episode_has_no_standard_error(interactor):
    score = interactor.evaluate_policy(linear(), num_episodes=1, horizon=8)
    assert np.isnan(score.standard_error)


def test_dict_of_environments_gives_the_returns_of_every_entry():
    envs = {"a": lambda: Clock(2), "b": lambda: Clock(3)}
    with interact_with_env(envs) as interactor:
        score = interactor.evaluate_policy(linear(1, 2), num_episodes=4, horizon=9)
    assert score.returns.tolist() == [3.0] * 4 + [6.0] * 4
    assert score.mean == 4.5


def test_what_is_no_module_is_named(interactor):
    with pytest.raises(TypeError, match=r"a policy is a torch\.nn\.Module, not function"):
        interactor.evaluate_policy(lambda x: x, horizon=8)


@pytest.mark.parametrize("name", ["evaluate", "evaluate_policy"])
def test_number_of_episodes_is_at_least_one(interactor, name):
    thing = interactor.population(linear(), pop_size=2) if name == "evaluate" else linear()
    with pytest.raises(ValueError, match="num_episodes must be at least 1"):
        getattr(interactor, name)(thing, num_episodes=0, horizon=8)


def test_report_seeds_are_of_their_own():
    record = Record()
    with interact_with_env(lambda: Aim(record), seed=6) as interactor:
        interactor.evaluate_policy(linear(), num_episodes=3, horizon=8)
    assert sorted(record.seeds) == sorted(job_seed(6, Purpose.REPORT, 0, e) for e in range(3))


# --- life


def test_interactor_is_a_context_manager_that_closes_what_it_opened():
    record = Record()
    with interact_with_env(lambda: Aim(record), num_envs=3) as interactor:
        assert isinstance(interactor, EnvInteractor)
        assert interactor.num_envs == 3
    interactor.close()
    assert record.made == record.closed == 3


def test_copies_are_made_when_they_are_of_use():
    record = Record()
    with interact_with_env(lambda: Aim(record)) as interactor:
        assert interactor.num_envs == 1
        population = interactor.population(linear(), pop_size=5, low_rank=2)
        interactor.evaluate(population, horizon=8, num_episodes=2)
        assert interactor.num_envs == 10
        interactor.evaluate_policy(linear(), num_episodes=100, horizon=2)
        assert interactor.num_envs == 64
    assert record.made == record.closed == 64
