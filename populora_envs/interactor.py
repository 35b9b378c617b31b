"""The interactor: environments of any kind behind one batched interface."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from populora_envs.distributed import device_of
from populora_envs.environments import Environments
from populora_envs.fitness import nonfinite_last
from populora_envs.normalizer import Normalizer, Standardized
from populora_envs.policy import Policy, build_model, plain_module
from populora_envs.population import Population
from populora_envs.routing import PlainModel
from populora_envs.search import make_search
from populora_envs.seeds import Purpose, job_seeds
from populora_envs.settings import at_least
from populora_envs.targets import check_base, find_ranks, find_targets

if TYPE_CHECKING:
    from collections.abc import Sequence

    from populora_envs.evaluation import Evaluated
    from populora_envs.fitness import FitnessFunction
    from populora_envs.rescale import Range
    from populora_envs.search import Search
    from populora_envs.search.choose import Choice


class PolicyScore(NamedTuple):
    """What a policy scores on fresh episodes.

    Attributes:
        mean: of the returns.
        standard_error: of that mean, nan for a single episode.
        returns: float64 `[episodes]`.
        lengths: int64 `[episodes]`, in steps.
    """

    mean: float
    standard_error: float
    returns: Tensor
    """float64 `[episodes]`; of every entry of a dict of environments, one after the other."""
    lengths: Tensor
    """int64 `[episodes]`, steps."""


class EnvInteractor(Environments):
    """Environments as one batched interface to populations and policies.

    It is a context manager; leaving it closes what it opened, and nothing else.

    Args:
        envs: an environment, a list or dict of them, a vector environment, an id such as
            ``"CartPole-v1"`` or ``"dm_control/cartpole-balance"``, a class, or a factory of any of
            these. Members of a list count as copies of one environment; of a dict, every individual
            plays every entry and the fitness is the mean.
        num_envs: copies of an id, class or factory; None means min(individuals * episodes, 64).
        device: of populations made here; None means `Population`'s rule.
        seed: of everything drawn here.
        num_workers: processes that play episodes, each on its share of the environments; 0 plays in
            this process, ``"auto"`` lets the first episodes tell what is faster. Results are the
            same wherever the environment can be seeded per episode. Environments given as instances
            are inherited by a fork, ids, classes and factories are made in each worker.
        to_range: of the actions sent to a Box; a pair, arrays or a Box; None means its bounds.
        from_range: of the numbers a policy or function gives for a Box; None means the units of the
            environment. The range of an action head goes before it.
        standardize: normalise observations by running statistics; None means yes for a policy that
            is built here, no for a model that is passed in. Images never are.
        flatten: give the policy one float32 vector per observation; False keeps the nesting.

    Raises:
        ValueError: for no environment, an unknown id, mixed spaces or ranges that do not fit.
        TypeError: for what is no environment.
    """

    def __init__(  # noqa: PLR0913 - one keyword per choice, each with its default
        self,
        envs: Any,
        *,
        num_envs: int | None = None,
        device: torch.device | str | None = None,
        seed: int = 0,
        num_workers: int | str = 0,
        to_range: Range | None = None,
        from_range: Range | None = (-1.0, 1.0),
        standardize: bool | None = None,
        flatten: bool = True,
    ) -> None:
        self.device, self.standardize = device, standardize
        super().__init__(
            envs,
            num_envs=num_envs,
            seed=seed,
            num_workers=num_workers,
            to_range=to_range,
            from_range=from_range,
            flatten=flatten,
        )

    def population(
        self,
        model: nn.Module | None = None,
        *,
        action: Any = None,
        lora_targets: Sequence[str] | str | None = None,
        pop_size: int = 16,
        low_rank: int | Mapping[str, int] = 16,
        adapt_bias: bool | None = None,
        adapt_norm: bool = False,
        **settings: Any,
    ) -> Population:
        """Return a population for these environments.

        Args:
            model: the base policy; None builds one from the spaces: one hidden layer of 32 with
                tanh, and a last tanh for a Box.
            action: what `evaluate` will be given, for a head may want more numbers of the policy.
            lora_targets: paths or globs in `model`; see `Population`.
            pop_size: individuals.
            low_rank: rank of each individual's change, or ranks by path or glob; see `Population`.
            adapt_bias: let individuals change biases; None means yes for a policy that is built here.
            adapt_norm: let individuals change scale and shift of norms.
            **settings: of `Population`.
        """
        standardize = model is None if self.standardize is None else self.standardize
        adapt_bias = model is None if adapt_bias is None else adapt_bias
        if model is None:
            model = build_model(self.encoder, self._actor(action), self.seed)
        if standardize and self.encoder.is_vector:
            assert self.encoder.shape is not None
            check_base(model)
            # under the names that the user knows
            targets = find_targets(model, lora_targets, adapt_norm=adapt_norm)
            if isinstance(low_rank, Mapping):
                ranks = find_ranks(low_rank, targets)
                low_rank = {_inside(name): rank for name, rank in ranks.items()}
            model = Standardized(Normalizer(self.encoder.shape[0]), model)
            lora_targets = [_inside(name) for name in targets]
        elif self.standardize:
            message = f"standardize=True wants vector observations, not {self.observation_space}"
            raise ValueError(message)
        settings = {"seed": self.seed, "device": self.device, **settings}
        return Population(
            model,
            pop_size=pop_size,
            low_rank=low_rank,
            lora_targets=lora_targets,
            adapt_bias=adapt_bias,
            adapt_norm=adapt_norm,
            **settings,
        )

    def search(self, population: Population, search: Choice = None, **settings: Any) -> Search:
        """Return a search for a population, for a loop of your own.

        Its `ask` writes the next generation, `evaluate` scores it, its `tell` learns from that.

        Args:
            population: that it writes into.
            search: a name, a class, a function or None, as in `make_search`.
            **settings: of the search.
        """
        return make_search(search, population, **settings)

    def policy(self, model: nn.Module, action: Any = None) -> Policy:
        """Bind a plain model to these spaces and an action head: a module with `act`.

        Args:
            model: takes encoded observations `[B, *obs]`, such as one that `Population.merge_` returns.
            action: as in `evaluate`.
        """
        return Policy(model, self.encoder, self._actor(action))

    def evaluate(
        self,
        population: Population,
        action: Any = None,
        fitness: FitnessFunction | None = None,
        horizon: int | None = None,
        num_episodes: int = 1,
        episode_seeds: Sequence[int] | None = None,
        sample: bool | None = None,
    ) -> Tensor:
        """Return the fitness of everyone, float32 `[P]`: the mean return over their episodes.

        All individuals face the same start states, which depend on this interactor's seed and on
        `population.generation` alone; so a repeated call gives the same numbers.

        Args:
            population: who plays.
            action: an action head, its name, a function ``output [B, out] -> action`` (indices
                0..n-1 for discrete spaces, numbers in `from_range` for a Box), or None for the
                deterministic action of the space.
            fitness: a function of the population that replaces the rollout.
            horizon: most steps of an episode; None means the environment's limit, else 1000.
            num_episodes: of each individual.
            episode_seeds: use these seeds as they are, one per episode.
            sample: whether heads draw; None leaves it to the head.

        Returns:
            -inf for an individual with a reward or action that was not finite.
        """
        if fitness is not None:
            return nonfinite_last(population.evaluate_distributed(fitness))
        return self.rollout(
            population,
            action,
            horizon=horizon,
            num_episodes=num_episodes,
            episode_seeds=episode_seeds,
            sample=sample,
        ).fitnesses

    def rollout(
        self,
        population: Population,
        action: Any = None,
        horizon: int | None = None,
        num_episodes: int = 1,
        episode_seeds: Sequence[int] | None = None,
        sample: bool | None = None,
    ) -> Evaluated:
        """Do what `evaluate` does and return returns, lengths and ends of every episode as well.

        Args:
            population: as in `evaluate`, like all that follow.
            action: from outputs to actions.
            horizon: most steps of an episode.
            num_episodes: of each individual.
            episode_seeds: one per episode, as they are.
            sample: whether heads draw.
        """
        if episode_seeds is None:
            episodes = range(at_least("num_episodes", num_episodes, 1))
            generation = population.generation
            episode_seeds = job_seeds(self.seed, Purpose.SELECTION, generation, episodes)
        evaluation = self.evaluation(action, horizon, population.device, sample=sample)
        evaluated = evaluation.of_population(population, episode_seeds)
        _name_nonfinite(evaluated.fitnesses)
        return evaluated

    def evaluate_policy(
        self,
        policy: Policy | nn.Module,
        action: Any = None,
        num_episodes: int = 100,
        horizon: int | None = None,
    ) -> PolicyScore:
        """Score a policy on fresh episodes that no evolution here has seen.

        Args:
            policy: what `evolve_with_env` returned (it brings its own action), or a plain module.
            action: as in `evaluate`, for a plain module.
            num_episodes: at least 1.
            horizon: as in `evaluate`.
        """
        model = plain_module(policy)
        if isinstance(policy, Policy):
            policy.check_fits(self.observation_space, self.action_space)
        if isinstance(policy, Policy) and action is None:
            self._actor_of = (policy.actor.head, policy.actor)
            action = policy.actor.head
        episodes = range(at_least("num_episodes", num_episodes, 1))
        seeds = job_seeds(self.seed, Purpose.REPORT, 0, episodes)
        evaluation = self.evaluation(action, horizon, device_of(model), sample=False)
        evaluated = evaluation(PlainModel(model), 1, seeds)
        returns = evaluated.returns[0]
        spread = float(returns.std()) if len(returns) > 1 else float("nan")
        return PolicyScore(
            float(returns.mean()), spread / len(returns) ** 0.5, returns, evaluated.lengths[0]
        )


def interact_with_env(envs: Any, **settings: Any) -> EnvInteractor:
    """Return an `EnvInteractor` over `envs`, to be used in a ``with`` block or closed.

    Args:
        envs: an environment, a list or dict of them, a vector environment, an id, a class or a factory.
        **settings: of `EnvInteractor`, such as ``seed=0`` or ``num_envs=8``.

    Raises:
        ValueError: for no environment, an unknown id, mixed spaces or ranges that do not fit.
        TypeError: for what is no environment, and for an unknown setting.
    """
    return EnvInteractor(envs, **settings)


def _inside(name: str) -> str:
    """Return a path in a model as one of the normaliser around it."""
    return f"model.{name}" if name else "model"


def _name_nonfinite(fitnesses: Tensor) -> None:
    bad = torch.nonzero(~fitnesses.isfinite()).flatten().tolist()
    if bad:
        warnings.warn(
            f"individuals {bad} had rewards or actions that are not finite: they rank last",
            stacklevel=4,
        )
