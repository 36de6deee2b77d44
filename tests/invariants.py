"""Invariants of fused prefill, asserted of one model: `test_fuse` and `test_rotary` have them of every family on the
CPU, `test_device` on another device."""

import torch
from families import VOCABULARY
from prefills import (
    NEUTRAL,
    a_prompt,
    all_equal,
    assert_close,
    assert_full,
    assert_identical,
    behind_prefix,
    decode,
    digest,
    filled,
    kv,
    learned,
    replaced,
    run,
    run_method,
    tokens,
)
from transformers import DynamicCache

from replication.chunk import ChunkKV, prefill_chunk
from replication.methods import make_method
from replication.model import Model
from replication.prompt import ChunkedPrompt, chain
from replication.stored import Piece, StoredKV

# --- moved keys


@torch.inference_mode()
def kv_at(model: Model, ids: tuple[int, ...], start: int) -> ChunkKV:
    """KV of `ids` alone at positions start.. by transformers. Rotary attention sees distances only, so that in every
    layer the keys of another start differ by a rotation and the values not at all."""
    cache = DynamicCache()
    positions = model.tensor(range(start, start + len(ids)))
    model.lm(input_ids=model.tensor(ids), position_ids=positions, cache=cache, use_cache=True)
    return ChunkKV(ids, start, [x.keys[0] for x in cache.layers], [x.values[0] for x in cache.layers])


def assert_near(actual: list[torch.Tensor], expected: list[torch.Tensor], tolerance: float = 1e-4) -> None:
    """Relative to the largest number of the layer."""
    for index, (a, b) in enumerate(zip(actual, expected, strict=True)):
        error = float((a.float() - b.float()).abs().max() / b.float().abs().max())
        assert error <= tolerance, f"layer {index}: relative error {error}"


def assert_moved_keys_are_those_of_the_new_place(model: Model) -> None:
    """Forward, backward and not at all in one prompt, with a gap that nothing covers."""
    layout = [((5, 6, 7), 0, 0), ((8, 9), 0, 3), ((10, 11, 12, 13), 90, 8), ((14,), 2, 12), ((15, 16), 13, 13)]
    ids = (5, 6, 7, 8, 9, 2, 2, 2, 10, 11, 12, 13, 14, 15, 16)
    pieces = [Piece(kv_at(model, chunk, start), target) for chunk, start, target in layout]
    repaired, as_stored = StoredKV(model, ids, pieces), StoredKV(model, ids, pieces, move=False)
    for index in range(len(model.layers)):
        keys, values = repaired.layer(index)
        plain_keys, plain_values = as_stored.layer(index)
        for piece in pieces:
            span = slice(piece.target, piece.stop)
            there = kv_at(model, piece.chunk.ids, piece.target)
            assert_near([keys[0, :, span], values[0, :, span]], [there.keys[index], there.values[index]])
            if piece.chunk.start == piece.target:
                assert torch.equal(keys[0, :, span], piece.chunk.keys[index])
            assert torch.equal(plain_keys[0, :, span], piece.chunk.keys[index])
            assert torch.equal(plain_values[0, :, span], piece.chunk.values[index])


# --- a true prefix; hits and misses


def assert_one_true_prefix_is_exact(model: Model, name: str) -> None:
    prompt = chain([("passage", tokens(12, 1)), ("question", tokens(4, 2))])
    method = NEUTRAL.get(name, make_method(name, 0.3))
    result, reference = run_method(model, method, prompt), run(model, "prefix", prompt)
    assert_close([result.logits], [reference.logits])
    assert_close(kv(result.cache), kv(reference.cache))
    assert_full(model, prompt, result)
    if name != "full":
        assert result.report.rows == reference.report.rows == [4] * 4
        assert result.report.reused == 12
        assert result.report.selected == []


@torch.inference_mode()
def segment_by_segment(model: Model, prompt: ChunkedPrompt, stored: StoredKV) -> tuple[torch.Tensor, DynamicCache]:
    """Full reuse as one would write it by hand: append what is stored, and run the model on what is not."""
    cache, covered = DynamicCache(), {p.target for p in stored.pieces}
    for segment in prompt.segments:
        if segment.start in covered:
            for index in range(len(model.layers)):
                cache.update(*(t[:, :, segment.start : segment.stop] for t in stored.layer(index)), index)
        else:
            logits = model.lm(input_ids=model.tensor(segment.ids), cache=cache, use_cache=True).logits[0, -1]
    return logits, cache


