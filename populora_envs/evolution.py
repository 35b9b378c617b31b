"""`evolve_with_env`: environments in, the policy that holds up on fresh episodes out."""

from __future__ import annotations

import dataclasses
import inspect
import warnings
from collections.abc import Mapping
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from populora_envs import distributed
from populora_envs.callbacks import check_callbacks, tell
from populora_envs.description import begin_name, machine_of, name_of, settings_of
from populora_envs.evolve import Plan, Run
from populora_envs.interactor import EnvInteractor
from populora_envs.judges import FunctionJudge, RolloutJudge
from populora_envs.loggers import check_log
from populora_envs.normalizer import Standardized
from populora_envs.policy import plain_module
from populora_envs.population import Population
from populora_envs.ranks import together_or_not_at_all
from populora_envs.report import present
from populora_envs.run_folder import POLICY, RunFolder
from populora_envs.search import (
    GeneticAlgorithm,
    IslandAlgorithm,
    Search,
    check_search,
    chosen,
    make_search,
)
from populora_envs.settings import EvolveSettings, above_zero, at_least, real_number

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from torch import nn

    from populora_envs.callbacks import OnGeneration
    from populora_envs.fitness import FitnessFunction
    from populora_envs.judges import Judge
    from populora_envs.rescale import Range


def evolve_with_env(  # noqa: PLR0913 - the one call that does everything; all but two by keyword
    envs: Any,
    model: nn.Module | None = None,
    *,
    num_envs: int | None = None,
    pop_size: int = 16,
    low_rank: int | Mapping[str, int] = 16,
    lora_targets: Sequence[str] | str | None = None,
    action: Any = None,
    fitness: FitnessFunction | None = None,
    init_from: str | os.PathLike[str] | nn.Module | None = None,
    adapt_bias: bool | None = None,
    adapt_norm: bool = False,
    search: str | Callable[..., Search] | None = None,
    num_generations: int | None = None,
    max_env_steps: int | None = None,
    max_seconds: float | None = None,
    horizon: int | None = None,
    num_episodes: int = 1,
    seed: int = 0,
    num_workers: int | str = 0,
    eval_seed: int = 0,
    progress: bool = False,
    log: Any = None,
    report: bool = False,
    video: bool = False,
    target_fitness: float | None = None,
    return_history: bool = False,
    checkpoint_dir: str | os.PathLike[str] | None = None,
    checkpoint_every: int = 1,
    resume: bool = False,
    on_generation: OnGeneration | None = None,
    callbacks: Any = (),
    standardize: bool | None = None,
    to_range: Range | None = None,
    from_range: Range | None = (-1.0, 1.0),
    device: torch.device | str | None = None,
    compile: bool = False,
    **choices: Any,
) -> Any:
    """Evolve a policy for an environment and return the one that holds up on fresh episodes.

    Args:
        envs: an environment, a list of copies of one, a dict of tasks (everyone plays each, fitness is the
            mean), a vector environment, an id such as ``"CartPole-v1"``, a class or a factory; None
            where `fitness` and `model` say everything.
        model: the base policy; None builds one from the spaces. It is copied, never changed.
        num_envs: copies of an id, class or factory; None means min(pop_size * num_episodes, 64).
        pop_size: individuals.
        low_rank: rank of each individual's change of a layer, or ranks by path or glob such as
            ``{"encoder.*": 4, "default": 8}``; see `Population`.
        lora_targets: paths or globs of the layers to adapt; None means every linear,
            convolutional, recurrent and attention layer.
        action: an action head, its name (``"categorical"``, ``"squashed_gaussian"``, ``"beta"``), a
            function ``output [B, out] -> action [B, *act]`` (indices 0..n-1 for discrete spaces,
            numbers in `from_range` for a Box), or None for argmax, or the output itself for a Box.
        fitness: a function ``population -> [P]``, higher is better, that replaces the rollout.
        init_from: where everyone begins: a run's folder or its best.pt, a file of `save_individual`, a
            folder of PEFT's, or a trained module with the weights of `model`; see
            `Population.start_from_`. Of several ranks rank 0 reads it.
        adapt_bias: evolve the biases of these layers too; None means yes with every search but
            ``"ga"``, and for a policy that is built here.
        adapt_norm: evolve scale and shift of norms too.
        search: ``"es"``, ``"ga"``, another registered name, a class or a function that makes a
            `Search` from the population and its settings; None means ``"ga"`` where options of
            selection, crossover or mutation are given, else ``"es"``.
        num_generations: at least 1; None means 25, or no limit where another budget is given.
        max_env_steps: a budget of environment steps, looks at champions included; the generation in
            which it is used up is the last. What the end of a run plays comes on top.
        max_seconds: a budget of seconds of this call, likewise.
        horizon: most steps of an episode; None means the environment's limit, else 1000.
        num_episodes: of each individual in a generation.
        seed: of everything that is drawn.
        num_workers: processes that play episodes; 0 means this one, ``"auto"`` what the first episodes
            show to be faster, written to config.json.
        eval_seed: behind `population.eval_seed`, for fitness functions.
        progress: show how far the run is: one line that moves in a terminal or a notebook, a line every
            few seconds elsewhere, with best, champion, env-steps/s, the environment's share of the time,
            and the time left. False prints nothing.
        log: where the numbers of each generation go beside history.csv: ``"tensorboard"``, ``"wandb"`` or
            ``"trackio"``, which want `checkpoint_dir`; an object with ``log(metrics, step)``; or several.
        report: draw plots and write report.html into `checkpoint_dir` at the end.
        video: film the returned policy at the end, into video/best.mp4 of `checkpoint_dir`, in an
            environment of its own; what cannot be filmed says why in a warning.
        target_fitness: stop once a champion's mean less one standard error reaches at least this over
            50 to 100 fresh episodes.
        return_history: return the history too.
        checkpoint_dir: folder for latest.pt, previous.pt, best.pt, history.csv, population.csv (the
            fitness of every individual) and config.json.
        checkpoint_every: generations between two writes of latest.pt.
        resume: go on with the run in `checkpoint_dir`, where there is one.
        on_generation: called with the population and the entry of the history, after each generation.
        callbacks: objects with some of the methods of `Callback`, or one of them.
        standardize: normalise observations; None means yes for a policy that is built here.
        to_range: of the actions sent to a Box; a pair, arrays or a Box; None means its bounds.
        from_range: of the numbers that a policy or function gives for a Box; None means the units of the
            environment. The range of an action head goes before it.
        device: of the population; None means ``cuda:LOCAL_RANK`` under torchrun, else the model's.
        compile: run policies under `torch.compile`; pays for wide layers on an accelerator.
        **choices: settings of the search, such as ``scale=1.0`` of ``"es"``, or ``epsilon=0.5`` and
            ``crossover_type="average"`` of ``"ga"``.

    Returns:
        The champion as a `Policy` (a plain module where there are no environments), or
        ``(policy, history)``: a list with one dict per generation.

    Raises:
        ValueError: for settings out of range, an unknown name, or a checkpoint folder that holds
            another run.
        TypeError: for what is no environment, module or function.

    Example:
        >>> policy, history = evolve_with_env(
        ...     "CartPole-v1", num_generations=2, horizon=20, pop_size=4, return_history=True
        ... )
        >>> len(history), policy.act([0.0, 0.0, 0.1, 0.0]) in (0, 1)
        (2, True)
    """
    given = {**locals(), "lora_targets": _as_tuple(lora_targets)}
    settings = EvolveSettings(**{f.name: given[f.name] for f in dataclasses.fields(EvolveSettings)})
    _check(settings, choices)
    loggers = check_log(log, checkpoint_dir)
    told = check_callbacks(callbacks, on_generation)
    if adapt_bias is None:
        uses_genes = chosen(search, choices) in (GeneticAlgorithm, IslandAlgorithm)
        settings = dataclasses.replace(settings, adapt_bias=model is None or not uses_genes)
    if envs is None and (fitness is None or model is None):
        message = "without environments both model= and fitness= are needed"
        raise ValueError(message)
    with (
        together_or_not_at_all(),
        nullcontext() if envs is None else _interactor(envs, settings) as interactor,
    ):
        population, judge = _prepare(interactor, model, action, fitness, settings)
        _start(population, init_from)
        searching = make_search(search, population, **choices)
        named = {
            "action": name_of(action),
            "fitness": name_of(fitness),
            "search": name_of(searching),
        }
        described = {**settings_of(settings, interactor, choices), **named}
        described["standardize"] = population.normalizer is not None
        described["init_from"] = None if init_from is None else begin_name(init_from)
        described["env"] = envs if isinstance(envs, str) else None
        described["model"] = None if model is None else type(model).__qualname__
        saver = None if interactor is None else partial(_save_policy, interactor, action)
        plan = Plan(settings, described, partial(machine_of, interactor), told, loggers, saver)
        champion, history = Run(searching, judge, plan).play()
        policy = champion if interactor is None else interactor.policy(champion, action)
        if checkpoint_dir is not None and distributed.is_main_rank():
            present(RunFolder(checkpoint_dir), policy, envs, settings)
        tell(told, "on_end", policy, history)
    return (policy, history) if return_history else policy


