"""Individuals as folders of PEFT, read by PEFT itself."""

import copy
import json

import pytest
import torch
from torch import nn

from populora_envs import Population, make_search

peft = pytest.importorskip("peft", reason="PEFT is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]

TARGETS = ["*.q_proj", "*.v_proj"]


def language_model():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=40,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=32,
    )
    return transformers.LlamaForCausalLM(config).eval()


def random_population(model, **settings):
    settings = {"pop_size": 3, "low_rank": 4, "lora_targets": TARGETS, "seed": 1, **settings}
    population = Population(model, **settings)
    for layer in population.individuals.values():
        layer.up.normal_(generator=torch.Generator().manual_seed(3))
    return population


def logits(model, tokens):
    with torch.inference_mode():
        return model(tokens).logits


TOKENS = torch.arange(12).reshape(2, 6)


@pytest.mark.parametrize("low_rank", [None, 2])
def test_peft_gives_the_outputs_of_the_merged_individual(tmp_path, low_rank):
    model = language_model()
    population = random_population(model)
    error = population.save_individual(tmp_path / "lora", 1, low_rank, format="peft")
    loaded = peft.PeftModel.from_pretrained(copy.deepcopy(model), tmp_path / "lora")
    merged = population.merge_(1)
    assert (error == 0.0) == (low_rank is None)
    if low_rank is not None:
        again = random_population(model)
        again.load_individual(tmp_path / "lora", 0)
        merged = again.merge_(0)
    assert torch.allclose(logits(loaded, TOKENS), logits(merged, TOKENS), atol=1e-5)
    assert not torch.allclose(logits(model, TOKENS), logits(merged, TOKENS), atol=1e-3)


def test_a_folder_comes_back_as_it_was(tmp_path):
    population = random_population(language_model())
    population.save_individual(tmp_path / "lora", 2, format="peft")
    other = random_population(language_model(), seed=9)
    other.load_individual(tmp_path / "lora", 1)
    for name, parts in population.individual_state(2).items():
        for part, weights in parts.items():
            assert torch.equal(other.individual_state(1)[name][part], weights)


@pytest.mark.parametrize("rslora", [False, True])
def test_what_peft_has_trained_becomes_an_individual(tmp_path, rslora):
    model = language_model()
    config = peft.LoraConfig(
        r=3,
        lora_alpha=7,
        target_modules=["q_proj", "v_proj"],
        alpha_pattern={"v_proj": 5},
        use_rslora=rslora,
    )
    trained = peft.get_peft_model(copy.deepcopy(model), config)
    for name, weights in trained.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(weights)
    trained.save_pretrained(tmp_path / "lora")
    population = random_population(model, low_rank=5)
    population.load_individual(tmp_path / "lora", 0)
    expected = logits(trained.eval(), TOKENS)
    assert torch.allclose(logits(population.merge_(0), TOKENS), expected, atol=1e-4)


def test_an_individual_on_a_base_that_moved_counts_from_the_users_weights(tmp_path):
    model = nn.Sequential(nn.Linear(6, 5, bias=False), nn.Tanh(), nn.Linear(5, 2, bias=False))
    population = Population(model, pop_size=4, low_rank=5, seed=0)
    search = make_search("es", population)
    for _ in range(2):
        search.ask()
        search.tell([3.0, 1.0, 2.0, 0.0])
    population.save_individual(tmp_path / "lora", 1, format="peft")
    loaded = peft.PeftModel.from_pretrained(copy.deepcopy(model), tmp_path / "lora")
    x = torch.randn(3, 6)
    assert torch.allclose(loaded(x), population.merge_(1)(x), atol=1e-5)


