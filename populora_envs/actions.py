"""Action heads: from the numbers a policy gives to an action, its mean and its log-probability.

Another head is a class here (or anywhere) under `register_head`.
"""

from __future__ import annotations

import inspect
import math
from typing import TYPE_CHECKING, Any

import torch
from gymnasium.spaces import Box, Discrete, MultiDiscrete, Space
from torch.nn import functional as F

from populora_envs.action_head import ActionHead, heads, register_head
from populora_envs.action_noise import (
    UNIFORMS_PER_GAMMA,
    double,
    draw_uniform,
    log_gamma,
    normal_quantile,
    sigmoid,
    softplus,
)
from populora_envs.registry import near_names

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

__all__ = [
    "ActionHead",
    "Beta",
    "Categorical",
    "SquashedGaussian",
    "heads",
    "make_action",
    "register_head",
]

_LOG_STD_RANGE = (-5.0, 2.0)
_SMALLEST_CONCENTRATION = 1e-6


def make_action(
    kind: str | Space[Any], *, sample: bool = True, temperature: float = 1.0, **options: Any
) -> ActionHead:
    """Return an action head.

    Args:
        kind: `"categorical"`, `"squashed_gaussian"`, `"beta"`, a registered name, or an action
            space: Discrete and MultiDiscrete give a categorical head, Box a squashed gaussian.
        sample: whether calling the head draws.
        temperature: above 0, more is more random.
        options: the head's own keyword arguments.

    Raises:
        ValueError: an unknown name, or a space that no head samples.
        TypeError: an option the head does not take.

    Example:
        >>> make_action("squashed_gaussian", sample=False)(torch.tensor([1.0, 0.0]))
        tensor([0.7616])
    """
    name, from_space = (kind, {}) if isinstance(kind, str) else _choose(kind)
    head = heads.get(name)
    _check_options(name, head, options)
    return head(sample=sample, temperature=temperature, **{**from_space, **options})


def _choose(space: Space[Any]) -> tuple[str, dict[str, Any]]:
    """Return the name of the head for a space and the options that the space decides."""
    if isinstance(space, Discrete):
        return "categorical", {}
    if isinstance(space, MultiDiscrete):
        return "categorical", {"num_categories": space.nvec.ravel().tolist()}
    if isinstance(space, Box):
        return "squashed_gaussian", {}
    message = (
        f"no action head samples {space}: pass Discrete, MultiDiscrete, Box or a head's name, "
        "or action=None for the deterministic action of any space"
    )
    raise ValueError(message)


def _check_options(name: str, head: Callable[..., ActionHead], options: dict[str, Any]) -> None:
    known = inspect.signature(head).parameters
    if any(known[word].kind is inspect.Parameter.VAR_KEYWORD for word in known):
        return
    for option in options:
        if option not in known:
            message = (
                f"the action head {name!r} has no option {option!r}; {near_names(option, known)}"
            )
            raise TypeError(message)


@register_head("categorical")
class Categorical(ActionHead):
    """Chooses an index by logits, drawn with Gumbel noise; actions are int64.

    Args:
        num_categories: None reads `[..., n]` as one choice, action `[...]`; a sequence reads
            the logits of several factors one after the other, action `[..., factors]`.
        sample: whether calling the head draws.
        temperature: divides the logits.
    """

    reads = "one logit per category"

    def __init__(
        self,
        *,
        num_categories: Sequence[int] | None = None,
        sample: bool = True,
        temperature: float = 1.0,
    ) -> None:
        super().__init__(sample=sample, temperature=temperature)
        self.num_categories = None
        if num_categories is not None:
            self.num_categories = _category_counts(num_categories)

    def mean(self, output: Tensor) -> Tensor:
        """Return the index of the largest logit, of each factor."""
        best = [logits.argmax(-1) for logits in self._factors(output)]
        return best[0] if self.num_categories is None else torch.stack(best, dim=-1)

    def log_prob(self, output: Tensor, action: Tensor) -> Tensor:
        """Return the log-probability `[...]` of indices."""
        logits = self._factors(double(output) / self.temperature)
        indices = [action] if self.num_categories is None else action.unbind(-1)
        parts = [
            F.log_softmax(part, dim=-1).gather(-1, index[..., None].to(part.device))[..., 0]
            for part, index in zip(logits, indices, strict=True)
        ]
        return torch.stack(parts).sum(0).to(output)

    def output_size(self, space: Space[Any]) -> int:
        """Say how many logits per observation `space` needs."""
        if isinstance(space, Discrete):
            counts = [int(space.n)]
        elif isinstance(space, MultiDiscrete):
            counts = space.nvec.ravel().tolist()
        else:
            raise self.refuse(space)
        is_plain = isinstance(space, Discrete) and self.num_categories is None
        if not is_plain and self.num_categories != counts:
            message = (
                f"the categorical head has num_categories={self.num_categories}, {space} "
                f"needs {counts}: pass the space to make_action"
            )
            raise ValueError(message)
        return sum(counts)

    def _draw(self, output: Tensor, keys: Tensor | None) -> Tensor:
        logits = double(output) / self.temperature
        noise = -(-draw_uniform(logits, logits.shape[-1], keys).log()).log()
        return self.mean(logits + noise).to(output.device)

    def _factors(self, logits: Tensor) -> Sequence[Tensor]:
        if self.num_categories is None:
            return (logits,)
        if logits.shape[-1] != sum(self.num_categories):
            message = (
                f"the policy gives {logits.shape[-1]} logits per observation, num_categories="
                f"{self.num_categories} wants {sum(self.num_categories)}"
            )
            raise ValueError(message)
        return torch.split(logits, self.num_categories, dim=-1)


