"""Moved keys equal keys computed at the new place, and models for which that cannot hold are refused."""

import pytest
import torch
from conftest import FAMILIES, VOCABULARY, tiny_lm
from hypothesis import given, settings
from hypothesis import strategies as st
from invariants import assert_moved_keys_are_those_of_the_new_place, assert_near, kv_at

from replication.chunk import ChunkKV, prefill_chunk
from replication.model import Model, wrap
from replication.stored import Piece, StoredKV

PLACES = st.integers(0, 480)  # close to the end of most tiny models' context of 512
TOKENS = st.lists(st.integers(2, VOCABULARY - 1), min_size=1, max_size=6).map(tuple)


def within(model: Model, place: int) -> int:
    """A place for a few tokens, at `place` or near the end of the model's context."""
    return min(place, model.context_length - 32)


def moved(model: Model, chunk: ChunkKV, target: int) -> list[torch.Tensor]:
    """The keys of every layer after the move, by the rotation alone."""
    angles = model.rotation.angles(torch.full((len(chunk.ids),), target - chunk.start), model.dtype)
    keys = [k.clone() for k in chunk.keys]
    for index, k in enumerate(keys):
        model.rotation.move(index, k, angles)
    return keys


@pytest.mark.parametrize("family", FAMILIES)
@given(ids=TOKENS, start=PLACES, target=PLACES)
@settings(deadline=None, max_examples=15)
def test_moved_keys_equal_keys_computed_at_the_target(tiny, family, ids, start, target):
    model = tiny(family)
    start, target = within(model, start), within(model, target)
    assert_near(moved(model, kv_at(model, ids, start), target), kv_at(model, ids, target).keys)


@pytest.mark.parametrize(("start", "target"), [(0, 37), (37, 0), (5, 480), (480, 5), (9, 10)])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_move_is_not_the_identity(tiny, family, start, target):
    """Without it the test above could pass on a model that ignores positions."""
    model = tiny(family)
    start, target = within(model, start), within(model, target)
    there = kv_at(model, (3, 4, 5), target).keys
    differ = [
        not torch.allclose(a, b, atol=1e-2) for a, b in zip(kv_at(model, (3, 4, 5), start).keys, there, strict=True)
    ]
    assert differ == ([True, False, True, False] if family == "smollm3" else [True] * 4)


@pytest.mark.parametrize("family", FAMILIES)
@given(
    ids=TOKENS,
    before=st.lists(st.integers(2, VOCABULARY - 1), min_size=1, max_size=20).map(tuple),
    ahead=st.lists(st.integers(2, VOCABULARY - 1), max_size=40).map(tuple),
)
@settings(deadline=None, max_examples=15)
def test_layer_0_keys_of_a_chunk_stored_behind_context(tiny, family, ids, before, ahead):
    """Prefilled behind one context and moved behind another, forward or backward."""
    model = tiny(family)
    stored = StoredKV(model, (*ahead, *ids), [Piece(prefill_chunk(model, ids, before), len(ahead))])
    keys, values = stored.layer(0)
    there = prefill_chunk(model, ids, ahead)
    assert_near([keys[0, :, len(ahead) :]], there.keys[:1])
    assert_near([values[0, :, len(ahead) :]], there.values[:1])


@pytest.mark.parametrize("family", FAMILIES)
def test_several_chunks_move_at_once(tiny, family):
    assert_moved_keys_are_those_of_the_new_place(tiny(family))


def test_stored_marks_what_full_prefill_would_compute(tiny):
    """Exact means: the same position, and the very tokens before it."""
    model = tiny("llama")
    ids = (5, 6, 7, 8, 9, 10, 11, 12)
    first, behind_it, alone = prefill_chunk(model, (5, 6)), prefill_chunk(model, (7,), (5, 6)), kv_at(model, (9,), 0)
    behind_another = prefill_chunk(model, (10, 11), (6, 5, 7, 8, 9))
    pieces = [Piece(first, 0), Piece(behind_it, 2), Piece(alone, 4), Piece(behind_another, 5)]
    stored = StoredKV(model, ids, pieces)
    assert stored.stored.tolist() == [True, True, True, False, True, True, True, False]
    assert stored.exact.tolist() == [True, True, True, False, False, False, False, False]


def test_coarse_dtype_moves_within_its_rounding():
    model = wrap("bf16", tiny_lm("llama").to(torch.bfloat16))
    keys = moved(model, kv_at(model, (3, 4, 5), 7), 400)
    assert {k.dtype for k in keys} == {torch.bfloat16}
    assert_near(keys[:1], kv_at(model, (3, 4, 5), 400).keys[:1], tolerance=2**-7)


@pytest.mark.parametrize(("start", "target"), [(0, 1), (0, 5_000), (5_000, 0), (300, 77), (4_000, 8_150)])
def test_real_model(smollm2, start, target):
    ids = tuple(range(1000, 1010))
    assert_near(moved(smollm2, kv_at(smollm2, ids, start), target), kv_at(smollm2, ids, target).keys, tolerance=1e-3)


def test_real_model_at_layer_0(smollm2):
    ids, before, ahead = (1000, 1001, 1002), tuple(range(200, 231)), tuple(range(500, 570))
    chunk = prefill_chunk(smollm2, ids, before)
    assert_near(moved(smollm2, chunk, len(ahead))[:1], prefill_chunk(smollm2, ids, ahead).keys[:1])
