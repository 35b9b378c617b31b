"""Individuals as plain tensors: read, written, merged into the base, and kept in files."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from populora_envs import files
from populora_envs.low_rank import relative_error, truncated
from populora_envs.normalizer import Normalizer, statistics
from populora_envs.peft_files import load_folder, save_folder
from populora_envs.settings import at_least

if TYPE_CHECKING:
    from torch import nn

    from populora_envs.lineage import Lineage
    from populora_envs.moved import Change, MovedBase
    from populora_envs.routing import RoutedLinear

State = dict[str, dict[str, Tensor]]
"""One individual's weights: ``{path: {"down": [in, r], "up": [out, r], "offset": [out]}}``; no offset
where biases stay."""

LOSSLESS = 1e-5
"""A relative error below this is rounding."""


class Individuals:
    """What `Population` inherits to read and write its individuals."""

    watched: bool = False
    """Whether evaluations keep the moments of what everyone observes, and the infos of last steps."""
    pop_size: int
    low_rank: int | dict[str, int]
    ranks: dict[str, int]
    individuals: dict[str, RoutedLinear]
    model: nn.Module
    normalizer: Normalizer | None
    generation: int
    lineage: Lineage
    _moved: MovedBase | None

    def _single(self, individual: int | Tensor) -> Tensor:
        raise NotImplementedError

    def move_base_(self, step: Change) -> None:
        """Add dense changes to the base; what `Population` does."""
        raise NotImplementedError

    def _one(self, individual: int | Tensor) -> int:
        return int(self._single(individual)[0])

    def individual_state(self, individual: int | Tensor) -> State:
        """Return copies of one individual's weights on the CPU, relative to the present base."""
        i = self._one(individual)
        return {
            name: {part: weights[i].cpu().clone() for part, weights in layer.parts.items()}
            for name, layer in self.individuals.items()
        }

    def base_state(self) -> State:
        """Return the weights of an individual that equals the base: zeros."""
        return {
            name: {part: torch.zeros_like(w) for part, w in weights.items()}
            for name, weights in self.individual_state(0).items()
        }

    def write_individual_(self, individual: int, state: State) -> None:
        """Overwrite one individual with a `state` of `individual_state`; ValueError on a misfit."""
        individual = self._one(individual)
        self._check_individual(state)
        for name, layer in self.individuals.items():
            for part, weights in layer.parts.items():
                given = state[name].get(part)  # an individual without a bias leaves it as it is
                weights[individual] = 0.0 if given is None else given.to(weights)
            if layer.is_vector:
                layer.settle_(self._single(individual))
        self.lineage.enter_([individual], [()], "written", self.generation)

    def write_change_(self, individual: int, change: Change) -> None:
        """Overwrite one individual with a dense change, as `individual_change` gives it.

        It counts from the weights that the user gave, wherever the base has moved. What exceeds this
        population's rank is truncated, and a warning states the error.
        """
        self.write_individual_(individual, self._relative(change))

    def _check_individual(self, state: State) -> None:
        self._check_names(state)
        for name, layer in self.individuals.items():
            _check_fit(name, state[name], layer.parts)

    def _check_names(self, state: State) -> None:
        if set(state) != set(self.individuals):
            message = (
                f"the individual adapts {sorted(state)} "
                f"and this population {sorted(self.individuals)}"
            )
            raise ValueError(message)

    def individual_change(self, individual: int | Tensor) -> Change:
        """Return what one individual adds to the weights that the user gave, as dense tensors.

        Returns:
            ``{path: {"weight": [out, in], "bias": [out]}}`` on the CPU, no bias where none is adapted.
        """
        total: Change = {}
        for name, weights in self.individual_state(individual).items():
            total[name] = _change(weights)
        if self._moved is not None:
            for name, moved in self._moved.change.items():
                for part, change in moved.items():
                    total[name][part] = change.cpu() + total[name].get(part, 0.0)
        return total

    def individual_content(self, individual: int | Tensor, low_rank: int | None = None) -> State:
        """Return what a file says of one individual: `individual_state`, or the change of its layers.

        Where a search has moved the base, the change is counted from the weights that the user gave.

        Args:
            individual: its index.
            low_rank: the rank of its factors; None keeps them as they are, or the dense change.
        """
        if low_rank is None:
            unmoved = self._moved is None
            return (
                self.individual_state(individual) if unmoved else self.individual_change(individual)
            )
        rank = at_least("low_rank", low_rank, 1)
        return {n: _factors(c, rank) for n, c in self.individual_change(individual).items()}

    def _in_own_ranks(self, individual: int | Tensor) -> State:
        change = self.individual_change(individual)
        return {name: _factors(c, self.ranks[name]) for name, c in change.items()}

    def save_individual(
        self,
        path: str | Path,
        individual: int | Tensor,
        low_rank: int | None = None,
        format: str = "populora",
    ) -> float:
        """Write one individual to a file that `load_individual` and torch.load can read.

        Args:
            path: the file; a folder for ``format="peft"``.
            individual: its index.
            low_rank: write factors of this rank, by truncated SVD; None writes the individual as it
                is. Where a search has moved the base, that is the dense change against the weights
                that the user gave.
            format: ``"peft"`` writes what `peft.PeftModel.from_pretrained` loads: factors of rank
                `low_rank`, the population's where None. PEFT has no place for observation statistics.

        Returns:
            The relative error of the change (Frobenius norm), 0 where nothing is truncated.

        Raises:
            ValueError: for another format, and for an individual that PEFT cannot hold.
        """
        if format not in {"populora", "peft"}:
            message = f"format must be 'populora' or 'peft', not {format!r}"
            raise ValueError(message)
        truncates = low_rank is not None or (format == "peft" and self._moved is not None)
        weights, error = self.individual_content(individual, low_rank), 0.0
        if truncates and low_rank is None:
            weights = self._in_own_ranks(individual)
        if truncates:
            exact = self.individual_change(individual)
            pairs = [(exact[name]["weight"], _product(w)) for name, w in weights.items()]
            error = relative_error(*map(list, zip(*pairs, strict=True)))
        if format == "peft":
            folder = {self._own_path(name): w for name, w in weights.items()}
            layers = {self._own_path(name): layer for name, layer in self.individuals.items()}
            save_folder(Path(path), folder, layers)
            return error
        content: dict[str, Any] = {
            "kind": "individual",
            "low_rank": self.low_rank if low_rank is None else low_rank,
            "weights": weights,
            "error": error,
            "normalizer": statistics(self.normalizer),
        }
        files.save_file(Path(path), content)
        return error

    def load_individual(self, path: str | Path, individual: int = 0) -> None:
        """Overwrite one individual with one that was saved at `path`; ValueError where it does not fit.

        A folder is one of PEFT's. A dense change that exceeds this population's rank is truncated, and a warning states the error.
        A normaliser that has seen nothing takes over the statistics in the file; one that has seen
        something else keeps its own, and a warning says so.
        """
        content = self._content_of(Path(path))
        weights = content["weights"]
        if self._moved is not None or any("weight" in w for w in weights.values()):
            weights = self._relative(weights)
        self.write_individual_(int(individual), weights)
        if self.normalizer is not None and content["normalizer"]:
            self.normalizer.adopt_(content["normalizer"])

    def start_from_(self, path: str | Path) -> None:
        """Let the base be a policy that was saved: everyone, and every search, begins there.

        What is saved later counts from the weights that this population was made with all the same.

        Args:
            path: a file of `save_individual`, a run's folder (its best.pt) or best.pt itself, or a
                folder of PEFT's. Nothing of it is lost to this population's rank.

        Raises:
            ValueError: where it does not fit.
            FileNotFoundError: where there is none.
        """
        path = Path(path)
        best = path / "best.pt"
        content = self._content_of(best if best.exists() else path)
        weights = content["weights"]
        change = {n: dict(w) if "weight" in w else _change(w) for n, w in weights.items()}
        self._check_names(change)
        for name, parts in change.items():
            bias = parts.get("bias")
            if self.individuals[name].bias is None and bias is not None:
                del parts["bias"]
                if bool(bias.any()):
                    message = f"the individual changes the bias of {name}, which has none here"
                    raise ValueError(message)
        self.move_base_(change)
        if self.normalizer is not None and content["normalizer"]:
            self.normalizer.adopt_(content["normalizer"])

    def _content_of(self, path: Path) -> dict[str, Any]:
        if not path.is_dir():
            return files.load_kind(path, "individual")
        known = {self._own_path(name): name for name in self.individuals}
        weights = {known.get(name, name): parts for name, parts in load_folder(path).items()}
        if any(parts["down"].shape[1] != self.ranks.get(n) for n, parts in weights.items()):
            weights = {name: _change(parts) for name, parts in weights.items()}
        return {"weights": weights, "normalizer": None}

    def _own_path(self, name: str) -> str:
        """Return the path of a layer in the model of the user, who has no normaliser around it."""
        return name if self.normalizer is None else name.removeprefix("model.")

    def _relative(self, weights: State) -> State:
        """Return an individual of this rank, on the present base, from what a file says."""
        change = {n: dict(w) if "weight" in w else _change(w) for n, w in weights.items()}
        self._check_names(change)
        for name, layer in self.individuals.items():
            check_shape(f"{name}.weight", change[name]["weight"], layer.weight)
            if layer.bias is not None and "bias" in change[name]:
                check_shape(f"{name}.bias", change[name]["bias"], layer.bias)
        if self._moved is not None:
            for name, moved in self._moved.change.items():
                for part, already in moved.items():
                    change[name][part] = change[name].get(part, 0.0) - already.cpu()
        found = {name: _factors(c, self.ranks[name]) for name, c in change.items()}
        error = relative_error(
            [c["weight"] for c in change.values()], [_product(w) for w in found.values()]
        )
        if error > LOSSLESS:
            warnings.warn(
                f"the individual's change has a rank above low_rank={self.low_rank}: {error:.2g} of "
                "its norm is lost",
                stacklevel=3,
            )
        return found


