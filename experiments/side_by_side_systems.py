"""The caches of `side_by_side` behind one interface: alone over a full prefill, or one over another as a stack."""

import json
import time
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from transformers import PreTrainedTokenizerBase

from experiments.side_by_side_prompts import Arrival, reply_ids
from replication.caches.prefix import PrefixCache
from replication.caches.request import WithCache, WithoutCache, decode, kv_bytes_per_token
from replication.caches.response import ResponseCache
from replication.caches.semantic import Embeds, SemanticCache
from replication.chunk import ChunkKV
from replication.fuse import Prefill
from replication.methods import make_method
from replication.model import Model
from replication.store import MemoryStore


@dataclass(frozen=True)
class Served:
    """An answer and what it took.

    source: `model`, `response` or `semantic`. made_for: id of the request whose answer it is. ids, logprobs: what the
    model generated, and log-probabilities [vocabulary] of its first token; nothing where a stored answer was served.
    prefilled: prompt tokens computed, as a mean over layers, those of building chunks included. Seconds: ttft to the
    first token or the stored answer, total to the last token; after: what is left to do then, for later requests.
    """

    text: str
    source: str
    made_for: str
    ttft: float
    total: float
    after: float = 0.0
    prefilled: float = 0.0
    ids: tuple[int, ...] = ()
    logprobs: torch.Tensor | None = None


class System(Protocol):
    """Tenants are kept apart in every one."""

    @property
    def nbytes(self) -> int:
        """Bytes that are held between requests: K and V, or answers with what they are found by."""

    def answer(self, arrival: Arrival) -> Served: ...


@dataclass(frozen=True)
class FullPrefill:
    """transformers' own prefill of the whole prompt; keep: K and V for decoding, or nothing from token to token."""

    model: Model
    count: int
    keep: bool = True
    nbytes: int = 0

    def answer(self, arrival: Arrival) -> Served:
        decoder = (WithCache if self.keep else WithoutCache)(self.model)
        decoded = decode(decoder, arrival.prompt.ids, self.count)
        prefilled = decoder.rows[0] if self.keep else sum(decoder.rows)
        seconds = {"ttft": decoded.seconds[0], "total": sum(decoded.seconds)}
        return _made(self.model.tokenizer, arrival, decoded.ids, decoded.logits[0], prefilled=prefilled, **seconds)


