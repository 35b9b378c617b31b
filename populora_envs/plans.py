"""Plans: how an adapted layer multiplies every sample by the weights of its own individual.

A plan is a chain of matrices per individual. A *materialised* layer has one, W + up down^T; a *factored*
one has two, down and up^T, whose product is added to what all share, x W. Either is gathered for the
individuals that a route names, and only what a new route changes is gathered again.

On a CPU the products run in NumPy: its loop over small matrices costs a third of torch's, and a product
does not depend on how many others there are. Where a graph, an accelerator or a large matrix asks for
torch, they run there.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from populora_envs.invariance import Operation

SMALL_LAYER = 4096
"""Most weights of a layer that may be materialised though its factors hold fewer numbers."""

CACHED_BYTES = 2**17
"""Most memory for the materialised weights of all individuals of such a layer: they share the cache with
the simulator."""


TALL = 4
"""A matrix with so many times more rows than columns is stored transposed."""


def materialises(pop_size: int, fan_in: int, fan_out: int, rank: int, itemsize: int) -> bool:
    """Return whether multiplying by W + up down^T is cheaper than by W and by both factors.

    It depends on the layer alone, not on who acts, for the two round differently.
    """
    size = fan_in * fan_out
    if size <= rank * (fan_in + fan_out):
        return True
    return size <= SMALL_LAYER and pop_size * size * itemsize <= CACHED_BYTES


class Route:
    """Which individual each sample goes to; shared by the layers of one routed model.

    Attributes:
        count: the number of groups; the samples of a group lie one after the other.
        samples: how many samples each group has.
        ids: int64 `[count]`, the individual of each group.
        step: counts the changes.
        stamp: equal as long as no layer can have changed what it does; None where any may.
        changed: the groups that the last change sent elsewhere; None where all may have moved.
    """

    def __init__(self) -> None:
        self.count = self.samples = 1
        self.ids = torch.zeros(1, dtype=torch.int64, device="cpu")
        self.step = 0
        self.changed: np.ndarray | None = None
        self.stamp: tuple[object, int] | None = None
        self._given: Tensor | None = None
        self._version = 0

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Promise that weights, layers, hooks and ids stay as they are, so that nobody need look."""
        self.stamp = object(), self.step
        try:
            yield
        finally:
            self.stamp = None

    def set(self, ids: Tensor, samples: int = 1) -> None:
        """Send group k of every batch to individual `ids[k]`, int64 `[groups]`."""
        self.samples = samples
        if ids is self._given and self._is_unchanged(ids):
            return
        self._given, self._version = ids, 0 if ids.is_inference() else ids._version
        before, self.ids = self.ids, ids.clone()
        self.count = len(ids)
        self.changed = None
        if ids.device.type == "cpu" and len(before) == self.count:
            self.changed = np.flatnonzero(before.numpy() != self.ids.numpy())
        self.step += 1
        if self.stamp is not None:
            self.stamp = self.stamp[0], self.step

    def _is_unchanged(self, ids: Tensor) -> bool:
        if self.stamp is not None:
            return True
        if ids.is_inference():  # such tensors do not count their changes
            return torch.equal(ids, self.ids)
        return ids._version == self._version

    @property
    def rows(self) -> int:
        """How many rows there are where the model has not changed their number."""
        return self.count * self.samples

    def samples_in(self, rows: int) -> int:
        """Return how many samples of each group there are in an input of so many rows."""
        if rows == self.count:
            return 1
        if rows % self.count:
            message = (
                f"an adapted layer met {rows} rows for {self.count} groups: the first dimension "
                "must hold the rows of each individual one after the other"
            )
            raise ValueError(message)
        # Where the model has changed the number of rows, samples cannot be told apart.
        return self.samples if rows and rows % (self.count * self.samples) == 0 else 1

    def __reduce__(self) -> tuple[type[Route], tuple[()]]:
        """Copies and pickles begin with no route."""
        return Route, ()


