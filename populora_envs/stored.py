"""What `Population` inherits to become tensors and plain values, and to come back from them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from populora_envs import files
from populora_envs.individuals import check_shape, row

if TYPE_CHECKING:
    from torch import nn

    from populora_envs.adapted import RoutedLinear
    from populora_envs.individuals import State
    from populora_envs.lineage import Lineage
    from populora_envs.moved import MovedBase


class Stored:
    """State, and files that hold it."""

    pop_size: int
    low_rank: int | dict[str, int]
    seed: int
    base_eval_seed: int
    individuals: dict[str, RoutedLinear]
    lineage: Lineage
    model: nn.Module
    generation: int
    _generation: int
    _draws: int
    _moved: MovedBase | None

    def _check_individual(self, state: State) -> None:
        raise NotImplementedError

    def write_individual_(self, individual: int, state: State) -> None:
        """Overwrite one individual."""
        raise NotImplementedError

    def _begin_to_move(self) -> MovedBase:
        raise NotImplementedError

    def state(self) -> dict[str, Any]:
        """Return everything that makes this population, as tensors and plain values."""
        return {
            "kind": "population",
            "pop_size": self.pop_size,
            "low_rank": self.low_rank,
            "seed": self.seed,
            "eval_seed": self.base_eval_seed,
            "generation": self.generation,
            "draws": self._draws,
            "base": dict(self.model.state_dict()),
            "individuals": {name: layer.parts for name, layer in self.individuals.items()},
            "lineage": self.lineage.state(),
            "moved": None if self._moved is None else vars(self._moved),
        }

    def load_state_(self, state: dict[str, Any]) -> None:
        """Continue from what `state` returned: base, individuals, seed and generation.

        Raises:
            ValueError: naming both values where sizes, targets or shapes differ.
        """
        for name in ("pop_size", "low_rank"):
            if state[name] != getattr(self, name):
                message = f"{name} is {getattr(self, name)} here and {state[name]} in the file"
                raise ValueError(message)
        base = self.model.state_dict()
        if set(base) != set(state["base"]) or set(self.individuals) != set(state["individuals"]):
            message = (
                f"the file holds a model with {sorted(state['base'])} adapted at "
                f"{sorted(state['individuals'])}, this one has {sorted(base)} adapted at "
                f"{sorted(self.individuals)}"
            )
            raise ValueError(message)
        for name, weights in state["base"].items():
            check_shape(name, weights, base[name])
        rows = [row(state["individuals"], i) for i in range(self.pop_size)]
        for weights in rows:
            self._check_individual(weights)
        for i, weights in enumerate(rows):
            self.write_individual_(i, weights)
        self._moved = None
        if state.get("moved") is not None:
            self._begin_to_move().load_state_(state["moved"])
        self.model.load_state_dict(state["base"])
        self.seed, self.base_eval_seed = state["seed"], state["eval_seed"]
        self._generation, self._draws = state["generation"], state["draws"]
        self.lineage.load_state_(state.get("lineage"))

    def save(self, path: str | Path) -> None:
        """Write the whole population, base weights included, to one file at `path`."""
        files.save_file(Path(path), self.state())

    def load(self, path: str | Path) -> None:
        """Continue from what `save` wrote at `path`; ValueError where sizes or shapes differ."""
        self.load_state_(files.load_kind(Path(path), "population"))