class PrefixReuse:
    """An exact prefix cache of at most `budget` bytes, salted by tenant."""

    def __init__(self, model: Model, count: int, budget: int, block_size: int):
        self.model, self.count = model, count
        self._block = block_size * kv_bytes_per_token(model.lm.config, model.dtype)
        self._cache = PrefixCache(model, max(1, budget // self._block), block_size)

    @property
    def nbytes(self) -> int:
        return self._cache.pool.cached * self._block

    def answer(self, arrival: Arrival) -> Served:
        prefill = self._cache.prefill(arrival.prompt, salt=arrival.request.tenant)
        return _decoded(self.model, arrival, prefill, self.count, after=prefill.report.seconds["store"])


class ChunkReuse:
    """KV of passages, found in whatever order they come; each tenant has an equal part of `budget` bytes.

    What is not found is computed with the question; chunks are built once the answer is out.
    """

    def __init__(self, model: Model, count: int, budget: int, tenants: int, method: str, ratio: float = 0.0):
        self.model, self.count, self.method = model, count, make_method(method, ratio)
        self._stores: dict[str, _BuildingStore] = defaultdict(lambda: _BuildingStore(budget // tenants))

    @property
    def nbytes(self) -> int:
        return sum(store.nbytes for store in self._stores.values())

    def answer(self, arrival: Arrival) -> Served:
        store = self._stores[arrival.request.tenant]
        served = _decoded(self.model, arrival, self.method.prefill(self.model, arrival.prompt, store), self.count)
        built = store.built
        after = self.method.learn(self.model, arrival.prompt, store)
        return replace(served, after=after, prefilled=served.prefilled + store.built - built)


class _BuildingStore(MemoryStore):
    """built: tokens that were prefilled to make its chunks."""

    built = 0

    def put(self, key: str, chunk: ChunkKV) -> None:
        self.built += len(chunk.context) + len(chunk.ids)
        super().put(key, chunk)


class Responses:
    """A response cache for each tenant, over another system."""

    def __init__(self, behind: System):
        self.behind = behind
        self._caches: dict[str, ResponseCache] = defaultdict(lambda: ResponseCache(":memory:"))

    @property
    def nbytes(self) -> int:
        return sum(cache.nbytes for cache in self._caches.values()) + self.behind.nbytes

    def answer(self, arrival: Arrival) -> Served:
        cache, begun = self._caches[arrival.request.tenant], time.perf_counter()
        stored = cache.get(arrival.body)
        looked = time.perf_counter() - begun
        if stored is not None:
            return _from_store("response", stored.decode(), looked)
        served = self.behind.answer(arrival)
        begun = time.perf_counter()
        if served.source == "model":
            cache.put(arrival.body, _entry(served).encode())
        return _later(served, looked, time.perf_counter() - begun)


class Semantic:
    """A semantic cache for each tenant, over another system. Questions are compared without their passages, which an
    embedder would cut. A chat's further questions pass by: what they mean is not in their words."""

    def __init__(self, behind: System, embedder: Embeds, threshold: float):
        self.behind = behind
        self._caches: dict[str, SemanticCache] = defaultdict(lambda: SemanticCache(embedder, threshold))
        self._bytes = 0

    @property
    def nbytes(self) -> int:
        return self._bytes + self.behind.nbytes

    def answer(self, arrival: Arrival) -> Served:
        if arrival.request.follows:
            return self.behind.answer(arrival)
        cache, begun = self._caches[arrival.request.tenant], time.perf_counter()
        looked_up = cache.look_up(arrival.request.question)
        looked = time.perf_counter() - begun
        if looked_up.answer is not None:
            return _from_store("semantic", looked_up.answer, looked)
        served = self.behind.answer(arrival)
        begun = time.perf_counter()
        if served.source == "model":
            entry = _entry(served)
            cache.store(looked_up, entry)
            self._bytes += looked_up.vector.nbytes + len(looked_up.question.encode()) + len(entry.encode())
        return _later(served, looked, time.perf_counter() - begun)


def _decoded(model: Model, arrival: Arrival, prefill: Prefill, count: int, after: float = 0.0) -> Served:
    """Greedy decoding from a filled cache."""
    first, rows, ttft = int(prefill.logits.argmax()), prefill.report.rows, prefill.report.seconds["ttft"]
    decoded = decode(WithCache(model, prefill.cache, arrival.prompt.ids), (first,), count - 1)
    return _made(
        model.tokenizer,
        arrival,
        (first, *decoded.ids),
        prefill.logits,
        prefilled=sum(rows) / len(rows),
        ttft=ttft,
        total=ttft + sum(decoded.seconds),
        after=after,
    )


def _made(
    tokenizer: PreTrainedTokenizerBase, arrival: Arrival, ids: tuple[int, ...], logits: torch.Tensor, **took: float
) -> Served:
    ids = reply_ids(tokenizer, ids)
    text = tokenizer.decode(ids, skip_special_tokens=True).strip()
    return Served(text, "model", arrival.request.id, ids=ids, logprobs=logits.float().log_softmax(-1), **took)


def _entry(served: Served) -> str:
    """What is stored: the answer, and whose it is, so that a wrong one can be told."""
    return json.dumps({"made_for": served.made_for, "text": served.text})


def _from_store(source: str, entry: str, looked: float) -> Served:
    return Served(source=source, ttft=looked, total=looked, **json.loads(entry))


def _later(served: Served, looked: float, stored: float) -> Served:
    """The same behind a look-up that missed."""
    return replace(served, ttft=served.ttft + looked, total=served.total + looked, after=served.after + stored)
