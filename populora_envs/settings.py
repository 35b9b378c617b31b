"""Settings: the one home of every default that signatures and the command line share."""

import dataclasses
import operator
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeVar

import tyro

T = TypeVar("T")

_NAME = tyro.constructors.PrimitiveConstructorSpec[Any](
    nargs=1,
    metavar="NAME",
    instance_from_str=lambda words: words[0],
    is_instance=lambda _: True,
    str_from_instance=lambda name: [str(name)],
)
OperatorChoice = Annotated[str | Callable[..., Any], _NAME]
"""A registered name or a function; the command line takes names."""

SearchChoice = OperatorChoice | None
"""A registered name, a class or a function; None chooses."""

LogChoice = Annotated[Any, _NAME] | None
"""A logger's name, a logger, or several; the command line takes one name."""

DEFAULT_GENERATIONS = 25
"""Generations of a run that has no budget of any kind."""


@dataclasses.dataclass(frozen=True)
class GeneticSettings:
    """How the genetic algorithm makes the next generation."""

    selection_type: OperatorChoice = "deterministic"
    """Who survives: a registered name or a function."""
    survive_frac: float = 0.5
    """Share of the population that survives and has children."""
    elite_frac: float = 0.25
    """Share of the population that goes on unchanged."""
    parent_selection_type: OperatorChoice = "tournament"
    """Which survivors have children: a registered name or a function."""
    num_parents_per_child: int = 2
    """Parents of each child."""
    crossover_type: OperatorChoice = "clone"
    """How parents mix: a registered name or a function."""
    mutation_type: OperatorChoice = "full_gaussian"
    """How children vary: a registered name or a function."""


@dataclasses.dataclass(frozen=True)
class EvolveSettings:
    """What `evolve_with_env` takes besides environments, model and functions."""

    num_envs: int | None = None
    """Copies made of an id, class or factory; None means min(pop_size * num_episodes, 64)."""
    pop_size: int = 16
    """Individuals in the population."""
    low_rank: int | dict[str, int] = 16
    """Rank of each individual's change of a layer, or ranks by path or glob: "encoder.*" 4 default 8."""
    lora_targets: tuple[str, ...] | None = None
    """Paths or globs of the layers to adapt; None means all but embeddings and norms."""
    adapt_bias: bool | None = None
    """Evolve biases too; None means yes with every search but ga, and for a policy built here."""
    adapt_norm: bool = False
    """Evolve scale and shift of norms too."""
    search: SearchChoice = None
    """How one generation becomes the next; None means ga where one of its options is given, else es."""
    num_generations: int | None = None
    """Generations to play; None means 25, or no limit where another budget is given."""
    max_env_steps: int | None = None
    """Stop after the generation in which so many environment steps were played."""
    max_seconds: float | None = None
    """Stop after the generation in which so many seconds have passed."""
    horizon: int | None = None
    """Most steps of an episode; None means the environment's own limit, else 1000."""
    num_episodes: int = 1
    """Episodes of each individual in a generation."""
    seed: int = 0
    """Seed of everything that is drawn."""
    num_workers: int | str = 0
    """Processes that play episodes; 0 means this one, auto what the first episodes show to be faster."""
    eval_seed: int = 0
    """Seed behind population.eval_seed, for fitness functions."""
    progress: bool = False
    """Show one line with best and champion, env-steps/s, the environment's share of the time, time left."""
    log: LogChoice = None
    """Where the numbers of each generation go too: tensorboard, wandb or trackio, or a logger."""
    report: bool = False
    """Draw plots and write report.html into checkpoint_dir at the end."""
    video: bool = False
    """Film the returned policy at the end, into video/best.mp4 of checkpoint_dir."""
    target_fitness: float | None = None
    """Stop once the champion reaches at least this, certified over 50 to 100 fresh episodes."""
    checkpoint_dir: str | None = None
    """Folder for checkpoints, history.csv, population.csv and config.json."""
    checkpoint_every: int = 1
    """Generations between two writes of latest.pt."""
    resume: bool = False
    """Go on with the run in checkpoint_dir, where there is one."""
    standardize: bool | None = None
    """Normalise observations; None means yes for a policy built here, no for a model passed in."""
    to_range: tuple[float, float] | None = None
    """Range of the actions sent to the environment; None means the bounds of its space."""
    from_range: tuple[float, float] | None = (-1.0, 1.0)
    """Range of what the policy gives for a Box; None means the units of the environment."""
    device: str | None = None
    """Device of the population; None means cuda:LOCAL_RANK under torchrun, else the model's."""
    compile: bool = False
    """Run policies under torch.compile; pays for wide layers on an accelerator."""

    @property
    def most_generations(self) -> int | None:
        """Generations to play; None where another budget alone ends the run."""
        if self.num_generations is not None:
            return self.num_generations
        other_budgets = (self.max_env_steps, self.max_seconds)
        return None if any(b is not None for b in other_budgets) else DEFAULT_GENERATIONS


def settings_from(cls: type[T], options: Mapping[str, Any]) -> tuple[T, dict[str, Any]]:
    """Return a settings object made from `options`, and the options it has no field for."""
    names = {field.name for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    own = {name: value for name, value in options.items() if name in names}
    return cls(**own), {name: value for name, value in options.items() if name not in names}


def whole_number(name: str, value: Any) -> int:
    """Return `value` as an int; TypeError where it is none."""
    message = f"{name} must be a whole number, not {value!r}"
    if isinstance(value, bool):
        raise TypeError(message)
    try:
        return operator.index(value)
    except TypeError as error:
        raise TypeError(message) from error


def real_number(name: str, value: Any) -> float:
    """Return `value` as a float; TypeError where it is no number."""
    if isinstance(value, (str, bool)) or not hasattr(value, "__float__"):
        message = f"{name} must be a number, not {value!r}"
        raise TypeError(message)
    return float(value)


def at_least(name: str, value: Any, least: int) -> int:
    """Return `value` as an int; ValueError or TypeError where it is none or below `least`."""
    number = whole_number(name, value)
    if number < least:
        message = f"{name} must be at least {least}, not {number}"
        raise ValueError(message)
    return number


def above_zero(name: str, value: Any) -> float:
    """Return `value` as a float; ValueError or TypeError where it is none or not above 0."""
    number = real_number(name, value)
    if not number > 0:
        message = f"{name} must be above 0, not {value}"
        raise ValueError(message)
    return number


def not_negative(name: str, value: Any) -> float:
    """Return `value` as a float; ValueError or TypeError where it is none or below 0."""
    number = real_number(name, value)
    if not number >= 0:
        message = f"{name} must be 0 or more, not {value}"
        raise ValueError(message)
    return number