def assert_a_pattern_of_hits_works(model: Model, hits: tuple[bool, bool, bool]) -> None:
    """hits: which of three chunks are stored."""
    prompt = a_prompt((6, 3, 9))
    chunks = [s for s, hit in zip(prompt.chunks, hits, strict=True) if hit]
    store = filled(model, *(chain([("passage", s.ids), ("question", (2,))]) for s in chunks))
    found = sum(len(s.ids) for s in chunks)

    reuse = run(model, "full-reuse", prompt, store=store)
    assert reuse.report.reused == found
    assert reuse.report.rows == [len(prompt) - found] * 4
    pieces = [Piece(prefill_chunk(model, s.ids), s.start) for s in chunks]
    logits, cache = segment_by_segment(model, prompt, StoredKV(model, prompt.ids, pieces))
    assert_close([reuse.logits], [logits])
    assert_close(kv(reuse.cache), kv(cache))

    result = run(model, "cacheblend-paper", prompt, 1.0, store)
    assert result.report.reused == found
    assert_full(model, prompt, result)


# --- the store is left alone


def assert_requests_repeat_and_leave_the_store(model: Model, name: str) -> None:
    """The same request three times, and A, B, A, with generation in between."""
    a = a_prompt()
    b = a.reordered([2, 0, 1])
    store = learned(model, a, b)
    before = digest(store)
    first = [run(model, name, a, 0.4, store) for _ in range(3)]
    for repeat in first[1:]:
        assert_identical(repeat, first[0])
        assert repeat.report.selected == first[0].report.selected
    kept = [t.clone() for t in kv(first[0].cache)]
    decode(model, first[1].cache, tokens(3, 7))
    other = run(model, name, b, 0.4, store)
    decode(model, other.cache, tokens(3, 8))
    assert_identical(run(model, name, a, 0.4, store), first[0])
    assert all_equal(kv(first[0].cache), kept)
    assert digest(store) == before


# --- who sees whom


# these choose by places alone
PLACED = ("first-k", "uniform", "legolink-k", "seam-last-k")


def assert_rows_see_nothing_later(model: Model, name: str, to_the_bit: bool = True) -> None:
    """Whatever changes at a token, the KV of all rows before it stays; `name`: of a method whose choice does not
    depend on the question, where the passages change too not on any KV."""
    prompt = a_prompt()
    question, last = len(prompt.segments) - 1, len(prompt.segments) - 2
    changes = ((question, 0), (question, 2), (last, 6), (last, 3))
    for index, at in changes if name in PLACED else changes[:2]:
        ids = list(prompt.segments[index].ids)
        ids[at:] = [2 + (i + 1) % (VOCABULARY - 2) for i in ids[at:]]
        changed = replaced(prompt, index, ids)
        row = prompt.segments[index].start + at
        before, after = run(model, name, prompt, 0.5), run(model, name, changed, 0.5)
        assert before.report.selected == after.report.selected
        assert before.report.selected
        earlier = kv(before.cache, slice(row)), kv(after.cache, slice(row))
        if to_the_bit:
            assert all_equal(*earlier)
        else:
            assert_close(*earlier)
        assert not all_equal(kv(before.cache, slice(row, row + 1)), kv(after.cache, slice(row, row + 1)))


def assert_no_attention_across_chunks(model: Model, name: str, in_reach: bool = True) -> None:
    """Other tokens in one passage leave the KV of the next as it is, and reach the question where it is in reach."""
    prompt = a_prompt((5, 9, 7))
    for index in (1,) if behind_prefix(name) else (0, 1):
        changed = replaced(prompt, index, tokens(len(prompt.segments[index].ids), 55))
        before, after = run(model, name, prompt), run(model, name, changed)
        behind = slice(prompt.segments[index].stop, prompt.segments[-1].start)
        assert all_equal(kv(before.cache, behind), kv(after.cache, behind))
        if in_reach:
            assert not torch.equal(before.logits, after.logits)
        full = [run(model, "first-k", p, 1.0).cache for p in (prompt, changed)]
        assert all_equal(kv(full[0], behind, slice(1)), kv(full[1], behind, slice(1))), "layer 0 sees no other token"
        assert not all_equal(kv(full[0], behind), kv(full[1], behind))
