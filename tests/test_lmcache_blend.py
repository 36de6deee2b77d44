"""LMCache's real blender against our LMCache variant, and each way in which LMCache differs from the paper."""

import itertools

import pytest
import torch
from conftest import tiny_lm
from hypothesis import given, settings
from hypothesis import strategies as st
from prefills import kv, transformers_cache

from replication.chunk import ChunkKV, prefill_chunk
from replication.data import load
from replication.errors import ReplicationError
from replication.fuse import Prefill, fuse
from replication.lmcache_blend import LMCacheBlender, join
from replication.methods import Chunks, make_method
from replication.model import Model, load_model, wrap
from replication.prompt import ChunkedPrompt, build_prompt, chain
from replication.store import MemoryStore
from replication.stored import Piece, StoredKV

pytest.importorskip("lmcache", reason="LMCache is not installed: run `bash scripts/engines/lmcache.sh`")

TOLERANCE = 1e-4
RATIOS = st.sampled_from((0.05, 0.15, 0.3, 0.5, 0.8, 1.0))
# none of the separator's ids, and no shorter than it, which LMCache cannot do
PASSAGE = st.lists(st.integers(1000, 1100), min_size=2, max_size=40).map(tuple)


@pytest.fixture(scope="module")
def model(tiny_directory) -> Model:
    """A tiny random Llama that has a tokenizer, which LMCache needs to find its separator."""
    return load_model(tiny_directory)


@pytest.fixture(scope="module")
def referee(model) -> LMCacheBlender:
    referee = LMCacheBlender(model, tokens=512)
    yield referee
    referee.close()


def prompt_of(passages, separator, question=(1500, 1501, 1502)) -> ChunkedPrompt:
    parts = [("prefix", passages[0]), *(("passage", p) for p in passages[1:]), ("question", question)]
    return join(chain(parts), separator)


def chunks_of(model: Model, prompt: ChunkedPrompt) -> dict[int, ChunkKV]:
    """Each stored segment of the prompt, prefilled alone, by its place."""
    return {segment.start: prefill_chunk(model, segment.ids) for segment in prompt.chunks}


def by_lmcache(referee: LMCacheBlender, prompt: ChunkedPrompt, chunks, ratio: float, mask="position") -> Prefill:
    referee.clear()
    for chunk in chunks.values():
        referee.store(chunk)
    return referee.prefill(prompt.ids, (ratio,), mask)


def separators_of(prompt: ChunkedPrompt, found: int) -> set[int]:
    """Places of the separators among the tokens that LMCache loads."""
    return {i for s in prompt.segments if s.kind == "separator" and s.start < found for i in range(s.start, s.stop)}


def ours_at_the_same_budget(model: Model, prompt: ChunkedPrompt, chunks, theirs: Prefill, zeroed: bool) -> Prefill:
    """Our variant, recomputing as many stored tokens as LMCache did; zeroed: separators count as stored zeros."""
    pieces = [Piece(chunk, start) for start, chunk in chunks.items()]
    if zeroed:
        pieces += [Piece(zeros(model, s.ids), s.start) for s in prompt.segments[:-2] if s.kind == "separator"]
    stored = StoredKV(model, prompt.ids, pieces)
    candidates = (stored.stored & ~stored.exact).nonzero()[:, 0].tolist()
    budget = len(set(theirs.report.selected) & set(candidates))
    return fuse(stored, make_method("cacheblend-lmcache", budget / max(1, len(candidates))).selector)


def zeros(model: Model, ids) -> ChunkKV:
    config = model.lm.config
    layers = [torch.zeros(config.num_key_value_heads, len(ids), config.head_dim) for _ in model.layers]
    return ChunkKV(ids, 0, layers, layers)


def assert_equal_kv(a: Prefill, b: Prefill, rows, layers: slice) -> None:
    rows = torch.tensor(sorted(rows))
    for x, y in zip(kv(a.cache, layers=layers), kv(b.cache, layers=layers), strict=True):
        torch.testing.assert_close(x[:, rows], y[:, rows], atol=TOLERANCE, rtol=TOLERANCE)