@register_head("squashed_gaussian")
class SquashedGaussian(ActionHead):
    """Emits tanh of a gaussian, on (-1, 1); reads means, then log standard deviations."""

    range = (-1.0, 1.0)
    reads = "2 numbers per dimension of a Box, all means and then all log standard deviations"

    def mean(self, output: Tensor) -> Tensor:
        """Return tanh of the means, `[..., act]`."""
        return _halves(double(output), self.reads)[0].tanh().to(output)

    def log_prob(self, output: Tensor, action: Tensor) -> Tensor:
        """Return the log-density `[...]` on (-1, 1); an action at an end counts as just inside."""
        mean, std = self._mean_and_std(output)
        action = _just_inside(action, -1.0)
        # torch.atanh rounds differently at the end of a batch.
        raw = (torch.log1p(action) - torch.log1p(-action)) / 2
        density = -(((raw - mean) / std) ** 2) / 2 - std.log() - math.log(2 * math.pi) / 2
        slope = torch.log1p(-action) + torch.log1p(action)
        return (density - slope).sum(-1).to(output)

    def output_size(self, space: Space[Any]) -> int:
        """Say how many numbers per observation `space` needs: two per dimension."""
        return _two_per_dimension(self, space)

    def _draw(self, output: Tensor, keys: Tensor | None) -> Tensor:
        mean, std = self._mean_and_std(output)
        noise = normal_quantile(draw_uniform(mean, mean.shape[-1], keys))
        return (mean + std * noise).tanh().to(output)

    def _mean_and_std(self, output: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = _halves(double(output), self.reads)
        return mean, self.temperature * log_std.clamp(*_LOG_STD_RANGE).exp()


@register_head("beta")
class Beta(ActionHead):
    """Emits a beta variable; reads mean logits, then raw concentrations.

    The mean is sigmoid(logit), the total concentration (2 + softplus(raw)) / temperature.

    Args:
        beta_rescale_neg_one_one: emit on (-1, 1), else on (0, 1).
        sample: whether calling the head draws.
        temperature: divides the total concentration.
    """

    reads = "2 numbers per dimension of a Box, all mean logits and then all raw concentrations"

    def __init__(
        self,
        *,
        beta_rescale_neg_one_one: bool = True,
        sample: bool = True,
        temperature: float = 1.0,
    ) -> None:
        super().__init__(sample=sample, temperature=temperature)
        self.beta_rescale_neg_one_one = beta_rescale_neg_one_one
        self._ends = (-1.0 if beta_rescale_neg_one_one else 0.0, 1.0)
        self.range = self._ends

    def mean(self, output: Tensor) -> Tensor:
        """Return the mean of the distribution, `[..., act]`, on `range`."""
        logit, _ = _halves(double(output), self.reads)
        return self._emit(sigmoid(logit)).to(output)

    def log_prob(self, output: Tensor, action: Tensor) -> Tensor:
        """Return the log-density `[...]` on `range`; an action at an end counts as just inside."""
        alpha, beta = self._concentrations(output)
        low, high = self._ends
        inside = _just_inside(action, low)
        below, above = ((part / (high - low)).log() for part in (inside - low, high - inside))
        density = (
            (alpha - 1) * below
            + (beta - 1) * above
            + torch.lgamma(alpha + beta)
            - torch.lgamma(alpha)
            - torch.lgamma(beta)
        )
        return (density - math.log(high - low)).sum(-1).to(output)

    def output_size(self, space: Space[Any]) -> int:
        """Say how many numbers per observation `space` needs: two per dimension."""
        return _two_per_dimension(self, space)

    def _draw(self, output: Tensor, keys: Tensor | None) -> Tensor:
        shapes = torch.stack(self._concentrations(output), dim=-1)
        size = 2 * shapes.shape[-2] * UNIFORMS_PER_GAMMA
        uniform = draw_uniform(shapes[..., 0], size, keys)
        gammas = log_gamma(shapes, uniform.reshape(*shapes.shape, UNIFORMS_PER_GAMMA))
        return self._emit(sigmoid(gammas[..., 0] - gammas[..., 1])).to(output)

    def _concentrations(self, output: Tensor) -> tuple[Tensor, Tensor]:
        logit, raw = _halves(double(output), self.reads)
        total = (2 + softplus(raw)) / self.temperature
        # sigmoid(-logit) keeps what 1 - sigmoid(logit) rounds away.
        shapes = (sigmoid(logit) * total, sigmoid(-logit) * total)
        alpha, beta = (shape.clamp(min=_SMALLEST_CONCENTRATION) for shape in shapes)
        return alpha, beta

    def _emit(self, place: Tensor) -> Tensor:
        low, high = self._ends
        return low + (high - low) * place


def _category_counts(num_categories: Sequence[int]) -> list[int]:
    counts = [int(count) for count in num_categories]
    if not counts or min(counts) < 1:
        message = f"num_categories is one count of 1 or more per factor, not {counts}"
        raise ValueError(message)
    return counts


def _halves(output: Tensor, reads: str) -> tuple[Tensor, Tensor]:
    size = output.shape[-1]
    if size % 2:
        message = f"the policy gives {size} numbers per observation, the action head reads {reads}"
        raise ValueError(message)
    return output[..., : size // 2], output[..., size // 2 :]


def _just_inside(action: Tensor, low: float) -> Tensor:
    """Return `action` in float64, the ends `low` and 1 moved inside by one step of its dtype."""
    numbers = torch.finfo(action.dtype)
    least = numbers.tiny if low == 0 else low + numbers.eps / 2
    return double(action).clamp(least, 1 - numbers.eps / 2)


def _two_per_dimension(head: ActionHead, space: Space[Any]) -> int:
    if not isinstance(space, Box):
        raise head.refuse(space)
    return 2 * math.prod(space.shape)
