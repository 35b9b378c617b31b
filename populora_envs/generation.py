"""Text from the language models that individuals make: one routed forward per token."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from populora_envs.seeds import derive_seed, hash_uniform
from populora_envs.settings import at_least

if TYPE_CHECKING:
    from collections.abc import Sequence

    from populora_envs.population import Population


def generate(
    population: Population,
    prompts: Tensor | Sequence[Any],
    *,
    individuals: int | Sequence[int] | Tensor,
    max_new_tokens: int,
    eos: int | Sequence[int] | None = None,
    temperature: float = 0.0,
    seeds: Sequence[int] | None = None,
    pad_to: int | None = None,
) -> list[Tensor]:
    """Return what individuals write after prompts, each token by one forward of who still writes.

    The base is a causal language model as `transformers` has them: called with `input_ids` and its own
    key-value cache, it returns `logits` `[B, T, V]` and the cache.

    Args:
        population: of such a base.
        prompts: token ids, `[N, T]` or N sequences of any lengths from 1.
        individuals: who writes after each prompt, N indices, or one for all.
        max_new_tokens: most tokens after a prompt.
        eos: one token, or several, that end a text; None ends it at `max_new_tokens` alone.
        temperature: 0 takes the likeliest token; above 0 tokens are drawn from the softmax of the
            logits divided by it.
        seeds: of the draws, one per prompt; None makes them from the population's seed, its generation
            and the prompt's place.
        pad_to: fill every prompt from the left to this length. Prompts of different lengths are filled
            to the longest otherwise, and the last bits of a text's logits depend on that one.

    Returns:
        N int64 tensors on the population's device, the new tokens with their `eos`.

    Raises:
        ValueError: for an empty prompt, other numbers of individuals or seeds than of prompts, a
            negative temperature, or a prompt longer than `pad_to`.
    """
    rows = [torch.as_tensor(prompt, dtype=torch.int64).flatten() for prompt in prompts]
    limit = at_least("max_new_tokens", max_new_tokens, 1)
    if not rows:
        return []
    ids = _one_each("individuals", individuals, len(rows)).to(population.device)
    if not temperature >= 0:
        message = f"temperature must be 0 or more, not {temperature}"
        raise ValueError(message)
    if seeds is None:
        parts = population.seed, population.generation, "generate"
        seeds = [derive_seed(*parts, k) for k in range(len(rows))]
    keys = _one_each("seeds", seeds, len(rows)).to(population.device)
    ends = torch.tensor([eos] if isinstance(eos, int) else list(eos or ()), dtype=torch.int64)
    writing = _begin(population, rows, ids, keys, pad_to)
    found: list[list[Tensor]] = [[] for _ in rows]
    with torch.inference_mode():
        for step in range(limit):
            chosen = _chosen(writing.step(population), temperature, writing.keys, step)
            for sample, token in zip(writing.samples.tolist(), chosen, strict=True):
                found[sample].append(token)
            going = ~torch.isin(chosen, ends.to(chosen.device))
            if step + 1 == limit or not going.any():
                break
            writing = writing.going_on(chosen, going)
    return [torch.stack(tokens) for tokens in found]


class _Writing(NamedTuple):
    """Texts that go on: what the next forward reads."""

    samples: Tensor
    ids: Tensor
    keys: Tensor
    tokens: Tensor
    """`[B, T]`, of each text what the model has not read."""
    mask: Tensor | None
    """`[B, T]` over everything so far, 0 where a prompt was filled; None where none was."""
    cache: list[Any]
    """The key-value cache of the model, once there is one."""

    def step(self, population: Population) -> Tensor:
        """Return the logits of the next token, `[B, V]`."""
        name = _cache_name(population)
        reads: dict[str, Any] = {name: self.cache[0] if self.cache else None}
        if self.mask is not None:
            places = (self.mask.cumsum(-1) - 1).clamp_min(0)
            reads["attention_mask"] = self.mask
            reads["position_ids"] = places[:, -self.tokens.shape[1] :]
        output = population(input_ids=self.tokens, use_cache=True, individuals=self.ids, **reads)
        self.cache[:] = [getattr(output, name)]
        logits: Tensor = output.logits[:, -1]
        return logits

    def going_on(self, chosen: Tensor, going: Tensor) -> _Writing:
        """Return the texts that have not ended, each with the token that was chosen."""
        mask = self.mask
        if mask is not None:
            mask = torch.cat([mask, torch.ones_like(mask[:, :1])], dim=1)[going]
        if not bool(going.all()):
            self.cache[0].batch_select_indices(torch.nonzero(going).flatten())
        samples, ids, keys = self.samples[going], self.ids[going], self.keys[going]
        return _Writing(samples, ids, keys, chosen[going, None], mask, self.cache)


def _cache_name(population: Population) -> str:
    """Return what the model calls its cache: `past_key_values`, of late `cache`."""
    known = inspect.signature(type(population.model).forward).parameters
    return "cache" if "cache" in known else "past_key_values"


def _begin(
    population: Population, rows: list[Tensor], ids: Tensor, keys: Tensor, pad_to: int | None
) -> _Writing:
    lengths = [len(row) for row in rows]
    length = max(lengths) if pad_to is None else pad_to
    if min(lengths) < 1 or max(lengths) > length:
        message = f"prompts of {min(lengths)} to {max(lengths)} tokens must have 1 to {length}"
        raise ValueError(message)
    tokens = torch.zeros(len(rows), length, dtype=torch.int64, device="cpu")
    mask = torch.zeros_like(tokens)
    for k, row in enumerate(rows):
        tokens[k, length - len(row) :] = row.cpu()
        mask[k, length - len(row) :] = 1
    is_filled = pad_to is not None or min(lengths) < length
    samples = torch.arange(len(rows), device=population.device)
    return _Writing(
        samples,
        ids,
        keys,
        tokens.to(population.device),
        mask.to(population.device) if is_filled else None,
        [],
    )


def _one_each(name: str, given: int | Sequence[int] | Tensor, count: int) -> Tensor:
    numbers = torch.as_tensor(given, dtype=torch.int64)
    if numbers.dim() == 0:
        numbers = numbers.expand(count)
    if numbers.shape != (count,):
        message = f"{name} has shape {tuple(numbers.shape)} for {count} prompts: pass one for each"
        raise ValueError(message)
    return numbers.clone()


def _chosen(logits: Tensor, temperature: float, keys: Tensor, step: int) -> Tensor:
    """Return one token for each row of logits `[B, V]`."""
    if not temperature:
        return logits.argmax(-1)
    shares = torch.softmax(logits.double() / temperature, dim=-1).cumsum(-1)
    drawn = hash_uniform(torch.stack([keys, torch.full_like(keys, step)], dim=1), 1)
    found = torch.searchsorted(shares, drawn * shares[:, -1:], right=True)
    return found[:, 0].clamp_max(logits.shape[1] - 1)