class ArrayChain:
    """Matrices gathered as NumPy arrays.

    Args:
        links: `[P, in, out]` each, on the CPU.
        route: whose groups they are gathered for.
        bias: `[P, out]`, added at the end; None adds nothing.
    """

    def __init__(self, links: Sequence[Tensor], route: Route, bias: Tensor | None = None) -> None:
        self.route = route
        # Transposed where they are tall: the product of a row is fastest so.
        self._tall = [link.shape[1] >= TALL * link.shape[2] for link in links]
        arrays = [link.detach().numpy() for link in links]
        pairs = zip(arrays, self._tall, strict=True)
        self._sources = [array.swapaxes(1, 2) if tall else array for array, tall in pairs]
        self._has_bias = bias is not None
        if bias is not None:
            self._sources.append(bias.detach().numpy())
        self._gathered: list[np.ndarray] = []
        self._step = -1

    def gather(self) -> list[np.ndarray]:
        """Return each matrix of the present groups, `[groups, 1, ...]`, and behind them the bias.

        It is the same list where it was only rewritten.
        """
        route = self.route
        if self._step == route.step:
            return self._gathered
        ids, changed = route.ids.numpy(), route.changed
        if self._step == route.step - 1 and changed is not None:
            for gathered, source in zip(self._gathered, self._sources, strict=True):
                gathered[changed, 0] = source[ids[changed]]
        else:
            # Products round by layout: all are C-contiguous.
            parts = [np.ascontiguousarray(source[ids]) for source in self._sources]
            self._gathered = [part[:, None] for part in parts]
        self._step = route.step
        return self._gathered

    def operations(self, samples: np.ndarray, output: np.ndarray) -> list[Operation]:
        """Return what multiplies `[groups, samples, rows, in]` into `[groups, samples, rows, out]`.

        Both are C-contiguous. It holds as long as `gather` returns the same list.
        """
        found: list[Operation] = []
        last = len(self._tall) - 1
        gathered = self.gather()
        for i, (matrix, tall) in enumerate(zip(gathered, self._tall, strict=False)):
            width = matrix.shape[2 if tall else 3]
            target = output if i == last else np.empty((*samples.shape[:3], width), output.dtype)
            if tall:
                found.append((np.matmul, (matrix, samples.swapaxes(2, 3), target.swapaxes(2, 3))))
            else:
                found.append((np.matmul, (samples, matrix, target)))
            samples = target
        if self._has_bias:
            found.append((np.add, (output, gathered[-1][:, None], output)))
        return found


class TensorChain:
    """Matrices gathered as tensors, for any device and with a graph to the samples.

    Args:
        links: `[P, in, out]` each.
        route: whose groups they are gathered for.
        bias: `[P, out]`, added at the end; None adds nothing.
    """

    def __init__(self, links: Sequence[Tensor], route: Route, bias: Tensor | None = None) -> None:
        self.route = route
        self._links, self._bias = links, bias
        self._step = -1
        self._gathered: list[Tensor] = []
        self._gathered_bias: Tensor | None = None

    def gather(self) -> list[Tensor]:
        """Return the matrices of the present groups."""
        if self._step != self.route.step:
            ids = self.route.ids
            with torch.inference_mode(mode=False), torch.no_grad():
                self._gathered = [link[ids] for link in self._links]
                self._gathered_bias = None if self._bias is None else self._bias[ids]
            self._step = self.route.step
        return self._gathered

    def gather_bias(self) -> Tensor | None:
        """Return the bias of the present groups, `[groups, out]`, where they have their own."""
        self.gather()
        return self._gathered_bias

    def __call__(self, samples: Tensor) -> Tensor:
        """Multiply `[groups, samples, rows, in]`; return `[groups, samples, rows, out]`."""
        output, bias = self._products(samples), self.gather_bias()
        return output if bias is None else output + bias[:, None, None]

    def _products(self, samples: Tensor) -> Tensor:
        links = self.gather()
        count = samples.shape[1]
        if count == 1:
            return self._product(samples[:, 0], links)[:, None]
        # One matrix per sample, for a product of several samples of one individual rounds otherwise.
        return torch.stack(
            [
                self._product(group, [link[g].expand(count, -1, -1) for link in links])
                for g, group in enumerate(samples)
            ]
        )

    def _product(self, samples: Tensor, links: Sequence[Tensor]) -> Tensor:
        """Multiply each of `[samples, rows, in]` by its own matrices."""
        count = len(samples)
        if count == 1:
            # A batched product of one matrix takes another path than one of several.
            samples, links = samples.expand(2, -1, -1), [link.expand(2, -1, -1) for link in links]
        for link in links:
            samples = torch.bmm(samples, link)
        return samples[:count]