def check_against_ours(model: Model, referee: LMCacheBlender, prompt: ChunkedPrompt, ratio: float) -> None:
    chunks = chunks_of(model, prompt)
    theirs = by_lmcache(referee, prompt, chunks, ratio)
    found = prompt.segments[-3].stop
    separators = separators_of(prompt, found)
    assert theirs.report.reused == found
    assert len(theirs.report.selected) == max(1, int(found * ratio))
    exact = set(range(prompt.segments[0].stop))  # a true prefix: nothing in it deviates, so we leave it out

    same = ours_at_the_same_budget(model, prompt, chunks, theirs, zeroed=True)
    assert same.report.selected == sorted(set(theirs.report.selected) - exact)
    assert_equal_kv(theirs, same, range(found), slice(1, None))
    assert_equal_kv(theirs, same, set(range(found)) - separators, slice(0, 1))

    plain = ours_at_the_same_budget(model, prompt, chunks, theirs, zeroed=False)
    assert plain.report.selected == sorted(set(theirs.report.selected) - exact - separators)
    if separators <= set(theirs.report.selected):
        assert_equal_kv(theirs, plain, range(found), slice(1, None))


@given(st.lists(PASSAGE, min_size=2, max_size=5), RATIOS, st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=40)
def test_the_same_indices_and_kv_for_any_prompt(model, referee, passages, ratio, rng):
    rng.shuffle(passages)
    check_against_ours(model, referee, prompt_of(passages, referee.separator), ratio)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_the_same_in_every_order(model, referee, order):
    passages = [(1000, 1001), (1002,) * 30, tuple(range(1010, 1030))]
    check_against_ours(model, referee, prompt_of([(1050,) * 5, *(passages[i] for i in order)], referee.separator), 0.3)


def test_the_same_on_real_weights(smollm2):
    referee = LMCacheBlender(smollm2)
    example = load("synthetic", n=1, passages=3).examples[0]
    prompt = build_prompt(example.passages, example.question, smollm2.tokenizer)
    for order, ratio in (([0, 1, 2], 0.15), ([2, 0, 1], 0.4)):
        check_against_ours(smollm2, referee, join(prompt.reordered(order), referee.separator), ratio)
    referee.close()


def test_the_same_on_another_family(model):
    """Qwen2 adds biases to the projections."""
    vocabulary = model.lm.config.vocab_size
    other = wrap("tiny-qwen2", tiny_lm("qwen2", vocab_size=vocabulary), model.tokenizer)
    referee = LMCacheBlender(other, tokens=512)
    passages = [(1050,) * 5, (1002,) * 30, tuple(range(1010, 1030))]
    for ratio in (0.15, 0.5):
        check_against_ours(other, referee, prompt_of(passages, referee.separator), ratio)
    referee.close()


def test_the_registered_method_chooses_the_same(model, referee):
    """By way of its store and source, not only by the selector."""
    prompt = prompt_of([(1050,) * 5, (1002,) * 30, tuple(range(1010, 1030))], referee.separator)
    theirs = by_lmcache(referee, prompt, chunks_of(model, prompt), 0.3)
    chosen = sorted(set(theirs.report.selected) - separators_of(prompt, len(prompt)) - set(range(5)))
    store, method = MemoryStore(), make_method("cacheblend-lmcache", len(chosen) / 50)
    method.learn(model, prompt, store)
    assert method.prefill(model, prompt, store).report.selected == chosen


# --- where LMCache differs from the paper


def test_only_one_check_layer_is_possible(model):
    """The paper filters gradually, layer by layer; with a second check layer LMCache compares K of other rows."""
    referee = LMCacheBlender(model, check_layers=(1, 2), tokens=512)
    prompt = prompt_of([(1050,) * 5, (1002,) * 30], referee.separator)
    for chunk in chunks_of(model, prompt).values():
        referee.store(chunk)
    with pytest.raises(RuntimeError, match="size of tensor"):
        referee.prefill(prompt.ids, (0.3,))
    referee.close()


def test_only_the_first_ratio_is_used(model, referee):
    """Its configuration takes one for each check layer."""
    prompt = prompt_of([(1050,) * 5, (1002,) * 30, tuple(range(1010, 1030))], referee.separator)
    first = by_lmcache(referee, prompt, chunks_of(model, prompt), 0.3).report.selected
    assert referee.prefill(prompt.ids, (0.3, 0.9)).report.selected == first
    assert referee.prefill(prompt.ids, (0.9, 0.3)).report.selected != first


