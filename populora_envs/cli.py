"""The command line: ``populora-envs evolve CartPole-v1``."""

import dataclasses
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import tyro

from populora_envs.evolution import evolve_with_env
from populora_envs.interactor import EnvInteractor
from populora_envs.players import MAX_COPIES
from populora_envs.settings import EvolveSettings, GeneticSettings

DONE, FAILED, WRONG_USAGE, INTERRUPTED = 0, 1, 2, 130
REPORT_EPISODES = 100


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evolve(EvolveSettings, GeneticSettings):
    """Evolve a policy for an environment and score it on 100 fresh episodes."""

    env: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ENV")]
    """Id of the environment, such as CartPole-v1 or dm_control/cartpole-balance."""
    action: str | None = None
    """Action head: categorical, squashed_gaussian or beta; None means the deterministic action."""
    epsilon: float = 0.7
    """Size of a mutation, in units of 1/sqrt(fan-in)."""
    num_workers: int | str = "auto"
    """Processes that play episodes; 0 means this one, auto what the first episodes show to be faster."""
    progress: bool = True
    """Show one line with best, champion and env-steps/s."""

    def run(self) -> None:
        """Evolve, then print what the returned policy scores."""
        settings = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        env = settings.pop("env")
        policy, history = evolve_with_env(env, return_history=True, **settings)
        last = history[-1]
        print(
            f"{last['env_steps']} env steps in {len(history)} generations; "
            f"champion {last['champion_mean']:.4g} +- {last['champion_se']:.2g}"
        )
        with EnvInteractor(env, **_report_settings(self)) as interactor:
            score = interactor.evaluate_policy(
                policy, num_episodes=REPORT_EPISODES, horizon=self.horizon
            )
        print(
            f"{env}: mean return {score.mean:.4g} +- {score.standard_error:.2g} (standard error) over "
            f"{REPORT_EPISODES} fresh episodes"
        )


def _report_settings(settings: EvolveSettings) -> dict[str, Any]:
    """Return what the report's environments have in common with evolution's, their number too."""
    copies = min(settings.pop_size * settings.num_episodes, MAX_COPIES)
    names = ("seed", "to_range", "from_range")
    return {"num_envs": settings.num_envs or copies, **{n: getattr(settings, n) for n in names}}


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
    command = app.cli(prog="populora-envs", description=__doc__, args=arguments)
    try:
        with _plain_warnings():
            command.run()
    except KeyboardInterrupt:
        where = f"; {command.checkpoint_dir} holds the run" if command.checkpoint_dir else ""
        print(f"interrupted{where}", file=sys.stderr)
        return INTERRUPTED
    except (ValueError, TypeError, NotImplementedError, ImportError) as error:
        print("\n".join([f"error: {error}", *getattr(error, "__notes__", [])]), file=sys.stderr)
        return FAILED
    return DONE
