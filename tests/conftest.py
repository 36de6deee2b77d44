"""Models that the tests share: the packaged real one, and tiny random ones of several families."""

import functools

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from replication.embedded import embedded_directory
from replication.model import Model, load_model, wrap

VOCABULARY = 97
WINDOW = 8

_SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,  # large weights, so that attention is sharp and an error cannot hide
    "bos_token_id": 1,
    "eos_token_id": None,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}
_OWN = {
    "llama": {},
    "qwen2": {},
    "mistral": {"sliding_window": WINDOW},
    "gemma3_text": {
        "sliding_window": WINDOW,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            "full_attention": {"rope_type": "default", "rope_theta": 10_000.0},
        },
        "query_pre_attn_scalar": 8,
    },
    "gpt_neox": {"rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.5}},
    "phi3": {"partial_rotary_factor": 0.5},
    "smollm3": {"no_rope_layers": [1, 0, 1, 0], "use_sliding_window": False},
    "cohere": {"logit_scale": 1.0},  # its keys are rotated in neighbouring pairs
}
FAMILIES = tuple(_OWN)
SLIDING = ("mistral", "gemma3_text")

# tests are many small forwards, on which threads only wait for each other
torch.set_num_threads(1)


def tiny_lm(family: str, seed: int = 0, **settings) -> PreTrainedModel:
    """A random causal LM of a transformers family, the same for the same arguments; settings: of its config."""
    config = AutoConfig.for_model(family, **{**_SIZES, **_OWN.get(family, {}), **settings})
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        lm = AutoModelForCausalLM.from_config(config).eval()
        for parameter in lm.parameters():
            if parameter.dim() == 1:  # norms and biases start as ones and zeros, which hide mistakes
                parameter.data.add_(0.1 * torch.randn_like(parameter))
    lm.generation_config.eos_token_id = None
    return lm


@functools.cache
def tiny_model(family: str) -> Model:
    return wrap(f"tiny-{family}", tiny_lm(family))


@pytest.fixture(scope="session")
def tiny():
    """tiny(family): a tiny random Model."""
    return tiny_model


@pytest.fixture(scope="session")
def tiny_directory(tmp_path_factory) -> str:
    """A directory with a tiny random model and the real tokenizer."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    tokenizer = AutoTokenizer.from_pretrained(embedded_directory("smollm2-135m"))
    tiny_lm("llama", vocab_size=len(tokenizer), max_position_embeddings=4096).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="session")
def smollm2() -> Model:
    """Real weights: SmolLM2-135M-Instruct in fp32."""
    return load_model("smollm2-135m")