def _product(weights: dict[str, Tensor]) -> Tensor:
    wide = torch.promote_types(weights["down"].dtype, torch.float32)
    return weights["up"].to(wide) @ weights["down"].to(wide).T


def _change(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return factors as a dense change."""
    change = {"weight": _product(weights)}
    return {**change, "bias": weights["offset"]} if "offset" in weights else change


def _factors(change: dict[str, Tensor], rank: int) -> dict[str, Tensor]:
    """Return a dense change as factors."""
    down, up = truncated(change["weight"], min(rank, *change["weight"].shape))
    factors = {"down": down, "up": up}
    # A base moved without its biases says zero of them.
    return {**factors, "offset": change["bias"]} if "bias" in change else factors


def _check_fit(name: str, given: dict[str, Tensor], here: dict[str, Tensor]) -> None:
    if "offset" not in here and "offset" in given and bool(given["offset"].any()):
        message = (
            f"the individual changes the bias of {name} and this population leaves biases as they "
            "are: make it with adapt_bias=True"
        )
        raise ValueError(message)
    for part, weights in here.items():
        if part in given or part != "offset":
            check_shape(f"{name}.{part}", given[part], weights[0])


def check_shape(name: str, given: Tensor, here: Tensor) -> None:
    """Raise a ValueError where a tensor from a file has another shape than the one here."""
    if given.shape != here.shape:
        message = f"{name} is {tuple(here.shape)} here and {tuple(given.shape)} in the file"
        raise ValueError(message)


def row(individuals: dict[str, dict[str, Tensor]], i: int) -> State:
    """Return the weights of one individual from those of all."""
    return {n: {part: w[i] for part, w in parts.items()} for n, parts in individuals.items()}