def _as_tuple(targets: Sequence[str] | str | None) -> tuple[str, ...] | None:
    if targets is None:
        return None
    return (targets,) if isinstance(targets, str) else tuple(targets)


def _ranks(low_rank: int | Mapping[str, int]) -> Iterable[int]:
    return low_rank.values() if isinstance(low_rank, Mapping) else (low_rank,)


def _check(settings: EvolveSettings, choices: dict[str, Any]) -> None:
    """Refuse settings that cannot be, before anything is opened."""
    for rank in _ranks(settings.low_rank):
        at_least("low_rank", rank, 1)
    for name in ("pop_size", "num_episodes", "checkpoint_every"):
        at_least(name, getattr(settings, name), 1)
    for name in ("horizon", "num_generations", "max_env_steps"):
        if getattr(settings, name) is not None:
            at_least(name, getattr(settings, name), 1)
    if settings.max_seconds is not None:
        above_zero("max_seconds", settings.max_seconds)
    if settings.target_fitness is not None:
        real_number("target_fitness", settings.target_fitness)
    _check_folder(settings)
    # A keyword that neither evolution nor the search takes could be a slip in one of either.
    own = inspect.signature(evolve_with_env).parameters.keys() - {"choices"}
    check_search(settings.search, choices, own)


def _check_folder(settings: EvolveSettings) -> None:
    for name in ("resume", "report", "video"):
        if getattr(settings, name) and settings.checkpoint_dir is None:
            message = f"{name}=True wants checkpoint_dir=, the folder of the run"
            raise ValueError(message)


