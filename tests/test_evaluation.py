import random
import warnings

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import nn

from populora_envs import Population, interact_with_env
from populora_envs.normalizer import Moments, merge_moments
from populora_envs.seeds import Purpose, job_seed
from tests.tiny import Aim, Clock, Lottery, Record, Spiky, aim_discrete, linear, same

HEADS = {
    None: (Aim, 1),
    "squashed_gaussian": (Aim, 2),
    "beta": (Aim, 2),
    "categorical": (aim_discrete, 3),
}


def make(envs, *, model=None, pop_size=5, seed=4, num_envs=None, standardize=None):
    interactor = interact_with_env(envs, num_envs=num_envs, seed=seed, standardize=standardize)
    return interactor, interactor.population(model or linear(), pop_size=pop_size, low_rank=2)


def rollout(envs, *, action=None, num_episodes=3, horizon=8, episode_seeds=None, **settings):
    interactor, population = make(envs, **settings)
    with interactor:
        return interactor.rollout(
            population,
            action,
            horizon=horizon,
            num_episodes=num_episodes,
            episode_seeds=episode_seeds,
        )


# --- what counts


@pytest.mark.parametrize(
    ("horizon", "fitness", "steps", "end"),
    [(10, 6.0, 3, "terminated"), (3, 6.0, 3, "terminated"), (2, 3.0, 2, "horizon")],
)
def test_horizon_caps_an_episode_that_counts_with_its_return_so_far(horizon, fitness, steps, end):
    evaluated = rollout(Clock, model=linear(1, 2), horizon=horizon, pop_size=3, num_episodes=2)
    assert evaluated.fitnesses.tolist() == [fitness] * 3
    assert evaluated.fitnesses.dtype == torch.float32
    assert evaluated.returns.tolist() == [[fitness, fitness]] * 3
    assert evaluated.lengths.tolist() == [[steps, steps]] * 3
    assert evaluated.ends == [[end, end]] * 3
    assert evaluated.env_steps == 3 * 2 * steps


def test_horizon_is_each_episodes_own():
    class Endless(Clock):
        def step(self, action):
            observation, reward, *_ = super().step(action)
            return observation, reward, False, False, {}

    evaluated = rollout(Endless, model=linear(1, 2), horizon=4, pop_size=2, num_episodes=3)
    assert evaluated.fitnesses.tolist() == [10.0, 10.0]
    assert evaluated.lengths.tolist() == [[4] * 3] * 2


def test_fitness_is_the_mean_over_the_episodes():
    evaluated = rollout(Aim)
    expected = evaluated.returns.mean(dim=1).float()
    assert torch.equal(evaluated.fitnesses, expected)
    assert len(set(evaluated.returns[0].tolist())) == 3


def test_dict_of_environments_is_the_mean_over_its_entries():
    population_size = 3
    both = rollout(
        {"short": lambda: Clock(2), "long": lambda: Clock(4)},
        model=linear(1, 2),
        pop_size=population_size,
        num_episodes=1,
    )
    assert both.returns.tolist() == [[3.0, 10.0]] * population_size
    assert both.fitnesses.tolist() == [6.5] * population_size
    assert both.env_steps == population_size * 6


def test_episode_seeds_are_used_as_they_are():
    record = Record()
    rollout(lambda: Aim(record), pop_size=2, num_envs=1, episode_seeds=[11, 12])
    assert record.seeds == [11, 11, 12, 12]


def test_all_individuals_of_a_generation_face_the_same_start_states():
    record = Record()
    rollout(lambda: Aim(record), pop_size=4, num_envs=3, num_episodes=2)
    first, second = (job_seed(4, Purpose.SELECTION, 0, episode) for episode in (0, 1))
    assert sorted(record.seeds) == sorted([first] * 4 + [second] * 4)


# --- repeatability


def test_evaluate_twice_gives_the_same_numbers_and_another_generation_others():
    interactor, population = make(Aim)
    with interactor:
        first = interactor.evaluate(population, horizon=8)
        again = interactor.evaluate(population, horizon=8)
        population.generation += 1
        other = interactor.evaluate(population, horizon=8)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("standardize", [False, True])
@pytest.mark.parametrize("action", HEADS)
def test_fitness_does_not_depend_on_the_number_of_slots(action, standardize):
    env, width = HEADS[action]
    model = linear(2, width)
    results = [
        rollout(env, model=model, action=action, num_envs=num_envs, standardize=standardize)
        for num_envs in (1, 3, 16)
    ]
    for other in results[1:]:
        assert torch.equal(results[0].returns, other.returns)
        assert torch.equal(results[0].lengths, other.lengths)
    assert results[0].returns.isfinite().all()
    assert len(set(results[0].lengths.flatten().tolist())) > 1


