"""Pretrained language models: routed, merged, and made to write by one forward per token."""

from __future__ import annotations

import pytest
import torch

from populora_envs import Population, generate

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

SIZES = {"vocab_size": 40, "num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 4}
LLAMA = {**SIZES, "intermediate_size": 48, "max_position_embeddings": 64}
IDS = [3, 0, 0, 1, 2, 3]


def llama(**options):
    config = transformers.LlamaConfig(**{**LLAMA, "num_key_value_heads": 2, **options})
    return transformers.LlamaForCausalLM(config)


def gpt2():
    special = {"bos_token_id": 1, "eos_token_id": 1}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**SIZES, n_positions=64, **special))


def neox():
    return transformers.GPTNeoXForCausalLM(transformers.GPTNeoXConfig(**LLAMA))


MODELS = {
    "llama": (llama, ["*_proj"]),
    "llama, tied": (lambda: llama(tie_word_embeddings=True), ["lm_head", "*.mlp.*"]),
    "gpt2": (gpt2, ["*.c_attn", "*.c_proj", "transformer.wte", "transformer.wpe"]),
    "neox": (neox, None),
}


def population(name="llama", dtype=torch.float32, epsilon=0.4, **settings):
    make, targets = MODELS[name]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = make().to(dtype)
    pop = Population(model, pop_size=4, low_rank=2, lora_targets=targets, seed=0, **settings)
    if epsilon:
        pop.mutate_("full_gaussian", all_individuals=True, epsilon=epsilon)
    return pop


