"""The KV of one chunk, prefilled on its own (paper sec. 3.2; S-20)."""

from dataclasses import dataclass, replace

import torch
from transformers import DynamicCache

from replication.context_impact import Attended
from replication.model import Model


@dataclass(frozen=True)
class ChunkKV:
    """K and V of a chunk's tokens as the model made them, rotated for positions start..start+n-1.

    ids: n token ids. start: position of the first token when it was prefilled. keys, values: per layer one
    tensor [kv heads, n, head dim]. context: token ids that stood before the chunk and were attended to, but
    are not part of it (empty when the chunk was prefilled alone). attended: the attention that it paid to them, where
    that was recorded.
    """

    ids: tuple[int, ...]
    start: int
    keys: list[torch.Tensor]
    values: list[torch.Tensor]
    context: tuple[int, ...] = ()
    attended: Attended | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of all K and V tensors."""
        return sum(t.numel() * t.element_size() for t in (*self.keys, *self.values))

    def layer(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V of one layer."""
        return self.keys[index], self.values[index]


@torch.inference_mode()
def prefill_chunk(
    model: Model, ids: tuple[int, ...], context: tuple[int, ...] = (), start: int | None = None
) -> ChunkKV:
    """Prefill `ids` behind `context` and keep the KV of `ids` alone; no other chunk is seen.

    start: position of the first of `ids`, `len(context)` or more; right behind a context at 0 if not given.
    """
    start = len(context) if start is None else start
    positions = torch.arange(start - len(context), start + len(ids), device=model.device)[None]
    cache = DynamicCache()
    inputs = model.tensor((*context, *ids))
    model.lm(input_ids=inputs, position_ids=positions, cache=cache, use_cache=True, logits_to_keep=1)
    return replace(cut(cache, context, ids), start=start)


def cut(cache: DynamicCache, context: tuple[int, ...], ids: tuple[int, ...]) -> ChunkKV:
    """The rows of `ids` in a cache that was filled with `context`, `ids` and maybe more; a copy."""
    span = slice(len(context), len(context) + len(ids))
    keys = [layer.keys[0, :, span].clone() for layer in cache.layers]
    values = [layer.values[0, :, span].clone() for layer in cache.layers]
    return ChunkKV(ids, len(context), keys, values, context)