@pytest.mark.parametrize("action", HEADS)
@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_list_factory_and_vector_env_give_the_same_fitness(action, mode):
    env, width = HEADS[action]
    model = linear(2, width)
    vector = SyncVectorEnv([env] * 3, autoreset_mode=mode)
    listed = rollout([env() for _ in range(4)], model=model, action=action)
    made = rollout(env, model=model, action=action)
    batched = rollout(vector, model=model, action=action)
    vector.close()
    assert torch.equal(listed.returns, made.returns)
    assert torch.equal(listed.returns, batched.returns)


def test_drawn_actions_differ_between_seeds_episodes_and_generations():
    envs = [Clock(30, action_space=spaces.Discrete(3)) for _ in range(2)]
    model = nn.Linear(1, 3)
    nn.init.zeros_(model.weight)
    with interact_with_env(envs, seed=1) as interactor:
        population = interactor.population(model, pop_size=2, low_rank=1, init="zero")
        taken = []
        for generation in (0, 1):
            population.generation = generation
            interactor.evaluate(population, "categorical", horizon=30, num_episodes=2)
            taken.append([tuple(map(int, env.actions[:30])) for env in envs])
            taken.append([tuple(map(int, env.actions[30:])) for env in envs])
            for env in envs:
                env.actions.clear()
    # equal individuals draw the same noise from the same job seed, other episodes another
    assert all(first == second for first, second in taken)
    assert len({first for first, _ in taken}) == 4


def test_sample_false_plays_the_deterministic_action():
    interactor, population = make(Aim, model=linear(2, 2))
    with interactor:
        drawn = interactor.evaluate(population, "squashed_gaussian", horizon=8)
        calm = interactor.evaluate(population, "squashed_gaussian", horizon=8, sample=False)
        mean = interactor.evaluate(population, lambda out: out[:, :1].tanh(), horizon=8)
    assert not torch.equal(drawn, calm)
    assert torch.allclose(calm, mean, atol=1e-5)


@pytest.mark.parametrize("num_threads", [1, 2])
def test_number_of_threads_does_not_matter_and_is_restored(num_threads):
    before, seen = torch.get_num_threads(), set()

    def note(output):
        seen.add(torch.get_num_threads())
        return output

    torch.set_num_threads(num_threads)
    try:
        rollout(Aim, action=note)
        assert torch.get_num_threads() == num_threads
    finally:
        torch.set_num_threads(before)
    assert seen == {1}


# --- global generators


def global_state():
    numpy = np.random.get_state()  # noqa: NPY002
    return random.getstate(), numpy[1].tobytes(), numpy[2], torch.get_rng_state().tolist()


@pytest.mark.parametrize("action", HEADS)
def test_global_generators_are_not_touched(action):
    env, width = HEADS[action]
    before = global_state()
    interactor, population = make(env, model=linear(2, width), standardize=True)
    with interactor:
        interactor.evaluate(population, action, horizon=8)
        built = interactor.population(action=action, pop_size=3)
        interactor.evaluate(built, action, horizon=8)
        interactor.evaluate_policy(built.merge_(0), action, 3, horizon=8)
    assert global_state() == before


def test_action_that_draws_from_torch_warns_once_and_is_reproducible():
    def noisy(output):
        return output + 0.1 * torch.randn_like(output)

    before = global_state()
    interactor, population = make(Aim, num_envs=2)
    with interactor:
        with pytest.warns(UserWarning, match="global generator"):
            first = interactor.evaluate(population, noisy, horizon=8, num_episodes=2)
        assert global_state() == before
        again = interactor.evaluate(population, noisy, horizon=8, num_episodes=2)
        torch.rand(3)
        later = interactor.evaluate(population, noisy, horizon=8, num_episodes=2)
    assert torch.equal(first, again)
    assert torch.equal(first, later)


def test_environment_that_draws_from_numpy_is_seeded_and_leaves_no_trace():
    class OldStyle(Clock):
        def step(self, action):
            observation, _, *rest = super().step(action)
            return observation, np.random.rand(), *rest  # noqa: NPY002

    before = global_state()
    model = linear(1, 2)
    with pytest.warns(UserWarning, match="global generator"):
        first = rollout(OldStyle, model=model, num_envs=2)
    with pytest.warns(UserWarning, match="global generator"):
        again = rollout(OldStyle, model=model, num_envs=2)
    assert torch.equal(first.returns, again.returns)
    assert len(set(first.returns.flatten().tolist())) > 3
    assert global_state() == before


