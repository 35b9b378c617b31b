"""One base policy and a population of individuals, each a set of low-rank weights on it."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from populora_envs import distributed, seeds
from populora_envs.batching import batch_size, show_to_all
from populora_envs.calls import call_on_ranks
from populora_envs.compiled import CompiledModel
from populora_envs.fitness import best_first, check_fitnesses
from populora_envs.individuals import Individuals
from populora_envs.lineage import Lineage
from populora_envs.lockstep import Lockstep
from populora_envs.moved import MovedBase
from populora_envs.normalizer import find_normalizer
from populora_envs.plans import Route
from populora_envs.routing import RoutedLinear, RoutedModel, plain_copy, route_model, untie
from populora_envs.schemes import Schemes
from populora_envs.settings import at_least, whole_number
from populora_envs.stored import Stored
from populora_envs.targets import check_base, copied, find_ranks, find_targets
from populora_envs.trainable import Trainable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from populora_envs.fitness import FitnessFunction
    from populora_envs.individuals import State
    from populora_envs.moved import Change
    from populora_envs.ranks import Ranks


class Population(Schemes, Individuals, Trainable, Stored, Lockstep):
    """A population of low-rank individuals on a copy of one base model.

    Args:
        model: the base policy. It is copied and never changed; the copy is in evaluation mode.
        pop_size: number of individuals P.
        low_rank: rank r of each individual's change, or ranks by path or glob, such as
            ``{"encoder.*": 4, "default": 8}`` (see `populora_envs.targets.find_ranks`); at most a
            layer's smaller side, which makes any change.
        lora_targets: exact dotted paths or globs of the layers to adapt; None means every linear,
            convolutional, recurrent and attention layer. Embeddings and norms want to be named.
        device: None means ``cuda:LOCAL_RANK`` under torchrun with CUDA, else the model's device.
        dtype: of the individuals' weights; None means float32, or the model's dtype if wider.
        seed: of every random draw; None takes fresh entropy.
        eval_seed: see the attribute `eval_seed`.
        adapt_bias: let individuals change the biases of their layers too.
        adapt_norm: let individuals change scale and shift of all norms that have them.
        init: ``"random"``, or ``"zero"`` for individuals that equal the base.
        compile: run rollouts under `torch.compile`; a warning says so where that fails. It takes its
            time at the first calls, and pays for wide layers on an accelerator.
        sync_base_model: of several ranks, let all take the base weights of rank 0 at the first thing
            they do together; False where every rank has loaded the same ones.

    Attributes:
        model: the routed model.
        routed: ``(batch [B, ...], ids [B]) -> output``, one row per slot; see `RoutedModel`.
        individuals: by path (of several matrices in a layer, path and parameter), the weights: `down`
            `[P, in, r]`, `up` `[P, out, r]`, `offset` `[P, out]` or None; change them in place.
        lineage: who each individual is and where it comes from; see `Lineage`.

    Raises:
        ValueError: for a size below 1, an unknown `init`, or targets that match nothing.
        TypeError: for a base that is no module or is scripted or compiled.
    """

    def __init__(  # noqa: PLR0913 - one keyword per choice, each with its default
        self,
        model: nn.Module,
        *,
        pop_size: int,
        low_rank: int | Mapping[str, int],
        lora_targets: Sequence[str] | str | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        seed: int | None = None,
        eval_seed: int = 0,
        adapt_bias: bool = False,
        adapt_norm: bool = False,
        init: str = "random",
        compile: bool = False,
        sync_base_model: bool = True,
    ) -> None:
        check_base(model)
        self.low_rank = dict(low_rank) if isinstance(low_rank, Mapping) else low_rank
        pop_size = at_least("pop_size", pop_size, 1)
        self.seed = seeds.fresh_seed() if seed is None else whole_number("seed", seed)
        self.base_eval_seed = whole_number("eval_seed", eval_seed)
        self._generation = self._draws = self.eval_seed_looks = 0
        self._compile, self.adapt_bias = bool(compile), bool(adapt_bias)
        self._moved: MovedBase | None = None
        self._sync_base_model = bool(sync_base_model)
        self._synced_with: Ranks | None = None
        targets = find_targets(model, lora_targets, adapt_norm=adapt_norm)
        self.ranks = find_ranks(self.low_rank, targets)
        on_device = copied(model).to(distributed.choose_device(model, device))
        self._assemble(on_device, pop_size, list(targets), dtype)
        self._initialise(init)

    def _assemble(
        self, model: nn.Module, pop_size: int, targets: list[str], dtype: torch.dtype | None
    ) -> None:
        """Route the layers of `model`, which from here on belongs to this population."""
        self.model = model.eval()
        self.pop_size, self._targets = pop_size, targets
        self.lineage = Lineage(pop_size)
        self._route = Route()
        self.individuals: dict[str, RoutedLinear] = route_model(
            self.model,
            targets,
            pop_size,
            self.ranks,
            dtype,
            self._route,
            adapt_bias=self.adapt_bias,
        )
        kind = CompiledModel if self._compile else RoutedModel
        self.routed = kind(self.model, self._route)
        self.routed.adapted = self.individuals
        self.normalizer = find_normalizer(self.model)

    def _initialise(self, init: str) -> None:
        if init not in {"random", "zero"}:
            message = f"init must be 'random' or 'zero', not {init!r}"
            raise ValueError(message)
        for name, layer in self.individuals.items():
            generator = seeds.make_generator(self.seed, "init", name)
            layer.draw_(generator, zero=init == "zero")

    @property
    def device(self) -> torch.device:
        """Where the model and the individuals live."""
        return next(iter(self.individuals.values())).down.device

    @property
    def generation(self) -> int:
        """Counted by `evolve_`; a loop of your own adds one itself.

        A new generation takes over the observation statistics of the last evaluation.
        """
        return self._generation

    @generation.setter
    def generation(self, value: int) -> None:
        if value != self._generation and self.normalizer is not None:
            self.normalizer.advance_()
        self._generation = whole_number("generation", value)

    @property
    def eval_seed(self) -> int:
        """An int in [0, 2**31) from (eval_seed, generation), equal on all ranks."""
        self.eval_seed_looks += 1
        return seeds.derive_seed(self.base_eval_seed, "eval", self.generation) % 2**31

    def __call__(
        self,
        *args: Any,
        individual: int | Tensor | None = None,
        individuals: Sequence[int] | Tensor | None = None,
        all_individuals: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Run the model, each group of rows through its own individual.

        The first dimension of the first tensor is the batch. A batch of 1 is shown to every chosen
        individual; else it is split into as many contiguous groups as individuals are named, in the
        order they are named. Every other tensor with the same first dimension is treated alike,
        also inside tuples, lists and dicts; the rest is passed as it is.

        Args:
            *args: of the model's forward.
            individual: one index for all rows.
            individuals: indices, any order, repeats allowed.
            all_individuals: the same as ``individuals=range(pop_size)``.
            **kwargs: of the model's forward.

        Returns:
            What the model returns, for `[groups * rows, ...]`.
        """
        ids = self._chosen(individual, individuals, all_individuals)
        batch, groups = batch_size((args, kwargs)), len(ids)
        if batch == 1 and groups > 1:
            args, kwargs = show_to_all((args, kwargs), groups)
        elif not groups or batch % groups:
            message = (
                f"a batch of {batch} rows cannot be split among {groups} individuals: "
                "name at least one and pass 1 row or a multiple"
            )
            raise ValueError(message)
        self._route.set(ids, samples=max(1, batch // groups))
        output = self.model(*args, **kwargs)
        self.routed.look_for_unreached()
        return output

    def _indices(self, indices: Sequence[int] | Tensor) -> Tensor:
        """Return checked indices, a new int64 `[n]` on the population's device."""
        ids = torch.as_tensor(indices)
        if ids.dim() != 1 or (len(ids) and ids.dtype not in _INTEGERS):
            message = f"individuals are named by a list of integer indices, not by {indices!r}"
            raise ValueError(message)
        if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < self.pop_size:
            message = f"individuals {ids.tolist()} must lie in 0..{self.pop_size - 1}"
            raise ValueError(message)
        return ids.to(self.device, torch.int64)

    def _single(self, individual: int | Tensor) -> Tensor:
        """Return one checked index, int64 `[1]` on the population's device."""
        index = torch.as_tensor(individual)
        if index.numel() != 1:
            message = f"one individual is named by one integer, not by {individual!r}"
            raise ValueError(message)
        return self._indices(index.reshape(1))

    def merge_(self, individual: int | Tensor) -> nn.Module:
        """Return a fresh plain model with the individual's change added to the base weights.

        Base and change are summed in float32 (or wider) and rounded once. The population stays as it
        is; a second call starts from the base again. The module is in evaluation mode, and its
        parameters require gradients where those of the base do. Of a weight that layers share, each
        adapted one gets its own.
        """
        ids = self._single(individual)
        merged = plain_copy(self.model)
        for layer in self.individuals.values():
            layer.merge_into(merged.get_submodule(layer.path), ids)
        untie(merged)
        return merged

    def select_and_merge_best_(self, fitnesses: Tensor) -> nn.Module:
        """Return `merge_` of the best by `fitnesses` `[P]`; ties go to the lower index."""
        return self.merge_(best_first(check_fitnesses(fitnesses, self.pop_size))[0])

    def move_base_(self, step: Change) -> None:
        """Add dense changes to the base weights of adapted layers, for everyone.

        The weights that the user gave are kept, and the sum of all steps in float32 or wider; what was
        changed in the base by other hands since is overwritten.

        Args:
            step: ``{name: {"weight": [out, in], "bias": [out]}}``, every weight as a matrix; what is
                left out stays.
        """
        self._begin_to_move().move_(self.individuals, step)

    def _begin_to_move(self) -> MovedBase:
        if self._moved is None:
            with torch.inference_mode(mode=False):  # inference tensors do not count their changes
                for layer in self.individuals.values():
                    layer.own_base_(self.model.get_submodule(layer.path))
                self._moved = MovedBase.beginning(self.individuals)
        return self._moved

    def base_change(self) -> Change | None:
        """Return a copy of what a search has added to the base, None where it has not moved."""
        return None if self._moved is None else self._moved.copied_change()

    def with_individuals(
        self, states: Sequence[State], base_change: Change | None = None
    ) -> Population:
        """Return a population of these individuals; the base is shared unless it has moved here.

        Args:
            states: from `individual_state`.
            base_change: from `base_change`, how far the base had moved that they lie on; None means
                the base as it was given.
        """
        other = copy.copy(self)
        model = plain_copy(self.model, share=self._moved is None)
        dtype = next(iter(self.individuals.values())).down.dtype
        other._assemble(model, len(states), self._targets, dtype)
        moved = self._moved
        if moved is None and base_change is not None:
            moved = other._begin_to_move()
        if moved is not None:
            other._moved = moved.at(base_change)
            other._moved.write_(other.individuals)
        for i, state in enumerate(states):
            other.write_individual_(i, state)
        return other

    def evaluate_distributed(self, fitness: FitnessFunction) -> Tensor:
        """Return the fitness of everyone, float32 `[P]`, from a function of the user.

        Of several ranks each calls it for its share of the individuals, a function `(population)` on
        rank 0 alone; all return the same. See `populora_envs.fitness.fitness_form` for its forms.
        """
        return call_on_ranks(fitness, self)[0]


_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
