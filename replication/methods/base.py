"""A method is where the stored KV comes from, plus which stored tokens are recomputed."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import ClassVar, Protocol

from transformers import DynamicCache

from replication.chunk import cut, prefill_chunk
from replication.device import synchronize
from replication.errors import ReplicationError
from replication.fuse import Prefill, fuse
from replication.model import Model
from replication.prompt import ChunkedPrompt, Segment
from replication.registry import Registry
from replication.selectors.base import Preview, Selector
from replication.store import ChunkStore, chunk_key
from replication.stored import Piece, StoredKV

Attending = Callable[[], AbstractContextManager]


class Source(Protocol):
    """What an earlier request leaves in the store, and what a later one finds there."""

    move: bool

    @property
    def keeps(self) -> str:
        """What is kept; sources that keep the same can share a store."""

    def learn(self, model: Model, earlier: ChunkedPrompt, store: ChunkStore) -> None:
        """Put into the store what `earlier` gives."""

    def find(self, model: Model, prompt: ChunkedPrompt, store: ChunkStore) -> list[Piece]:
        """The stored pieces of `prompt`."""


@dataclass(frozen=True)
class Nothing:
    """Nothing is kept between requests."""

    move: ClassVar[bool] = False
    keeps: ClassVar[str] = "nothing"

    def learn(self, model: Model, earlier: ChunkedPrompt, store: ChunkStore) -> None:
        return

    def find(self, model: Model, prompt: ChunkedPrompt, store: ChunkStore) -> list[Piece]:
        return []


@dataclass(frozen=True)
class PrefixChain:
    """Segments from the start of the prompt, each valid only behind the tokens it was computed behind (S-10..12)."""

    move: ClassVar[bool] = False
    keeps: ClassVar[str] = "prefixes"

    def learn(self, model: Model, earlier: ChunkedPrompt, store: ChunkStore) -> None:
        cache = fuse(StoredKV(model, earlier.ids, []), Selector(ratio=0)).cache
        for segment in earlier.segments[:-1]:
            chunk = cut(cache, earlier.ids[: segment.start], segment.ids)
            store.put(_key(model, segment.ids, chunk.context), chunk)

    def find(self, model: Model, prompt: ChunkedPrompt, store: ChunkStore) -> list[Piece]:
        pieces = []
        for segment in prompt.segments[:-1]:
            chunk = store.get(_key(model, segment.ids, prompt.ids[: segment.start]))
            if chunk is None:
                break
            pieces.append(Piece(chunk, segment.start))
        return pieces


@dataclass(frozen=True)
class Chunks:
    """Every chunk prefilled alone; found wherever it stands, also behind a chunk that is missing.

    A model that wants a BOS gets it before every chunk, and its KV is dropped, as the authors' code does. move: rotate
    keys to the chunk's place, or leave them as stored. behind_prefix: passages are prefilled behind the prompt's whole
    prefix instead, which they then share as their attention sink. dummy_bos: where the model wants no BOS, chunks are
    prefilled behind its BOS all the same.
    """

    move: bool = True
    behind_prefix: bool = False
    dummy_bos: bool = False

    @property
    def keeps(self) -> str:
        if self.behind_prefix:
            return "chunks behind the prefix"
        return "chunks behind a dummy BOS" if self.dummy_bos else "chunks alone"

    def learn(self, model: Model, earlier: ChunkedPrompt, store: ChunkStore) -> None:
        for segment in earlier.chunks:
            context = self._context(model, earlier, segment)
            key = _key(model, segment.ids, context)
            if store.get(key) is None:
                store.put(key, prefill_chunk(model, segment.ids, context))

    def find(self, model: Model, prompt: ChunkedPrompt, store: ChunkStore) -> list[Piece]:
        found = [(store.get(_key(model, s.ids, self._context(model, prompt, s))), s.start) for s in prompt.chunks]
        return [Piece(chunk, start) for chunk, start in found if chunk is not None]

    def _context(self, model: Model, prompt: ChunkedPrompt, segment: Segment) -> tuple[int, ...]:
        if segment.start == 0:
            return ()
        if self.behind_prefix:
            return prompt.prefix_ids
        return prompt.bos or (_bos(model) if self.dummy_bos else ())


def _bos(model: Model) -> tuple[int, ...]:
    token = model.config.bos_token_id
    if token is None:
        raise ReplicationError(f"{model.name} has no BOS token, behind which chunks could be prefilled")
    return (token,)


def _key(model: Model, ids: tuple[int, ...], context: tuple[int, ...] = ()) -> str:
    return chunk_key(model.fingerprint, ids, context, len(context), dtype=model.dtype)


def _as_ever(kv: StoredKV, prompt: ChunkedPrompt) -> Attending:
    return nullcontext


@dataclass(frozen=True)
class Method:
    """A way to fill the cache of a prompt. attention(kv, prompt): makes the context in which the model attends to the
    stored KV, in the prefill and afterwards, for a method that changes attention itself."""

    name: str
    source: Source
    selector: Selector
    attention: Callable[[StoredKV, ChunkedPrompt], Attending] = _as_ever

    def learn(self, model: Model, earlier: ChunkedPrompt, store: ChunkStore) -> float:
        """Take from an earlier request what this method keeps; returns the seconds it took."""
        begun = time.perf_counter()
        self.source.learn(model, earlier, store)
        synchronize(model.device)
        return time.perf_counter() - begun

    def prefill(self, model: Model, prompt: ChunkedPrompt, store: ChunkStore) -> Prefill:
        """Fill a cache for `prompt` from the store and by computing; the report's `ttft` covers all of it, except the
        full prefill that an oracle selector looks at."""
        truth = None
        if self.selector.needs_truth:
            truth = fuse(StoredKV(model, prompt.ids, []), Selector(ratio=0)).cache
        begun = time.perf_counter()
        pieces = self.source.find(model, prompt, store)
        lookup = time.perf_counter() - begun
        result = self.over(StoredKV(model, prompt.ids, pieces, self.source.move), prompt, truth)
        ttft = time.perf_counter() - begun
        parts = {"lookup": lookup, **result.report.seconds}
        result.report.seconds = {**parts, "fuse": ttft - sum(parts.values()), "ttft": ttft}
        return result

    def over(self, kv: StoredKV, prompt: ChunkedPrompt, truth: DynamicCache | None = None) -> Prefill:
        """Prefill `prompt` over this stored KV of it."""
        attending = self.attention(kv, prompt)
        scouts = []
        with attending():
            preview = Preview(prompt, kv, truth, lambda kv: scouts.append(fuse(kv, Selector(ratio=0)).report))
            result = fuse(kv, self.selector.prepared(preview), truth)
        result.attending, result.report.scouts = attending, scouts
        return result


@dataclass(frozen=True)
class Entry:
    """A registered method: `make(ratio)` builds it; takes_ratio: whether the recompute ratio means anything to it;
    same_order: it is measured after a request with the passages in the same order, its best case."""

    make: Callable[[float], Method]
    about: str
    takes_ratio: bool = True
    same_order: bool = False


METHODS = Registry("method")


def make_method(name: str, ratio: float = 0.0) -> Method:
    """The method registered as `name`, with recompute ratio `ratio` where it takes one."""
    return METHODS[name].make(ratio)
