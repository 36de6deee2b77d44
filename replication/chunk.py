"""The KV of one chunk, prefilled alone (paper sec. 3.2; S-20)."""

from dataclasses import dataclass

import torch


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