def tokens(rows, length, seed=0):
    return torch.randint(40, (rows, length), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_the_routed_language_model_is_the_merged_one(name, dtype):
    pop, x = population(name, dtype, adapt_norm=True), tokens(6, 7)
    with torch.inference_mode():
        routed = pop.routed(x, torch.tensor(IDS)).logits
        merged = torch.cat([pop.merge_(i)(x[k : k + 1]).logits for k, i in enumerate(IDS)])
    assert routed.dtype == dtype
    tolerance = 1e-5 if dtype == torch.float32 else 2.0**-6
    torch.testing.assert_close(routed, merged, rtol=0, atol=tolerance * float(merged.abs().max()))
    assert not torch.allclose(routed[1], pop.routed(x, torch.tensor([1] * 6)).logits[1], atol=0.1)


@pytest.mark.parametrize("name", MODELS)
def test_a_language_model_that_nobody_has_changed_is_the_base_in_bfloat16(name):
    pop, x = population(name, torch.bfloat16, epsilon=0, init="zero"), tokens(4, 7)
    base = pop.merge_(0)
    with torch.inference_mode():
        expected = base(x).logits
        routed = pop(x, all_individuals=True).logits
    torch.testing.assert_close(routed, expected, rtol=0, atol=2.0**-6 * float(expected.abs().max()))


@pytest.mark.parametrize("name", MODELS)
def test_a_row_of_a_language_model_does_not_depend_on_the_batch(name):
    pop, x, ids = population(name), tokens(9, 7), torch.arange(9) % 4
    with torch.inference_mode():
        whole = pop.routed(x, ids).logits
        for part in torch.randperm(9, generator=torch.Generator().manual_seed(1)).split(2):
            assert torch.equal(pop.routed(x[part], ids[part]).logits, whole[part])


def written(pop, individual, prompt, eos):
    """What the merged individual writes by the model's own loop."""
    given = {"attention_mask": torch.ones_like(prompt), "pad_token_id": 0, "eos_token_id": eos}
    model = pop.merge_(individual)
    whole = model.generate(prompt, max_new_tokens=10, do_sample=False, **given)
    return whole[0, prompt.shape[1] :].tolist()


@pytest.mark.parametrize("name", MODELS)
def test_greedy_text_is_what_the_merged_individual_writes(name):
    pop, x = population(name), tokens(6, 5)
    free = generate(pop, x, individuals=IDS, max_new_tokens=10)
    eos = int(free[0][3])  # so that some texts end before others
    texts = generate(pop, x, individuals=IDS, max_new_tokens=10, eos=eos)
    assert len({len(text) for text in texts}) > 1
    for prompt, i, text in zip(x, IDS, texts, strict=True):
        assert text.tolist() == written(pop, i, prompt[None], eos)


def test_prompts_of_different_lengths_are_continued_as_if_alone():
    pop, x = population(), tokens(3, 6)
    prompts = [x[0], x[1, :1], x[2, :4].tolist()]
    texts = generate(pop, prompts, individuals=[1, 2, 3], max_new_tokens=10)
    for prompt, i, text in zip(prompts, (1, 2, 3), texts, strict=True):
        assert text.tolist() == written(pop, i, torch.as_tensor(prompt)[None], None)


@pytest.mark.parametrize("pad_to", [None, 9])
def test_drawn_text_depends_on_its_own_seed_alone(pad_to):
    pop, x = population(), tokens(6, 5)
    settings = {"max_new_tokens": 8, "temperature": 1.0, "pad_to": pad_to}
    before = torch.get_rng_state()
    together = generate(pop, x, individuals=IDS, seeds=range(6), **settings)
    assert torch.equal(torch.get_rng_state(), before)
    for k in (0, 4):
        alone = generate(pop, x[k : k + 1], individuals=IDS[k], seeds=[k], **settings)
        assert torch.equal(alone[0], together[k])
    others = generate(pop, x, individuals=IDS, seeds=range(6, 12), **settings)
    assert any(not torch.equal(a, b) for a, b in zip(others, together, strict=True))
    repeated = [generate(pop, x, individuals=IDS, **settings) for _ in range(2)]
    assert all(torch.equal(a, b) for a, b in zip(*repeated, strict=True))


def test_drawn_tokens_have_the_shares_of_the_softmax():
    pop, count = population(epsilon=0), 3000
    x = tokens(1, 4).expand(count, 4)
    with torch.inference_mode():
        shares = torch.softmax(pop.merge_(1)(x[:1]).logits[0, -1].double(), dim=0)
    drawn = generate(pop, x, individuals=1, max_new_tokens=1, temperature=1.0)
    counts = torch.bincount(torch.cat(drawn), minlength=40)
    assert (counts / count - shares).abs().max() < 0.02


def test_one_forward_per_token_over_those_who_still_write():
    pop, x = population(), tokens(6, 5)
    sizes = []
    pop.model.register_forward_pre_hook(
        lambda module, args, given: sizes.append(tuple(given["input_ids"].shape)), with_kwargs=True
    )
    eos = int(generate(pop, x, individuals=IDS, max_new_tokens=10)[0][3])
    sizes.clear()
    texts = generate(pop, x, individuals=IDS, max_new_tokens=10, eos=eos)
    lengths = [len(text) for text in texts]
    steps = range(max(lengths))
    expected = [(sum(n > step for n in lengths), 1 if step else 5) for step in steps]
    assert sizes == expected


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"individuals": [0, 1]}, "individuals has shape"),
        ({"individuals": [0, 1, 9]}, "must lie in 0..3"),
        ({"seeds": [1]}, "seeds has shape"),
        ({"temperature": -1.0}, "temperature must be 0 or more"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"pad_to": 3}, "prompts of 5 to 5 tokens must have 1 to 3"),
        ({"prompts": [[], [1], [2]]}, "prompts of 0 to 1 tokens"),
    ],
)
def test_what_cannot_be_written_is_refused(change, message):
    given = {"prompts": tokens(3, 5), "individuals": [0, 1, 2], "max_new_tokens": 4, **change}
    with pytest.raises(ValueError, match=message):
        generate(population(), given.pop("prompts"), **given)


def test_nothing_is_written_after_no_prompts():
    assert generate(population(), [], individuals=[], max_new_tokens=4) == []


def test_a_merged_model_with_tied_embeddings_comes_back_from_its_files(tmp_path):
    pop, x = population("llama, tied"), tokens(2, 5)
    merged = pop.merge_(1)
    assert pop.model.config.tie_word_embeddings
    assert not merged.config.tie_word_embeddings
    merged.save_pretrained(tmp_path)
    back = transformers.LlamaForCausalLM.from_pretrained(tmp_path).eval()
    with torch.inference_mode():
        assert torch.equal(back(x).logits, merged(x).logits)