def test_separators_stay_zero_in_layer_0_even_when_all_is_recomputed(model, referee):
    """So not even at ratio 1 is it full prefill: what comes after attends to keys and values of zero."""
    prompt = prompt_of([(1050,) * 5, (1002,) * 30, tuple(range(1010, 1030))], referee.separator)
    result = by_lmcache(referee, prompt, chunks_of(model, prompt), 1.0)
    separators = torch.tensor(sorted(separators_of(prompt, result.report.reused)))
    full = transformers_cache(model, prompt.ids)
    found = slice(0, result.report.reused)
    for x, y in zip(kv(result.cache, found, slice(1, None)), kv(full, found, slice(1, None)), strict=True):
        torch.testing.assert_close(x, y, atol=TOLERANCE, rtol=TOLERANCE)
    assert all(not t[:, separators].any() for t in kv(result.cache, layers=slice(0, 1)))
    question = slice(result.report.reused, None)
    assert not torch.allclose(kv(result.cache, question)[-1], kv(full, question)[-1], atol=TOLERANCE)


def test_separators_that_are_not_chosen_stay_zero_in_all_layers(model, referee):
    prompt = prompt_of([(1050,) * 5, *[(1002 + i,) * 3 for i in range(6)]], referee.separator)
    result = by_lmcache(referee, prompt, chunks_of(model, prompt), 0.05)
    left = sorted(separators_of(prompt, result.report.reused) - set(result.report.selected))
    assert left
    assert all(not t[:, left].any() for t in kv(result.cache))


@pytest.mark.parametrize("there", list(itertools.product((True, False), repeat=3)))
def test_lookup_stops_at_the_first_missing_segment(model, referee, there):
    """Ours uses every stored chunk, wherever another one is missing."""
    prompt = prompt_of([(1050,) * 5, (1002,) * 30, tuple(range(1010, 1030))], referee.separator)
    stored = [segment for segment, is_there in zip(prompt.chunks, there, strict=True) if is_there]
    referee.clear()
    store = MemoryStore()
    for segment in stored:
        referee.store(prefill_chunk(model, segment.ids))
        Chunks().learn(model, chain([("passage", segment.ids), ("question", (1,))]), store)
    run = prompt.chunks[: there.index(False)] if False in there else prompt.chunks
    assert referee.found(prompt.ids) == (run[-1].stop if run else 0)
    assert sum(len(p.chunk.ids) for p in Chunks().find(model, prompt, store)) == sum(len(s.ids) for s in stored)


def test_the_separators_first_token_is_dropped(model, referee):
    """LMCache strips a BOS that SmolLM2's tokenizer does not add: text joined by the separator itself is not found."""
    whole = tuple(model.tokenizer.encode(" # # "))
    assert referee.separator == whole[1:]
    passages = [(1050,) * 5, (1002,) * 30]
    chunks = chunks_of(model, prompt_of(passages, referee.separator))
    assert by_lmcache(referee, prompt_of(passages, referee.separator), chunks, 0.3).report.reused > 35
    assert by_lmcache(referee, prompt_of(passages, whole), chunks, 0.3).report.reused == 0


def test_a_segment_shorter_than_the_separator_cannot_be_stored(model, referee):
    with pytest.raises(RuntimeError, match="maximum size for tensor"):
        referee.store(prefill_chunk(model, (1000,)))


def test_flash_attentions_mask_lets_recomputed_rows_see_later_tokens(model, referee):
    """Same choice, but from the check layer on other K and V: the mask that LMCache calls is made for suffixes."""
    prompt = prompt_of([(1050,) * 5, (1002,) * 30, tuple(range(1010, 1030))], referee.separator)
    chunks = chunks_of(model, prompt)
    exact, seen = (by_lmcache(referee, prompt, chunks, 0.3, mask) for mask in ("position", "end"))
    assert exact.report.selected == seen.report.selected
    found = slice(0, exact.report.reused)
    assert_equal_kv(exact, seen, range(found.stop), slice(0, 2))
    assert not torch.allclose(kv(exact.cache, found)[-1], kv(seen.cache, found)[-1], atol=0.01)


def test_its_attention_is_not_told_where_the_picked_rows_stand():
    """What its kernel gets for rows 0 and 1 is what it gets for rows 3 and 5: a causal mask for the last two rows."""
    from lmcache.v1.compute.attention.metadata import LMCFlashAttnMetadata

    told = []
    for picked in ([0, 1], [3, 5]):
        ends = torch.tensor([0, 6])
        metadata = LMCFlashAttnMetadata(ends, torch.tensor([6]), ends, 6, 6)
        metadata.update_from_top_indices(torch.tensor(picked))
        told.append(str(metadata))
    assert told[0] == told[1]


def test_other_models_are_refused(tiny):
    with pytest.raises(ReplicationError, match="LlamaForCausalLM"):
        LMCacheBlender(tiny("gemma3_text"))