# --- what is not finite


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_individual_with_a_reward_that_is_not_finite_ranks_last_and_others_are_untouched(bad):
    model = nn.Linear(2, 1)
    interactor, population = make(lambda: Spiky(bad=bad), model=model, pop_size=3)
    with interactor:
        for name in population.individuals:
            population.individuals[name].up.zero_()
        # individual 1 moves by about 1, whatever it sees
        population.individuals[""].up[1] = 0.0
        with torch.no_grad():
            population.model.weight.zero_()
            population.model.bias.fill_(0.1)
        healthy = interactor.evaluate(population, horizon=8)
        population.individuals[""].down[1] = 0.0
        population.individuals[""].down[1, :, 0] = 100.0
        population.individuals[""].up[1, :, 0] = 1.0
        with pytest.warns(UserWarning, match=r"individuals \[1\]") as caught:
            fitnesses = interactor.evaluate(population, lambda out: out.clamp(-1, 1), horizon=8)
    assert len(caught) == 1
    assert fitnesses[1] == -torch.inf
    assert torch.equal(fitnesses[[0, 2]], healthy[[0, 2]])


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_individual_with_an_action_that_is_not_finite_ranks_last(bad):
    interactor, population = make(Aim, pop_size=3)
    with interactor:
        healthy = interactor.evaluate(population, horizon=8)
        population.individuals["0"].up[1] = bad
        with pytest.warns(UserWarning, match=r"individuals \[1\]"):
            fitnesses = interactor.evaluate(population, horizon=8)
    assert fitnesses[1] == -torch.inf
    assert torch.equal(fitnesses[[0, 2]], healthy[[0, 2]])


def test_logits_that_are_not_finite_count_although_an_index_is_finite():
    interactor, population = make(aim_discrete, model=linear(2, 3), pop_size=3)
    with interactor:
        population.individuals["0"].up[2] = float("nan")
        with pytest.warns(UserWarning, match=r"individuals \[2\]"):
            fitnesses = interactor.evaluate(population, horizon=8)
    assert fitnesses[2] == -torch.inf
    assert fitnesses[:2].isfinite().all()


def test_observation_that_is_not_finite_does_not_poison_the_statistics():
    class Blows(Aim):
        def step(self, action):
            observation, reward, *rest = super().step(action)
            if abs(action[0]) > 1.0:
                observation = np.full(2, np.nan, np.float32)
            return observation, reward, *rest

    interactor, population = make(Blows, standardize=True, pop_size=8)
    with interactor, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        evaluated = interactor.rollout(population, lambda out: out * 3, horizon=8)
        assert not evaluated.fitnesses.isfinite().all()
        assert evaluated.fitnesses.isfinite().any()
        population.evolve_(evaluated.fitnesses)
        assert population.normalizer.shift.isfinite().all()
        assert population.normalizer.count > 0
        assert interactor.evaluate(population, horizon=8).isfinite().any()


# --- normaliser


def play_by_hand(population, seeds, horizon=8):
    """Moments of everything each individual saw, job by job, played with plain environments."""
    total = Moments(0, torch.zeros(2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64))
    for seed in seeds:
        for individual in range(population.pop_size):
            model, env, seen = population.merge_(individual), Aim(), []
            observation, _ = env.reset(seed=seed)
            for _ in range(horizon):
                seen.append(torch.from_numpy(observation).double())
                with torch.no_grad():
                    output = model(torch.from_numpy(observation)[None])
                action = np.float32(2.0 * output[0].double().numpy())
                observation, _, terminated, truncated, _ = env.step(action)
                if terminated or truncated:
                    break
            table = torch.stack(seen)
            mean = table.mean(dim=0)
            moments = Moments(len(table), mean, ((table - mean) ** 2).sum(dim=0))
            total = merge_moments(total, moments)
    return total


def test_normaliser_counts_what_was_acted_on_and_is_frozen_within_a_generation():
    interactor, population = make(Aim, standardize=True, num_envs=3)
    with interactor:
        normalizer = population.normalizer
        interactor.evaluate(population, horizon=8, num_episodes=2)
        assert normalizer.shift.tolist() == [0.0, 0.0]
        assert normalizer.divisor.tolist() == [1.0, 1.0]
        seeds = [job_seed(4, Purpose.SELECTION, 0, episode) for episode in (0, 1)]
        expected = play_by_hand(population, seeds)
        interactor.evaluate(population, horizon=8, num_episodes=2)
        population.generation += 1
    assert int(normalizer.count) == expected.count
    assert torch.allclose(normalizer.mean, expected.mean, atol=1e-6)
    assert torch.allclose(normalizer.squares, expected.squares, atol=1e-5)
    deviation = (expected.squares / expected.count).sqrt()
    assert torch.allclose(normalizer.shift, expected.mean.float(), atol=1e-6)
    assert torch.allclose(normalizer.divisor, deviation.clamp_max(1.0).float(), atol=1e-6)