def test_what_peft_cannot_hold_is_refused(tmp_path):
    model = nn.Sequential(nn.Linear(3, 2))
    population = Population(model, pop_size=2, low_rank=2, adapt_bias=True)
    next(iter(population.individuals.values())).offset.add_(1.0)
    with pytest.raises(ValueError, match="changes the bias of 0, which PEFT"):
        population.save_individual(tmp_path / "lora", 0, format="peft")
    assert not (tmp_path / "lora").exists()
    with pytest.raises(ValueError, match="this model is one layer: wrap it"):
        Population(nn.Linear(3, 2), pop_size=2, low_rank=2).save_individual(
            tmp_path / "lora", 0, format="peft"
        )
    with pytest.raises(ValueError, match="format must be"):
        population.save_individual(tmp_path / "x", 0, format="gguf")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"peft_type": "IA3"}, "holds a IA3 adapter"),
        ({"use_dora": True}, "use_dora"),
        ({"bias": "all"}, "bias='all'"),
    ],
)
def test_other_adapters_are_refused(tmp_path, change, words):
    population = random_population(language_model())
    population.save_individual(tmp_path / "lora", 0, format="peft")
    path = tmp_path / "lora" / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(ValueError, match=words):
        population.load_individual(tmp_path / "lora", 0)


class Seeing(nn.Module):
    """A convolution and an embedding beside a linear layer, of different smaller sides."""

    def __init__(self):
        super().__init__()
        self.see, self.read = nn.Conv2d(3, 6, 2), nn.Embedding(9, 6)
        self.head = nn.Linear(6, 2)

    def forward(self, image, tokens):
        return self.head(self.see(image).mean((2, 3)) + self.read(tokens).mean(1))


def test_peft_gives_the_outputs_of_convolutions_and_embeddings(tmp_path):
    torch.manual_seed(0)
    model = Seeing()
    population = random_population(model, lora_targets="*", low_rank=4)
    assert population.ranks == {"see": 4, "read": 4, "head": 2}
    population.save_individual(tmp_path / "lora", 1, format="peft")
    loaded = peft.PeftModel.from_pretrained(copy.deepcopy(model), tmp_path / "lora")
    given = torch.randn(3, 3, 4, 4), torch.arange(6).reshape(3, 2)
    merged = population.merge_(1)
    assert torch.allclose(loaded(*given), merged(*given), atol=1e-5)
    assert not torch.allclose(model(*given), merged(*given), atol=1e-3)
    other = random_population(model, lora_targets="*", low_rank=4, seed=5)
    other.load_individual(tmp_path / "lora", 0)
    assert torch.allclose(other.merge_(0)(*given), merged(*given), atol=1e-6)


@pytest.mark.parametrize("layer", [nn.GRU(3, 4), nn.Conv1d(4, 4, 1, groups=2)])
def test_layers_that_peft_cannot_hold_are_refused(tmp_path, layer):
    population = random_population(nn.ModuleDict({"layer": layer}), lora_targets="*")
    with pytest.raises(ValueError, match="which PEFT's files of LoRA do not hold: leave it out"):
        population.save_individual(tmp_path / "lora", 0, format="peft")


def test_the_transposed_layers_of_gpt2_go_to_peft_and_come_back(tmp_path):
    torch.manual_seed(0)
    special = {"bos_token_id": 1, "eos_token_id": 1}
    sizes = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 16, "vocab_size": 40}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **special)).eval()
    targets = ["*.c_attn", "transformer.wte"]
    population = random_population(model, lora_targets=targets)
    population.save_individual(tmp_path / "lora", 1, format="peft")
    loaded = peft.PeftModel.from_pretrained(copy.deepcopy(model), tmp_path / "lora")
    merged = logits(population.merge_(1), TOKENS)
    assert torch.allclose(logits(loaded, TOKENS), merged, atol=1e-5)
    loaded.save_pretrained(tmp_path / "again")  # as PEFT itself writes it
    other = random_population(model, lora_targets=targets, seed=5)
    other.load_individual(tmp_path / "again", 0)
    assert torch.allclose(logits(other.merge_(0), TOKENS), merged, atol=1e-6)
