"""Writes a model of random weights with SmolLM2's tokenizer and a context of 32,768 tokens: for measuring times on long
prompts without a hub. Usage: python scripts/random_model.py FOLDER [llama-1b|mistral-7b|tiny]

The last part of FOLDER names the results, so let it say what the model is: runs/models/random-llama-1b.
"""

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig

from replication.embedded import embedded_directory

CONTEXT = 32_768
SHAPES = {  # layers, hidden, feed-forward, heads, KV heads
    "llama-1b": (16, 2048, 8192, 32, 8),
    "mistral-7b": (32, 4096, 14336, 32, 8),
    "tiny": (4, 64, 128, 4, 2),
}


def write(folder: Path, shape: str) -> None:
    """Weights in bf16, the same each time."""
    layers, hidden, feed_forward, heads, kv_heads = SHAPES[shape]
    tokenizer = AutoTokenizer.from_pretrained(embedded_directory("smollm2-135m"))
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        num_hidden_layers=layers,
        hidden_size=hidden,
        intermediate_size=feed_forward,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=CONTEXT,
        rope_parameters={"rope_type": "default", "rope_theta": 500_000.0},
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3) or (sys.argv[2:] and sys.argv[2] not in SHAPES):
        sys.exit(f"usage: python scripts/random_model.py FOLDER [{'|'.join(SHAPES)}]")
    write(Path(sys.argv[1]), *(sys.argv[2:] or ["llama-1b"]))
