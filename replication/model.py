"""A causal language model that chunk reuse can trust: loaded by short name, hub id or directory, and checked."""

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from replication.context import Context
from replication.embedded import EMBEDDED, embedded_directory
from replication.errors import ReplicationError
from replication.refusals import refused
from replication.rotary import KeyRotation
from replication.rotary_proof import prove_rotation

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Model:
    """A loaded model with what reuse needs: its decoder layers, its key rotation, and what tells it from others.

    weights: sha256 over names, shapes, dtypes and bytes of all weights. fingerprint: over these and the config; two
    models share chunks only if it is the same.
    """

    name: str
    lm: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase | None
    layers: nn.ModuleList
    rotation: KeyRotation
    weights: str

    @cached_property
    def fingerprint(self) -> str:
        config = _without_loading(self.lm.config.to_dict())
        text = f"{self.weights} {type(self.lm).__name__} {json.dumps(config, sort_keys=True, default=str)}"
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def config(self) -> PreTrainedConfig:
        """That of the decoder, which a model with a vision tower keeps inside its own."""
        return self.lm.config.get_text_config()

    @property
    def device(self) -> torch.device:
        return self.lm.device

    @property
    def dtype(self) -> torch.dtype:
        return self.lm.dtype

    @property
    def context_length(self) -> int:
        """Longest prompt in tokens that the model was made for, and whose keys can be moved."""
        return self.context.tokens

    @property
    def context(self) -> Context:
        return Context(self.rotation.longest, self.config.max_position_embeddings)

    def tensor(self, ids) -> torch.Tensor:
        """Token ids as a long tensor [1, n] on the model's device."""
        return torch.tensor([list(ids)], dtype=torch.long, device=self.device)


def load_model(name: str, dtype: str = "float32", device: str = "cpu") -> Model:
    """Load by short name (`smollm2-135m`), directory or hub id. Errors: ReplicationError with what to do."""
    if dtype not in DTYPES:
        raise ReplicationError(f"unknown dtype '{dtype}'; known: {', '.join(DTYPES)}")
    source = embedded_directory(name) if name in EMBEDDED else name
    try:
        tokenizer = AutoTokenizer.from_pretrained(source)
        lm = AutoModelForCausalLM.from_pretrained(source, dtype=DTYPES[dtype])
    except (OSError, ValueError) as error:
        raise ReplicationError(_cannot_load(name, error)) from error
    try:
        lm = lm.to(device)
    except (RuntimeError, AssertionError) as error:
        raise ReplicationError(f"device '{device}' cannot be used here: {str(error).splitlines()[0]}") from error
    return wrap(name if name in EMBEDDED else Path(name).name, lm, tokenizer)


def wrap(name: str, lm: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None = None) -> Model:
    """A Model around a transformers causal LM that is already in memory; refuses one whose keys cannot be moved."""
    lm = lm.eval().requires_grad_(False)
    layers = _decoder_layers(lm)
    return Model(name, lm, tokenizer, layers, prove_rotation(lm, layers), _weights_sha256(lm))


def _decoder_layers(lm: PreTrainedModel) -> nn.ModuleList:
    count = getattr(lm.config.get_text_config(), "num_hidden_layers", None)
    for module in lm.get_decoder().modules():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return module
    raise refused(lm, "layers", count=count)


def _without_loading(config: dict) -> dict:
    """The config, and those in it, but for what loading sets; the class says what `architectures` does, and the dtype
    is part of a chunk's key."""
    loading = ("_name_or_path", "architectures", "dtype")
    return {k: _without_loading(v) if isinstance(v, dict) else v for k, v in config.items() if k not in loading}


def _weights_sha256(lm: PreTrainedModel) -> str:
    digest = hashlib.sha256()
    for name, tensor in lm.state_dict().items():
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype};".encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def _cannot_load(name: str, error: Exception) -> str:
    return (
        f"cannot load model '{name}': {' '.join(str(error).split()).rstrip('.')}. "
        f"Give one of {', '.join(EMBEDDED)}, a directory that holds a transformers model, or a hub id with internet."
    )