def test_statistics_do_not_depend_on_the_number_of_slots():
    states = []
    for num_envs in (1, 4, 16):
        interactor, population = make(Aim, standardize=True, num_envs=num_envs)
        with interactor:
            for _ in range(3):
                population.evolve_(interactor.evaluate(population, horizon=8, num_episodes=2))
        states.append(population.model.state_dict())
    assert same(states[0], states[1])
    assert same(states[0], states[2])


def test_evaluate_policy_and_foreign_seeds_do_not_change_the_statistics_in_use():
    interactor, population = make(Aim, standardize=True)
    with interactor:
        population.evolve_(interactor.evaluate(population, horizon=8))
        before = {name: t.clone() for name, t in population.model.state_dict().items()}
        policy = interactor.policy(population.merge_(0))
        mine = {name: t.clone() for name, t in policy.state_dict().items()}
        interactor.evaluate_policy(policy, num_episodes=5, horizon=8)
        assert same(before, population.model.state_dict())
        assert same(mine, policy.state_dict())


def test_merged_policy_on_raw_observations_equals_the_routed_forward():
    interactor, population = make(Aim, standardize=True)
    with interactor:
        for _ in range(2):
            population.evolve_(interactor.evaluate(population, horizon=8))
    observations = 3 * torch.randn(7, 2, generator=torch.Generator().manual_seed(0))
    for individual in range(population.pop_size):
        merged = population.merge_(individual)
        routed = population(observations, individual=individual)
        assert torch.allclose(merged(observations), routed, atol=1e-5)
    assert not torch.equal(population.normalizer.divisor, torch.ones(2))


def test_images_are_never_normalised():
    class Camera(gymnasium.Env):
        observation_space = spaces.Box(0, 255, (2, 2, 3), np.uint8)
        action_space = spaces.Discrete(2)

    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 2))
    with interact_with_env(Camera) as interactor:
        assert interactor.population(model, pop_size=2).normalizer is None
    wrong = pytest.raises(ValueError, match="standardize=True wants vector observations")
    with interact_with_env(Camera, standardize=True) as interactor, wrong:
        interactor.population(model, pop_size=2)


# --- errors


def test_error_of_a_simulator_names_slot_individual_episode_and_generation():
    class Breaks(Aim):
        def reset(self, *, seed=None, options=None):
            if len(self.record.seeds) == 4:
                message = "no licence"
                raise ValueError(message)
            return super().reset(seed=seed)

    record = Record()
    interactor, population = make(lambda: Breaks(record), pop_size=3, num_envs=2)
    population.generation = 6
    with interactor, pytest.raises(ValueError, match="no licence") as caught:
        interactor.evaluate(population, horizon=8, num_episodes=2)
    notes = " ".join(caught.value.__notes__)
    assert "in slot" in notes
    assert "individual 1, episode 1" in notes
    assert "in generation 6" in notes
    assert record.closed == record.made == 2


def test_interactor_works_on_after_an_error():
    class BreaksOnce(Aim):
        broken = False

        def step(self, action):
            if self.clock == 2 and not BreaksOnce.broken:
                BreaksOnce.broken = True
                message = "once"
                raise RuntimeError(message)
            return super().step(action)

    interactor, population = make(BreaksOnce, num_envs=3)
    with interactor:
        with pytest.raises(RuntimeError, match="once"):
            interactor.evaluate(population, horizon=8)
        fitnesses = interactor.evaluate(population, horizon=8)
    assert torch.equal(fitnesses, rollout(Aim, num_envs=3, num_episodes=1).fitnesses)


def test_luck_of_the_start_is_the_same_for_everyone():
    evaluated = rollout(Lottery, model=linear(2, 2), pop_size=6, num_episodes=4)
    spread = evaluated.returns.max(dim=0).values - evaluated.returns.min(dim=0).values
    assert spread.max() <= 1.0
    assert rollout(Lottery, model=linear(2, 2), pop_size=1).fitnesses.shape == (1,)


def test_plain_population_can_be_evaluated():
    population = Population(linear(), pop_size=2, low_rank=2, seed=0)
    with interact_with_env(Aim, seed=4) as interactor:
        assert interactor.evaluate(population, horizon=8).isfinite().all()
