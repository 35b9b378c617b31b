"""The command line: ``populora-envs evolve CartPole-v1``, ``populora-envs check CartPole-v1``."""

import dataclasses
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import tyro

from populora_envs.distributed import is_main_rank
from populora_envs.evolution import evolve_with_env
from populora_envs.settings import EvolveSettings, GeneticSettings, OperatorChoice
from populora_envs.testing import check_adapter

DONE, FAILED, WRONG_USAGE, INTERRUPTED = 0, 1, 2, 130


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evolve(EvolveSettings):
    """Evolve a policy for an environment and report its score on fresh episodes."""

    env: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ENV")]
    """Id of the environment, such as CartPole-v1 or dm_control/cartpole-balance."""
    action: str | None = None
    """Action head: categorical, squashed_gaussian or beta; None means the deterministic action."""
    init_from: str | None = None
    """Where everyone begins: a run's folder, a saved individual, or a folder of PEFT's."""
    selection_type: OperatorChoice | None = None
    """Of ga, who survives: deterministic (the default) or probabilistic."""
    survive_frac: float | None = None
    """Of ga, the share of the population that survives and has children; 0.5 where not given."""
    elite_frac: float | None = None
    """Of ga, the share of the population that goes on unchanged; 0.25 where not given."""
    parent_selection_type: OperatorChoice | None = None
    """Of ga, which survivors have children: tournament (the default) or roulette."""
    num_parents_per_child: int | None = None
    """Of ga, parents of each child; 2 where not given."""
    crossover_type: OperatorChoice | None = None
    """Of ga, how parents mix: clone (the default) or average."""
    mutation_type: OperatorChoice | None = None
    """Of ga, how children vary: full_gaussian (the default)."""
    epsilon: float | None = None
    """Of ga, the size of a mutation, in units of 1/sqrt(fan-in); 0.7 where not given."""
    search_settings: dict[str, int | float] = dataclasses.field(default_factory=dict)
    """Further settings of the search by name, such as: scale 1.0 half_life 20."""
    num_workers: int | str = "auto"
    """Processes that play episodes; 0 means this one, auto what the first episodes show to be faster."""
    progress: bool = True
    """Show one line with best, champion and env-steps/s."""

    def run(self) -> None:
        """Evolve, then print what the returned policy scores."""
        settings = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        env, further = settings.pop("env"), settings.pop("search_settings")
        for name in _GENETIC:
            if settings[name] is None:
                del settings[name]
        _, history = evolve_with_env(env, return_history=True, **settings, **further)
        if not is_main_rank():
            return
        last = history[-1]
        print(f"{last['env_steps']} env steps in {len(history)} generations")
        print(
            f"{env}: mean return {last['champion_mean']:.4g} +- {last['champion_se']:.2g} (standard "
            f"error) over {last['champion_episodes']} fresh episodes"
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Check:
    """Check the adapter of an environment and print what was understood of it."""

    env: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ENV")]
    """Id of the environment, such as CartPole-v1 or dm_control/cartpole-balance."""
    num_envs: int = 2
    """Environments to make; with two or more, they are checked against each other."""
    steps: int = 50
    """Steps to drive with random actions, enough for some episodes to end."""

    def run(self) -> None:
        """Check, then print a table."""
        print(check_adapter(self.env, num_envs=self.num_envs, steps=self.steps))


_GENETIC = [field.name for field in dataclasses.fields(GeneticSettings)] + ["epsilon"]


@contextmanager
def _plain_warnings() -> Iterator[None]:
    """Print each warning once, as one line without its place in the code."""
    said: set[str] = set()

    def say(message: Warning | str, *_: Any, **__: Any) -> None:
        if str(message) not in said:
            said.add(str(message))
            print(f"note: {message}", file=sys.stderr)

    with warnings.catch_warnings():
        warnings.showwarning = say
        yield


def main(arguments: list[str] | None = None) -> int:
    """Run a command and return its exit code: 0 done, 1 failed, 2 wrong usage, 130 interrupted."""
    app = tyro.extras.SubcommandApp()
    app.command(name="evolve")(Evolve)
    app.command(name="check")(Check)
    command = app.cli(prog="populora-envs", description=__doc__, args=arguments)
    try:
        with _plain_warnings():
            command.run()
    except KeyboardInterrupt:
        folder = getattr(command, "checkpoint_dir", None)
        where = f"; {folder} holds the run" if folder else ""
        print(f"interrupted{where}", file=sys.stderr)
        return INTERRUPTED
    except (ValueError, TypeError, NotImplementedError, ImportError) as error:
        print("\n".join([f"error: {error}", *getattr(error, "__notes__", [])]), file=sys.stderr)
        return FAILED
    return DONE
