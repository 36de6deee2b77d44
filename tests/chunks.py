"""Chunks for tests of what stores them."""

import torch

from replication.chunk import ChunkKV


def make_chunk(n: int = 2, seed: int = 0, dtype: torch.dtype = torch.float32, layers: int = 2) -> ChunkKV:
    generator = torch.Generator().manual_seed(seed)
    kv = [torch.randn(2, n, 4, generator=generator).to(dtype) for _ in range(2 * layers)]
    return ChunkKV(tuple(range(n)), 3, kv[:layers], kv[layers:], context=(7, 8, 9))


def assert_same(a: ChunkKV, b: ChunkKV) -> None:
    assert (a.ids, a.start, a.context) == (b.ids, b.start, b.context)
    assert len(a.keys) == len(b.keys)
    assert len(a.values) == len(b.values)
    for x, y in zip((*a.keys, *a.values), (*b.keys, *b.values), strict=True):
        assert x.dtype == y.dtype
        assert torch.equal(x.contiguous().view(torch.uint8), y.contiguous().view(torch.uint8))
