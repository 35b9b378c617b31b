"""What routing a transformer costs: ``python -m tests.benchmarks.layers [--device cuda]``.

A causal language model of 12 layers, 256 wide, reads one batch with one prompt per individual: the
plain base, and the routed model with the same ids every time, by turns in one run. Ratios are medians
over the rounds. On a CPU torch uses one thread. The last column is the memory of all individuals' weights.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, NamedTuple

import torch

from populora_envs import Population
from populora_envs.invariance import one_thread
from tests.benchmarks.table import (
    machine_line,
    megabytes_of_individuals,
    print_table,
    time_in_turns,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

HEADER = [
    *("individuals", "rank", "tokens", "dtype", "plain ms", "routed ms", "ratio", "limit"),
    *("verdict", "MB"),
]


class Case(NamedTuple):
    pop_size: int
    low_rank: int
    length: int
    limit: float | None = None
    """Highest ratio of the routed forward to the plain one that is accepted."""
    dtype: torch.dtype = torch.float32


CASES = (Case(16, 8, 32, 1.5), Case(16, 8, 128, 1.5), Case(64, 8, 32))


def make_model(num_layers: int, dtype: torch.dtype) -> torch.nn.Module:
    """A Llama with random weights, made without a download."""
    import transformers

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=512,
        hidden_size=256,
        intermediate_size=1024,
        num_hidden_layers=num_layers,
        num_attention_heads=8,
        num_key_value_heads=8,
        max_position_embeddings=512,
    )
    return transformers.LlamaForCausalLM(config).to(dtype).eval()


def measure(case: Case, rounds: int, device: str, num_layers: int) -> list[str]:
    plain = make_model(num_layers, case.dtype).to(device)
    population = Population(
        plain, pop_size=case.pop_size, low_rank=case.low_rank, lora_targets="*_proj", seed=0
    )
    batch = torch.randint(512, (case.pop_size, case.length), device=device)
    ids = torch.arange(case.pop_size, device=device)
    wait = torch.cuda.synchronize if torch.device(device).type == "cuda" else lambda: None
    with torch.inference_mode(), one_thread():
        calls = [lambda: plain(batch), lambda: population.routed(batch, ids)]
        first, routed = time_in_turns(calls, rounds, 0.0, wait)
    verdict = "-" if case.limit is None else "ok" if routed.ratio <= case.limit else "over"
    return [
        *(str(case.pop_size), str(case.low_rank), str(case.length)),
        *(str(case.dtype).removeprefix("torch."), f"{first.seconds * 1e3:.1f}"),
        *(f"{routed.seconds * 1e3:.1f}", f"{routed.ratio:.2f}"),
        *("-" if case.limit is None else f"{case.limit:.1f}", verdict),
        f"{megabytes_of_individuals(population):.1f}",
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--cases", type=int, default=len(CASES), help="how many, from the first")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args(arguments)
    print(f"{machine_line()}, {options.device}, {options.rounds} rounds")
    rows = [
        measure(case, options.rounds, options.device, options.layers)
        for case in CASES[: options.cases]
    ]
    print_table(HEADER, rows)


if __name__ == "__main__":
    main()
