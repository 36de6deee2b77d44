"""Prompts, stores and comparisons that tests of fused prefill share."""

import hashlib
from itertools import product

import pytest
import torch
from families import CORE, FAMILIES, VOCABULARY
from hypothesis import strategies as st
from transformers import DynamicCache

from replication.fuse import Prefill, fuse
from replication.methods import METHODS, Chunks, Method, PrefixChain, make_method
from replication.methods.ape import SideBySide, Tempered
from replication.methods.base import Nothing
from replication.model import Model
from replication.prompt import ChunkedPrompt, chain
from replication.selectors import Selector
from replication.selectors.base import Preview
from replication.store import MemoryStore
from replication.stored import StoredKV

# A method that is added to the registry runs through all of this
BLENDING = [name for name, entry in METHODS.items() if entry.takes_ratio]
EXACT = [name for name in METHODS if isinstance(make_method(name).source, Nothing | PrefixChain)]
CHUNKED = [name for name in METHODS if name not in EXACT]
REUSING = [name for name in CHUNKED if name not in BLENDING]
# one of each kind, for families beyond those that all methods run on each time
FEW = ("full", "full-reuse", "first-k", "cacheblend-paper")
# the one that does most: it taps, writes back and chooses layer by layer
HKVD_FEW = ("cacheblend-paper",)
# APE weighs its contexts also where they are a true prefix: only with both settings at 1 is that exact
NEUTRAL = {"ape": Method("ape", SideBySide(), Selector(ratio=0), Tempered(1, 1))}
TOLERANCE = 1e-4
# one passage longer than the tiny models' window, one of a single token
LENGTHS = (5, 11, 1, 7)

TOKENS = st.lists(st.integers(2, VOCABULARY - 1), min_size=1, max_size=12)
RATIOS = st.floats(0, 1)


def crossed(names, families=FAMILIES, core=CORE, few=FEW) -> list:
    """Pairs of family and method; those beyond all methods on `core` and `few` on the others are slow."""
    return [
        pytest.param(family, name, marks=() if family in core or name in few else pytest.mark.slow)
        for family in families
        for name in names
    ]


def tokens(n: int, seed: int) -> tuple[int, ...]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(2, VOCABULARY, (n,), generator=generator).tolist())


def a_prompt(lengths=LENGTHS, question: int = 4, seed: int = 0) -> ChunkedPrompt:
    """A prefix and passages of these lengths, and a question."""
    kinds = ["prefix", *["passage"] * (len(lengths) - 1)]
    parts = [(kind, tokens(n, 100 * seed + i)) for i, (kind, n) in enumerate(zip(kinds, lengths, strict=True))]
    return chain([*parts, ("question", tokens(question, 100 * seed + 99))])


@st.composite
def prompts(draw) -> ChunkedPrompt:
    """With or without a prefix and separators, 1 to 4 passages, the same passage maybe twice."""
    passages = draw(st.lists(TOKENS, min_size=1, max_size=4))
    if draw(st.booleans()):
        passages.append(passages[0])
    separator = draw(st.lists(st.integers(2, VOCABULARY - 1), max_size=2))
    parts = [("prefix", draw(st.one_of(st.just([]), TOKENS)))]
    for index, passage in enumerate(passages):
        parts += [("separator", separator if index else []), ("passage", passage)]
    return chain([*parts, ("question", draw(TOKENS))])


def replaced(prompt: ChunkedPrompt, index: int, ids) -> ChunkedPrompt:
    """The prompt with other token ids in one segment."""
    return chain((s.kind, ids if i == index else s.ids) for i, s in enumerate(prompt.segments))


def backwards(prompt: ChunkedPrompt) -> ChunkedPrompt:
    """An earlier request with the same passages in the opposite order."""
    return prompt.reordered(list(range(sum(s.kind == "passage" for s in prompt.segments)))[::-1])


def filled(model: Model, *requests: ChunkedPrompt) -> MemoryStore:
    """A store that has the chunks of these requests, each prefilled alone."""
    store = MemoryStore()
    for request in requests:
        Chunks().learn(model, request, store)
    return store


def learned(model: Model, *requests: ChunkedPrompt) -> MemoryStore:
    """A store that every method has seen these requests with, backwards."""
    store = MemoryStore()
    for source, request in product({make_method(name).source for name in CHUNKED}, requests):
        source.learn(model, backwards(request), store)
    return store


def run(model: Model, name: str, prompt: ChunkedPrompt, ratio: float = 1.0, store=None) -> Prefill:
    """The method after an earlier request with the same prompt, backwards, or on a given store."""
    return run_method(model, make_method(name, ratio), prompt, store)


