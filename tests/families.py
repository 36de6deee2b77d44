"""Tiny random models of the families that the tests run on, and of those that are refused."""

from dataclasses import dataclass, field

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

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
# for configs that have other names for the rest
_FEW_SIZES = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4}


def _rope(kind: str = "default", theta: float = 10_000.0, **settings) -> dict:
    return {"rope_type": kind, "rope_theta": theta, **settings}


def _long_rope(dims: int) -> dict:
    """Other frequencies for prompts of more than 128 tokens."""
    factors = {"short_factor": [1.0] * (dims // 2), "long_factor": [2.0] * (dims // 2)}
    return _rope("longrope", original_max_position_embeddings=128, **factors)


@dataclass(frozen=True)
class Family:
    """label, traits: as `docs/families.md` shows them. model_type: transformers' name. settings: of its config, or of
    the decoder's config inside it. nested: the rest of such a config."""

    label: str
    traits: str
    model_type: str
    settings: dict = field(default_factory=dict)
    nested: dict = field(default_factory=dict)


_GEMMA3 = {
    "sliding_window": WINDOW,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "rope_parameters": {"sliding_attention": _rope(theta=100.0), "full_attention": _rope()},
    "query_pre_attn_scalar": 8,
}
# a vision tower as deep as the decoder, so that its layers could be taken for the decoder's
_VISION = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "image_size": 8,
    "patch_size": 4,
}
_EXACT = {
    "llama": Family("Llama, SmolLM2", "nothing: rotary on whole heads", "llama"),
    "qwen2": Family("Qwen2, Qwen2.5", "biases on Q, K and V", "qwen2"),
    "mistral": Family("Mistral", "sliding window in all layers", "mistral", {"sliding_window": WINDOW}),
    "gemma3_text": Family(
        "Gemma 3, 270M and 1B",
        "sliding window in some layers, a rotary base for each kind of layer, norms on Q and K",
        "gemma3_text",
        _GEMMA3,
    ),
    "gpt_neox": Family(
        "GPT-NeoX, Pythia",
        "rotary on part of each head, attention and MLP in parallel",
        "gpt_neox",
        {"rope_parameters": _rope(partial_rotary_factor=0.5)},
    ),
    "phi3": Family(
        "Phi-3",
        "one projection for Q, K and V; rotary on part; sliding window in all layers",
        "phi3",
        {"partial_rotary_factor": 0.5, "sliding_window": WINDOW},
    ),
    "smollm3": Family(
        "SmolLM3",
        "layers without rotary",
        "smollm3",
        {"no_rope_layers": [1, 0, 1, 0], "use_sliding_window": False},
    ),
    "cohere": Family(
        "Cohere Command R",
        "rotary on neighbouring pairs, attention and MLP in parallel",
        "cohere",
        {"logit_scale": 1.0},
    ),
    "llama-linear": Family(
        "Llama, linear scaling",
        "all frequencies scaled alike",
        "llama",
        {"rope_parameters": _rope("linear", factor=4.0)},
    ),
    "llama-yarn": Family(
        "Llama, YaRN scaling",
        "cos and sin scaled too",
        "llama",
        {"rope_parameters": _rope("yarn", factor=4.0, original_max_position_embeddings=128)},
    ),
    "llama3": Family(
        "Llama 3.1 and later",
        "frequencies scaled one by one",
        "llama",
        {
            "rope_parameters": _rope(
                "llama3",
                factor=4.0,
                original_max_position_embeddings=128,
                low_freq_factor=1.0,
                high_freq_factor=4.0,
            )
        },
    ),
    "phi3-longrope": Family(
        "Phi-3, long-rope",
        "other frequencies for long prompts, cos and sin scaled too",
        "phi3",
        {"rope_parameters": _long_rope(8), "original_max_position_embeddings": 128},
    ),
    "gemma3": Family(
        "Gemma 3, 4B and larger",
        "the decoder of the smaller ones inside a model with a vision tower, for prompts of text",
        "gemma3",
        _GEMMA3,
        {"vision_config": _VISION, "mm_tokens_per_image": 4, "tie_word_embeddings": False, "initializer_range": 0.2},
    ),
    "qwen3": Family("Qwen3", "norms on Q and K", "qwen3"),
    "gemma2": Family(
        "Gemma 2",
        "logits bounded by a soft cap, sliding window in every other layer",
        "gemma2",
        {
            "sliding_window": WINDOW,
            "query_pre_attn_scalar": 8,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 5.0,
        },
    ),
    "glm4": Family(
        "GLM-4",
        "rotary on neighbouring pairs of part of each head, norms before and after",
        "glm4",
        {"rope_parameters": _rope(partial_rotary_factor=0.5)},
    ),
    "stablelm": Family(
        "StableLM",
        "rotary on part of each head, attention and MLP in parallel",
        "stablelm",
        {"rope_parameters": _rope(partial_rotary_factor=0.5), "use_parallel_residual": True},
    ),
    "olmo2": Family("OLMo 2", "norms after attention and MLP alone, and on Q and K", "olmo2"),
    "granite": Family(
        "Granite",
        "multipliers of embeddings, attention, residuals and logits",
        "granite",
        {
            "embedding_multiplier": 3.0,
            "attention_multiplier": 0.5,
            "residual_multiplier": 0.7,
            "logits_scaling": 2.0,
        },
    ),
    "mixtral": Family("Mixtral", "mixture of experts", "mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen3_moe": Family(
        "Qwen3-MoE",
        "mixture of experts in every other layer",
        "qwen3_moe",
        {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "mlp_only_layers": [0, 2]},
    ),
    "gpt_oss": Family(
        "gpt-oss",
        "attention sinks, mixture of experts, sliding window in every other layer, YaRN",
        "gpt_oss",
        {
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "sliding_window": WINDOW,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "rope_parameters": _rope("yarn", factor=4.0, original_max_position_embeddings=128, truncate=False),
        },
    ),
}
_LATENT = {
    "q_lora_rank": 16,
    "kv_lora_rank": 8,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "first_k_dense_replace": 4,
}
_REFUSED = {
    "gpt2": Family("GPT-2", "absolute positions", "gpt2"),
    "opt": Family("OPT", "absolute positions", "opt", {"word_embed_proj_dim": 32, "ffn_dim": 32}),
    "gpt_neo": Family("GPT-Neo", "absolute positions", "gpt_neo", {"attention_types": [[["global", "local"], 2]]}),
    "bloom": Family("BLOOM", "ALiBi", "bloom"),
    "mpt": Family("MPT", "ALiBi", "mpt"),
    "falcon-alibi": Family("Falcon-RW", "ALiBi", "falcon", {"alibi": True}),
    "falcon": Family("Falcon", "rotary", "falcon"),
    "gptj": Family("GPT-J", "rotary on neighbouring pairs, sin given before cos", "gptj", {"rotary_dim": 4}),
    "minimax": Family(
        "MiniMax",
        "linear attention in most layers",
        "minimax",
        {"num_key_value_heads": 4, "head_dim": 8, "intermediate_size": 32, "num_local_experts": 2},
    ),
    "llama-dynamic": Family(
        "Llama, dynamic NTK",
        "frequencies that follow the length",
        "llama",
        {"rope_parameters": _rope("dynamic", factor=4.0)},
    ),
    "qwen3_next": Family(
        "Qwen3-Next",
        "linear attention in most layers",
        "qwen3_next",
        {
            "num_key_value_heads": 2,
            "head_dim": 8,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 16,
            "shared_expert_intermediate_size": 16,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
        },
    ),
    "deepseek_v2": Family("DeepSeek-V2", "latent attention", "deepseek_v2", _LATENT),
    "deepseek_v3": Family("DeepSeek-V3", "latent attention", "deepseek_v3", _LATENT),
}
MATRIX = _EXACT | _REFUSED
FAMILIES, REFUSED = tuple(_EXACT), tuple(_REFUSED)
# every method runs on these each time, and one of each kind on the others: a method knows no family
CORE = FAMILIES[:8]
SLIDING = ("mistral", "gemma3_text", "gemma3", "phi3", "gemma2", "gpt_oss")
EXPERTS = ("mixtral", "qwen3_moe", "gpt_oss")


def tiny_lm(family: str, seed: int = 0, **settings) -> PreTrainedModel:
    """A random causal LM of a family, the same for the same arguments; settings: of its decoder's config."""
    chosen = MATRIX[family]
    sizes = _SIZES if family in FAMILIES else _FEW_SIZES
    decoder = {**sizes, **chosen.settings, **settings}
    config = AutoConfig.for_model(
        chosen.model_type, **({"text_config": decoder, **chosen.nested} if chosen.nested else decoder)
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        lm = AutoModelForCausalLM.from_config(config).eval()
        for parameter in lm.parameters():
            if parameter.dim() == 1:  # norms and biases start as ones and zeros, which hide mistakes
                parameter.data.add_(0.1 * torch.randn_like(parameter))
    lm.generation_config.eos_token_id = None
    return lm
