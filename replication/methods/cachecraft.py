"""Cache-Craft (2502.15734): chunks are kept as an earlier prompt made them, with the attention that they paid there.

Several variants of a chunk may be kept, one for each context; the one is reused whose old prefix overlaps most with the
new one (beta'). What is recomputed depends on how much a chunk attended to a prefix that is missing now (CFO), and goes
to the tokens that attended to it most (see `context_impact` and the selector `cachecraft`).

As the original, but: alpha is set prompt by prompt so that the recomputed tokens meet the ratio's budget (the original
fits one alpha on validation data); variants beyond the first `VARIANTS` are not kept, where the original evicts by use;
and no chunk is dropped from recompute after the first layers for being out of the question's focus.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from replication.attention import watched
from replication.chunk import ChunkKV, cut
from replication.context_impact import Attended, overlap
from replication.fuse import fuse
from replication.methods.base import METHODS, Entry, Method
from replication.model import Model
from replication.prompt import ChunkedPrompt, Segment
from replication.selectors.base import Selector
from replication.selectors.cachecraft import CacheCraft
from replication.store import ChunkStore, chunk_key
from replication.stored import Piece, StoredKV

VARIANTS = 5


class _Shares:
    """Attention [segments, tokens] of every token to every segment, summed over the segment's tokens; collected while
    `watched`, where a layer may compute its rows in parts, each over the keys up to its last row."""

    def __init__(self, prompt: ChunkedPrompt, layers: int):
        self.spans = [slice(s.start, s.stop) for s in prompt.segments]
        self.layers = layers
        self.total = torch.zeros(len(self.spans), len(prompt))

    def __call__(self, weights: torch.Tensor) -> None:
        mean = weights.float().mean(0).cpu() / self.layers
        rows = slice(mean.shape[1] - mean.shape[0], mean.shape[1])
        self.total[:, rows] += torch.stack([mean[:, span].sum(1) for span in self.spans])


@dataclass(frozen=True)
class InContext:
    """Chunks as full prefill of an earlier prompt made them, in up to `VARIANTS` contexts."""

    move: ClassVar[bool] = True
    keeps: ClassVar[str] = "chunks in the context of earlier prompts"

    def learn(self, model: Model, earlier: ChunkedPrompt, store: ChunkStore) -> None:
        shares = _Shares(earlier, len(model.layers))
        with watched(model, shares):
            cache = fuse(StoredKV(model, earlier.ids, []), Selector(ratio=0)).cache
        for segment in earlier.chunks:
            context = earlier.ids[: segment.start]
            kept = _variants(model, segment.ids, store)
            if len(kept) < VARIANTS and all(chunk.context != context for chunk in kept):
                chunk = replace(cut(cache, context, segment.ids), attended=_attended(earlier, segment, shares.total))
                store.put(_variant_key(model, segment.ids, len(kept)), chunk)

    def find(self, model: Model, prompt: ChunkedPrompt, store: ChunkStore) -> list[Piece]:
        pieces = []
        for segment in prompt.chunks:
            context, before = prompt.ids[: segment.start], [s.ids for s in prompt.chunks if s.stop <= segment.start]
            # a store that keeps K and V alone has lost what a variant attended to
            variants = [chunk for chunk in _variants(model, segment.ids, store) if chunk.attended]
            if variants:
                # an exact prefix is best, and its overlap is no higher than that of a shorter one
                best = max(variants, key=lambda c: (c.context == context, overlap(c.attended, c.context, before)))
                pieces.append(Piece(best, segment.start))
        return pieces


def _attended(prompt: ChunkedPrompt, segment: Segment, shares: torch.Tensor) -> Attended:
    own = shares[:, segment.start : segment.stop]
    earlier = [i for i, s in enumerate(prompt.segments) if s in prompt.chunks and s.stop <= segment.start]
    return Attended(
        spans=tuple((prompt.segments[i].start, prompt.segments[i].stop) for i in earlier),
        inter=tuple(own[earlier].sum(1).tolist()),
        intra=own[prompt.segments.index(segment)].sum().item(),
        tokens=tuple(own[earlier].sum(0).tolist()),
    )


def _variants(model: Model, ids: tuple[int, ...], store: ChunkStore) -> list[ChunkKV]:
    found = []
    while len(found) < VARIANTS and (chunk := store.get(_variant_key(model, ids, len(found)))) is not None:
        found.append(chunk)
    return found


def _variant_key(model: Model, ids: tuple[int, ...], number: int) -> str:
    return chunk_key(f"{model.fingerprint} variant {number}", ids, dtype=model.dtype)


METHODS["cachecraft"] = Entry(
    lambda ratio: Method("cachecraft", InContext(), CacheCraft(ratio)),
    "Cache-Craft: chunks kept as earlier prompts made them, recomputed by how much they depend on a changed prefix",
)
