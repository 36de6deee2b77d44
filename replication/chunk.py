"""The KV of one chunk, prefilled on its own (paper sec. 3.2; S-20)."""

from dataclasses import dataclass

import torch
from transformers import DynamicCache

from replication.model import Model


@dataclass(frozen=True)
class ChunkKV:
    """K and V of a chunk's tokens as the model made them, rotated for positions start..start+n-1.

    ids: n token ids. start: position of the first token when it was prefilled. keys, values: per layer one
    tensor [kv heads, n, head dim]. context: token ids that stood before the chunk and were attended to, but
    are not part of it (empty when the chunk was prefilled alone).
    """

    ids: tuple[int, ...]
    start: int
    keys: list[torch.Tensor]
    values: list[torch.Tensor]
    context: tuple[int, ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes of all K and V tensors."""
        return sum(t.numel() * t.element_size() for t in (*self.keys, *self.values))

    def layer(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V of one layer."""
        return self.keys[index], self.values[index]


@torch.inference_mode()
def prefill_chunk(model: Model, ids: tuple[int, ...], context: tuple[int, ...] = ()) -> ChunkKV:
    """Prefill `ids` behind `context` and keep the KV of `ids` alone; no other chunk is seen."""
    cache = DynamicCache()
    model.lm(input_ids=model.tensor((*context, *ids)), cache=cache, use_cache=True, logits_to_keep=1)
    return cut(cache, context, ids)


def cut(cache: DynamicCache, context: tuple[int, ...], ids: tuple[int, ...]) -> ChunkKV:
    """The rows of `ids` in a cache that was filled with `context`, `ids` and maybe more; a copy."""
    span = slice(len(context), len(context) + len(ids))
    keys = [layer.keys[0, :, span].clone() for layer in cache.layers]
    values = [layer.values[0, :, span].clone() for layer in cache.layers]
    return ChunkKV(ids, len(context), keys, values, context)
