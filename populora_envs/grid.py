"""The individuals of a run's last generation as policies, read from its folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from populora_envs.checkpoint import Checkpoints
from populora_envs.interactor import EnvInteractor
from populora_envs.rerun import options_of

if TYPE_CHECKING:
    from populora_envs.policy import Policy
    from populora_envs.population import Population
    from populora_envs.run_folder import RunFolder


def individuals_of(folder: RunFolder) -> list[Policy]:
    """Return everyone in the run's newest checkpoint.

    Raises:
        ValueError: where there is no checkpoint, or the run was given a model or functions of its user.
    """
    options = options_of(folder.config(), str(folder.path / "config.json"))
    saved = Checkpoints(folder.path).load_latest()
    if saved is None:
        message = f"{folder.path} has no checkpoint yet"
        raise ValueError(message)
    with EnvInteractor(
        options["env"],
        seed=options["seed"],
        standardize=options["standardize"],
        to_range=options["to_range"],
        from_range=options["from_range"],
    ) as interactor:
        population: Population = interactor.population(
            action=options["action"],
            pop_size=options["pop_size"],
            low_rank=options["low_rank"],
            lora_targets=options["lora_targets"],
            adapt_bias=options["adapt_bias"],
        )
        population.load_state_(saved["population"])
        everyone = range(population.pop_size)
        return [interactor.policy(population.merge_(i), options["action"]) for i in everyone]
