"""One request's KV cache: the bytes that K and V take, and decoding with and without keeping them (S-01 to S-04).

A token's K and V are read by every later token, its Q only by itself: so K and V are kept, and a step computes one row.

>>> from replication.caches.request import WithCache, WithoutCache, decode, kv_bytes_per_token, tensor_bytes
>>> from replication.model import load_model
>>> model = load_model("smollm2-135m")
>>> prompt = tuple(model.tokenizer("The capital of France is")["input_ids"])
>>> kept, recomputed = WithCache(model), WithoutCache(model)
>>> decode(kept, prompt, 4).ids == decode(recomputed, prompt, 4).ids
True
>>> kept.rows, recomputed.rows  # tokens computed per step
([5, 1, 1, 1], [5, 6, 7, 8])
>>> kept.cache.get_seq_length()  # prompt + generated - 1: nothing reads the last token's K and V
8
>>> tensor_bytes(kept.cache) == 8 * kv_bytes_per_token(model.lm.config, model.dtype)
True
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from transformers import Cache, DynamicCache, PreTrainedConfig
from transformers.cache_utils import DummyLayer, DynamicLayer, DynamicSlidingWindowLayer

from replication.device import synchronize
from replication.errors import ReplicationError
from replication.model import Model

_STORED = ("keys", "values", "_quantized_keys", "_quantized_values")


def kv_bytes_per_token(config: PreTrainedConfig, dtype: torch.dtype) -> int:
    """Bytes that one token adds to the cache (S-03): K and V of each layer, KV heads x head dim, before any window."""
    return sum(2 * heads * dim * dtype.itemsize for heads, dim, _ in _layers(config))


def kv_bytes(config: PreTrainedConfig, dtype: torch.dtype, tokens: int) -> int:
    """Bytes of K and V of `tokens` tokens in `DynamicCache(config=config)`, whose sliding layers drop what no later
    token sees; a plain `DynamicCache()` keeps every token in every layer."""
    return sum(2 * heads * dim * dtype.itemsize * min(tokens, window) for heads, dim, window in _layers(config))


def _layers(config: PreTrainedConfig) -> list[tuple[int, int, float]]:
    """(KV heads, head dim, most tokens kept) of each layer that has a KV cache of its own."""
    config = config.get_text_config(decoder=True)
    found = []
    for index, (layer, own) in enumerate(zip(DynamicCache(config=config).layers, config.per_layer_config, strict=True)):
        if type(layer) is DummyLayer:  # reads another layer's K and V
            continue
        if type(layer) not in (DynamicLayer, DynamicSlidingWindowLayer) or hasattr(own, "kv_lora_rank"):
            raise ReplicationError(f"layer {index} of {config.model_type} keeps no plain K and V: no formula for it")
        heads = getattr(own, "num_key_value_heads", None) or own.num_attention_heads
        dim = getattr(own, "head_dim", None) or own.hidden_size // own.num_attention_heads
        found.append((heads, dim, layer.sliding_window - 1 if layer.is_sliding else float("inf")))
    return found


def tensor_bytes(cache: Cache) -> int:
    """Bytes of all tensors in which a cache holds K and V: packed ones, scales and full-precision rests included."""
    return sum(_nbytes(getattr(layer, name, None)) for layer in cache.layers for name in _STORED)


def _nbytes(stored: object) -> int:
    if stored is None:
        return 0
    if isinstance(stored, tuple):
        return sum(map(_nbytes, stored))
    if is_traceable_wrapper_subclass(stored):  # its own nbytes would be those of the tensor that it stands for
        return sum(_nbytes(getattr(stored, name)) for name in stored.__tensor_flatten__()[0])
    return stored.nbytes


@dataclass
class WithCache:
    """Decoding that keeps K and V: only new tokens are computed. ids: the tokens that the cache holds; rows: tokens
    computed by each forward."""

    model: Model
    cache: Cache = field(default_factory=DynamicCache)
    ids: tuple[int, ...] = ()
    rows: list[int] = field(default_factory=list)

    @torch.inference_mode()
    def advance(self, ids: tuple[int, ...]) -> torch.Tensor:
        """Logits [vocabulary] after the next tokens `ids`, whose K and V are kept."""
        output = self.model.lm(input_ids=self.model.tensor(ids), cache=self.cache, use_cache=True, logits_to_keep=1)
        self.ids += tuple(ids)
        self.rows.append(len(ids))
        # a model takes unknown arguments in silence, and without its cache every step would see one token
        # (user report 36)
        if self.cache.get_seq_length() != len(self.ids):
            raise ReplicationError(
                f"the cache holds {self.cache.get_seq_length()} tokens where {len(self.ids)} were computed: "
                "this model or version of transformers ignores `cache`; install the versions of constraints.txt"
            )
        synchronize(self.model.device)
        return output.logits[0, -1]


@dataclass
class WithoutCache:
    """Decoding that keeps nothing: every step computes the whole sequence again (S-02)."""

    model: Model
    ids: tuple[int, ...] = ()
    rows: list[int] = field(default_factory=list)

    @torch.inference_mode()
    def advance(self, ids: tuple[int, ...]) -> torch.Tensor:
        """Logits [vocabulary] after the next tokens `ids`."""
        self.ids += tuple(ids)
        self.rows.append(len(self.ids))
        output = self.model.lm(input_ids=self.model.tensor(self.ids), use_cache=False, logits_to_keep=1)
        synchronize(self.model.device)
        return output.logits[0, -1]


@dataclass(frozen=True)
class Decoded:
    """ids: n tokens, an end token included. logits [n, vocabulary]: what each was chosen from. seconds: n forwards;
    the first one is the prefill, so that is the time to first token."""

    ids: tuple[int, ...]
    logits: torch.Tensor
    seconds: list[float]


def decode(decoder: WithCache | WithoutCache, prompt: tuple[int, ...], count: int, eos: int | None = None) -> Decoded:
    """Prefill `prompt`, the tokens behind those that the decoder has seen, and decode greedily up to `count` tokens
    or the token `eos`."""
    return _decode(decoder, prompt, count, lambda logits, _: int(logits.argmax()), eos)


def follow(decoder: WithCache | WithoutCache, prompt: tuple[int, ...], ids: tuple[int, ...]) -> Decoded:
    """The same along given tokens (teacher forcing)."""
    return _decode(decoder, prompt, len(ids), lambda _, index: ids[index], None)


def _decode(decoder, prompt: tuple[int, ...], count: int, choose: Callable, eos: int | None) -> Decoded:
    longest = len(decoder.ids) + len(prompt) + count - 1
    if not prompt or count < 1:
        raise ReplicationError("decoding needs at least one new prompt token and one token to decode")
    decoder.model.context.require(longest, "shorten prompt or count")
    ids, logits, seconds = [], [], []
    pending = prompt
    while True:
        begun = time.perf_counter()
        logits.append(decoder.advance(pending))
        seconds.append(time.perf_counter() - begun)
        ids.append(choose(logits[-1], len(ids)))
        if len(ids) == count or ids[-1] == eos:
            return Decoded(tuple(ids), torch.stack(logits), seconds)
        pending = (ids[-1],)
