"""A text environment in a few lines, and a language model evolved in it: python examples/text.py"""

import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from populora_envs import evolve_with_env, generate

GENERATIONS = int(sys.argv[1]) if len(sys.argv) > 1 else 60
LETTERS = "abcdefghijklmnop"


class Repeat:
    """The prompt is a letter, thrice; the reward is the share of the answer that repeats it."""

    def prompts(self, seed, count=8):
        generator = torch.Generator().manual_seed(seed)
        letters = torch.randint(len(LETTERS), (count, 1), generator=generator)
        return letters.expand(count, 3)

    def rewards(self, prompts, texts):
        pairs = zip(prompts, texts, strict=True)
        return torch.stack([(text == prompt[0]).float().mean() for prompt, text in pairs])


def fitness(population):
    """Let everyone answer all prompts of this generation: one routed forward per token."""
    prompts = Repeat().prompts(population.eval_seed)
    size, count = population.pop_size, len(prompts)
    texts = generate(
        population,
        prompts.repeat(size, 1),
        individuals=torch.arange(size).repeat_interleave(count),
        max_new_tokens=4,
    )
    return Repeat().rewards(prompts.repeat(size, 1), texts).reshape(size, count).mean(1)


def small_language_model():
    """Random weights here; `LlamaForCausalLM.from_pretrained(...)` for a real one."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4}
    special = {"bos_token_id": None, "eos_token_id": None}
    config = LlamaConfig(vocab_size=len(LETTERS), num_hidden_layers=2, **sizes, **special)
    return LlamaForCausalLM(config)


if __name__ == "__main__":
    model, history = evolve_with_env(
        None,
        small_language_model(),
        fitness=fitness,
        lora_targets=["*_proj", "lm_head"],
        low_rank=4,
        scale=1.0,
        pop_size=32,
        num_generations=GENERATIONS,
        return_history=True,
    )
    print(f"base {history[0]['base_fitness']:.2f}, champion {history[-1]['champion_mean']:.2f}")
    prompt = torch.tensor([[LETTERS.index("c")] * 3])
    with torch.inference_mode():
        answer = model.generate(prompt, max_new_tokens=4, do_sample=False, pad_token_id=0)[0, 3:]
    print("ccc ->", "".join(LETTERS[token] for token in answer.tolist()))