def run_method(model: Model, method: Method, prompt: ChunkedPrompt, store=None) -> Prefill:
    if store is None:
        store = MemoryStore()
        method.learn(model, backwards(prompt), store)
    return method.prefill(model, prompt, store)


def prepared(selector: Selector, kv: StoredKV, prompt: ChunkedPrompt) -> Selector:
    """The selector after its look at the prompt."""
    truth = transformers_cache(kv.model, prompt.ids)
    return selector.prepared(Preview(prompt, kv, truth, lambda kv: fuse(kv, Selector(ratio=0))))


class DenseCache(DynamicCache):
    """All rows run in every layer, but a row whose KV is not recomputed there attends and is attended to as stored."""

    def __init__(self, stored: StoredKV, recomputed: list[torch.Tensor]):
        super().__init__()
        self.stored, self.recomputed = stored, recomputed

    def update(self, key_states, value_states, layer_idx, *args, **kwargs):
        mask = self.recomputed[layer_idx][:, None]
        base = self.stored.layer(layer_idx)
        keys, values = torch.where(mask, key_states, base[0]), torch.where(mask, value_states, base[1])
        return super().update(keys, values, layer_idx, *args, **kwargs)


@torch.inference_mode()
def transformers_logits(model: Model, ids) -> torch.Tensor:
    """Logits [tokens, vocabulary] of the model called without any cache."""
    return model.lm(input_ids=model.tensor(ids), use_cache=False).logits[0]


@torch.inference_mode()
def transformers_cache(model: Model, ids) -> DynamicCache:
    """The KV of all tokens in all layers, those outside a sliding window too."""
    cache = DynamicCache()
    model.lm(input_ids=model.tensor(ids), cache=cache, use_cache=True)
    return cache


def kv(cache: DynamicCache, rows: slice = slice(None), layers: slice = slice(None)) -> list[torch.Tensor]:
    return [t[0, :, rows] for layer in cache.layers[layers] for t in (layer.keys, layer.values)]


def reuse_alone(name: str) -> Method:
    """What the method stores and finds, with nothing of it recomputed."""
    return Method("reuse", make_method(name).source, Selector(ratio=0))


def behind_prefix(name: str) -> bool:
    return make_method(name).source.keeps == Chunks(behind_prefix=True).keeps


def exact_tokens(name: str, prompt: ChunkedPrompt) -> int:
    """How many first tokens of a prompt with a prefix are stored just as full prefill makes them."""
    chunks = prompt.chunks[:2] if behind_prefix(name) else prompt.chunks[:1]
    return chunks[-1].stop


def all_equal(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def assert_close(actual: list[torch.Tensor], expected: list[torch.Tensor], tolerance: float = TOLERANCE) -> None:
    for x, y in zip(actual, expected, strict=True):
        torch.testing.assert_close(x.cpu(), y.cpu(), atol=tolerance, rtol=tolerance)


def assert_identical(a: Prefill, b: Prefill) -> None:
    assert torch.equal(a.logits, b.logits)
    assert all_equal(kv(a.cache), kv(b.cache))


def assert_full(model: Model, prompt: ChunkedPrompt, result: Prefill) -> None:
    """Logits and all KV are those of transformers' own full prefill."""
    assert_close([result.logits], [transformers_logits(model, prompt.ids)[-1]])
    assert_close(kv(result.cache), kv(transformers_cache(model, prompt.ids)))


def stored_tensors(store: MemoryStore) -> list[torch.Tensor]:
    return [t for _, chunk in sorted(store._chunks.items()) for t in (*chunk.keys, *chunk.values)]


def digest(store: MemoryStore) -> str:
    return hashlib.sha256(b"".join(t.cpu().numpy().tobytes() for t in stored_tensors(store))).hexdigest()


@torch.inference_mode()
def decode(model: Model, cache: DynamicCache, ids, step: int = 1) -> torch.Tensor:
    """Logits [tokens, vocabulary] of `ids` fed `step` at a time; checks the cache's length after each forward."""
    logits, begun = [], cache.get_seq_length()
    for at in range(0, len(ids), step):
        part = ids[at : at + step]
        logits.append(model.lm(input_ids=model.tensor(part), cache=cache, use_cache=True).logits[0])
        assert cache.get_seq_length() == begun + at + len(part)
        assert {layer.keys.shape[2] for layer in cache.layers} == {begun + at + len(part)}
    return torch.cat(logits)
