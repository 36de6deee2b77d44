"""An exact prefix cache as engines have it: real KV tensors in blocks that requests with the same prefix share.

A block's key is a hash of the key before it and of its token ids (S-10); whole blocks only (S-11). What is found is
gathered, the rest of the prompt is computed over it, and the new blocks are written back for the next request.

>>> from replication.caches.prefix import PrefixCache
>>> from replication.model import load_model
>>> model = load_model("smollm2-135m")
>>> cache = PrefixCache(model, blocks=64)
>>> ids = tuple(model.tokenizer("The cache remembers what was read before. " * 20)["input_ids"])
>>> cold, warm = cache.prefill(ids), cache.prefill(ids)
>>> len(ids), cold.report.reused, warm.report.reused
(161, 0, 160)
>>> int(cold.logits.argmax()) == int(warm.logits.argmax())
True
>>> cache.prefill(ids, salt="another tenant").report.reused
0
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from transformers import DynamicCache

from replication.caches.block_names import BlockNames, sha256
from replication.caches.block_pool import BlockPool, Name
from replication.chunk import ChunkKV, prefill_chunk
from replication.device import synchronize
from replication.errors import ReplicationError
from replication.fuse import Prefill, fuse
from replication.model import Model
from replication.prompt import ChunkedPrompt
from replication.selectors.base import Selector
from replication.stored import Piece, StoredKV


@dataclass
class Request:
    """A prompt in flight. table: its blocks, pinned. found: how many of them, from the first on, hold its KV.
    missed: why no more were found, as BlockPool.why_missed says; None when every whole block was. lookup: seconds."""

    ids: tuple[int, ...]
    names: list[Name]
    table: list[int]
    found: int
    missed: str | None
    lookup: float


class PrefixCache:
    """KV of `blocks` blocks of `block_size` tokens, in one tensor that is allocated at once. Many requests may be in
    flight, but one is computed at a time.

    hash: as in BlockNames. Errors: ReplicationError for sizes below 1, or a model whose layers hold KV of different
    shapes.
    """

    def __init__(self, model: Model, blocks: int, block_size: int = 16, hash: Callable[[bytes], bytes] = sha256):
        self.model, self.block_size = model, block_size
        self.names = BlockNames(f"{model.fingerprint} {model.dtype}", block_size, hash)
        self.pool = BlockPool(blocks)
        heads, head_dim = _kv_shape(model)
        # Blocks of a head lie side by side, so that gathered ones already are the head's tokens in order.
        shape = (len(model.layers), 2, heads, blocks, block_size, head_dim)
        self._kv = torch.empty(shape, dtype=model.dtype, device=model.device)

    @property
    def nbytes(self) -> int:
        """Bytes of all blocks, used or not."""
        return self._kv.nbytes

    def prefill(self, prompt: ChunkedPrompt | Iterable[int], salt: str = "") -> Prefill:
        """One request from look-up to release; errors as for `request`."""
        with self.request(prompt, salt) as request:
            return self.compute(request)

    @contextmanager
    def request(self, prompt: ChunkedPrompt | Iterable[int], salt: str = "") -> Iterator[Request]:
        """A request in flight: its blocks are pinned until the context ends, in whatever order requests end.

        What of the prompt is not found gets blocks as far as they are to be had; the rest is not kept.
        Errors: ReplicationError for an empty prompt, one beyond the model's context, or ids that are no whole numbers.
        """
        ids = prompt.ids if isinstance(prompt, ChunkedPrompt) else tuple(prompt)
        if not ids:
            raise ReplicationError("the prompt is empty: give at least one token")
        self.model.context.require(len(ids), "shorten the prompt")
        begun = time.perf_counter()
        names = self.names.of(ids, salt)
        found = self.pool.match(names)
        missed = self.pool.why_missed(names[len(found)]) if len(found) < len(names) else None
        table = found + self.pool.reserve(len(names) - len(found))
        request = Request(ids, names, table, len(found), missed, time.perf_counter() - begun)
        try:
            yield request
        finally:
            self.pool.release(request.table)

    def compute(self, request: Request) -> Prefill:
        """Fill a cache of the request's own: blocks that were found are copied, all other tokens are computed, and at
        least the last one is, since its logits are wanted (user report 27).

        The report's seconds are those of Method.prefill, and `store`: writing new blocks, which comes after the first
        token and is not part of `ttft`.
        """
        begun = time.perf_counter()
        reused = min(request.found * self.block_size, len(request.ids) - 1)
        found = (_Gathered(self._kv, kind, request.table[: request.found], reused) for kind in (0, 1))
        pieces = [Piece(ChunkKV(request.ids[:reused], 0, *found), 0)] if reused else []
        result = fuse(StoredKV(self.model, request.ids, pieces, move=False), Selector(ratio=0))
        ttft = request.lookup + time.perf_counter() - begun
        begun = time.perf_counter()
        self._store(request, result.cache)
        stored = time.perf_counter() - begun
        parts = {"lookup": request.lookup, **result.report.seconds}
        result.report.seconds = {**parts, "fuse": ttft - sum(parts.values()), "ttft": ttft, "store": stored}
        return result

    def _store(self, request: Request, cache: DynamicCache) -> None:
        """Write the blocks that were not found, and only then let others find them."""
        new = torch.tensor(request.table[request.found :], dtype=torch.long, device=self.model.device)
        span = slice(request.found * self.block_size, len(request.table) * self.block_size)
        for layer, target in zip(cache.layers, self._kv, strict=True):
            for source, blocks in zip((layer.keys, layer.values), target, strict=True):
                blocks.index_copy_(1, new, source[0, :, span].unflatten(1, (len(new), self.block_size)))
        synchronize(self.model.device)
        request.table = self.pool.publish(request.table, request.names)


class _Gathered(Sequence):
    """K (kind 0) or V (kind 1) of the first `tokens` tokens of blocks, [kv heads, tokens, head dim] for each layer.

    A layer is gathered when it is asked for: all at once would be held beside the cache that they are copied to.
    """

    def __init__(self, kv: torch.Tensor, kind: int, blocks: list[int], tokens: int):
        self._kv, self._kind, self._tokens = kv, kind, tokens
        self._blocks = torch.tensor(blocks, device=kv.device)

    def __len__(self) -> int:
        return len(self._kv)

    def __getitem__(self, layer: int) -> torch.Tensor:
        return self._kv[layer, self._kind].index_select(1, self._blocks).flatten(1, 2)[:, : self._tokens]


def _kv_shape(model: Model) -> tuple[int, int]:
    """KV heads and head dim, as the model makes them for one token."""
    chunk = prefill_chunk(model, (0,))
    shapes = {(t.shape[0], t.shape[2]) for t in (*chunk.keys, *chunk.values)}
    if len(shapes) > 1:
        raise ReplicationError(
            f"the layers of {model.name} hold KV of different shapes {sorted(shapes)}; blocks need one shape for all"
        )
    return shapes.pop()