def _interactor(envs: Any, settings: EvolveSettings) -> EnvInteractor:
    return EnvInteractor(
        envs,
        num_envs=settings.num_envs,
        device=settings.device,
        seed=settings.seed,
        num_workers=settings.num_workers,
        to_range=settings.to_range,
        from_range=settings.from_range,
        standardize=settings.standardize,
    )


def _prepare(
    interactor: EnvInteractor | None,
    model: nn.Module | None,
    action: Any,
    fitness: FitnessFunction | None,
    settings: EvolveSettings,
) -> tuple[Population, Judge]:
    """Return the first generation and what scores it."""
    own: dict[str, Any] = {
        "pop_size": settings.pop_size,
        "low_rank": settings.low_rank,
        "lora_targets": settings.lora_targets,
        "seed": settings.seed,
        "eval_seed": settings.eval_seed,
        "compile": settings.compile,
        "adapt_bias": settings.adapt_bias,
        "adapt_norm": settings.adapt_norm,
    }
    if interactor is None:
        assert model is not None
        assert fitness is not None
        return Population(model, device=settings.device, **own), FunctionJudge(fitness)
    population = interactor.population(model, action=action, **own)
    if fitness is not None:
        return population, FunctionJudge(fitness)
    where = (action, settings.horizon, population.device)
    copies = settings.pop_size * settings.num_episodes
    if settings.most_generations is not None:
        interactor.players.expect(settings.most_generations)
    generation = interactor.evaluation(*where, copies=copies)
    trials = interactor.evaluation(*where, sample=False, copies=copies)
    return population, RolloutJudge(generation, trials, settings.seed, settings.num_episodes)


def _start(population: Population, init_from: Any) -> None:
    """Let a population begin at a policy that exists."""
    if init_from is None or not distributed.is_main_rank():
        return
    if not isinstance(init_from, torch.nn.Module):
        population.start_from_(init_from)
        return
    trained = plain_module(init_from)
    base = population.model
    if isinstance(base, Standardized) and not isinstance(trained, Standardized):
        base = base.model
    shapes, here = (
        {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
        for module in (trained, base)
    )
    if shapes != here:
        message = f"init_from= holds {shapes} and the model has {here}: pass the same structure"
        raise ValueError(message)
    base.load_state_dict(trained.state_dict())


def _save_policy(interactor: EnvInteractor, action: Any, folder: Path, model: nn.Module) -> None:
    """Write the best policy so that it can be loaded without the run, where a file can say it."""
    try:
        interactor.policy(model, action).save(folder / POLICY)
    except TypeError as error:
        warnings.warn(f"{POLICY} is not written: {error}", stacklevel=2)
