"""KV caches of fewer bits, as transformers offers them: memory against quality and time (S-07).

`QuantizedCache` quantizes what is prefilled at once, keeps up to 128 later tokens in full precision, and dequantizes
everything in every step. Each kind is tried before use, because what works depends on what is installed.

>>> from replication.caches.quantized import make_cache, problem
>>> from replication.caches.request import WithCache, decode, tensor_bytes
>>> from replication.model import load_model
>>> model = load_model("smollm2-135m")
>>> problem("fp8", model) is None
True
>>> full, small = (WithCache(model, make_cache(kind, model)) for kind in ("full", "fp8"))
>>> decode(full, tuple(range(100, 164)), 1).ids == decode(small, tuple(range(100, 164)), 1).ids
True
>>> round(tensor_bytes(full.cache) / tensor_bytes(small.cache), 1)
4.0
>>> problem("quanto-int8", model) is None  # where it is not, it is the reason as text
False
"""

from typing import Any

import torch
from transformers import Cache, DynamicCache, QuantizedCache

from replication.caches.request import WithCache
from replication.errors import ReplicationError
from replication.model import Model
from replication.registry import Registry

GROUP = 64  # values that share a scale; by default those of one token and head, if the head dim is 64
KINDS: dict[str, dict[str, Any] | None] = Registry("KV cache")
KINDS |= {
    "full": None,
    "fp8": {"backend": "fp8"},  # one scale per layer, from the prefill
    "quanto-int8": {"backend": "quanto", "nbits": 8},
    "quanto-int4": {"backend": "quanto", "nbits": 4},
    "quanto-int2": {"backend": "quanto", "nbits": 2},
    # keys share scales along a channel, as KIVI has it; heads x tokens must be a multiple of GROUP
    "quanto-int4-channel": {"backend": "quanto", "nbits": 4, "axis_key": -1},
    "quanto-int2-channel": {"backend": "quanto", "nbits": 2, "axis_key": -1},
    "hqq-int8": {"backend": "hqq", "nbits": 8},
    "hqq-int4": {"backend": "hqq", "nbits": 4},
}


def make_cache(kind: str, model: Model) -> Cache:
    """An empty cache of a kind of KINDS. ReplicationError if transformers cannot make it here."""
    options = KINDS[kind]
    if options is None:
        return DynamicCache()
    try:
        return QuantizedCache(config=model.lm.config, **options)
    except (ImportError, ValueError) as error:
        raise ReplicationError(" ".join(str(error).split())) from error


def problem(kind: str, model: Model) -> str | None:
    """Why a kind of cache does not work here, found by decoding with it; None if it works. The first use of quanto on
    a CPU compiles its kernel, which takes minutes and needs ninja and a C++ compiler."""
    try:
        decoder = WithCache(model, make_cache(kind, model))
        for ids in (tuple(range(GROUP)), (0,)):
            if not torch.isfinite(decoder.advance(ids)).all():
                return "its logits are not finite"
    except Exception as error:  # whatever a backend raises is the answer
        return " ".join(str(error).split()) or type(error).__name__
    return None
