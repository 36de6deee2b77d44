"""Invariants of fused prefill: against transformers itself, and a dense reference that shares none of the fusion."""

from itertools import permutations, product

import pytest
import torch
from families import CORE, EXPERTS, FAMILIES, SLIDING, VOCABULARY, WINDOW, tiny_lm
from hypothesis import given, settings
from hypothesis import strategies as st
from invariants import (
    assert_a_pattern_of_hits_works,
    assert_no_attention_across_chunks,
    assert_one_true_prefix_is_exact,
    assert_requests_repeat_and_leave_the_store,
    assert_rows_see_nothing_later,
)
from prefills import (
    BLENDING,
    CHUNKED,
    EXACT,
    HKVD_FEW,
    LENGTHS,
    NEUTRAL,
    RATIOS,
    REUSING,
    TOLERANCE,
    DenseCache,
    a_prompt,
    all_equal,
    assert_close,
    assert_full,
    assert_identical,
    backwards,
    crossed,
    decode,
    digest,
    exact_tokens,
    filled,
    kv,
    learned,
    prepared,
    prompts,
    replaced,
    reuse_alone,
    run,
    run_method,
    stored_tensors,
    tokens,
    transformers_cache,
    transformers_logits,
)
from transformers import DynamicCache

from replication.chunk import prefill_chunk
from replication.data.example import Passage
from replication.errors import ReplicationError
from replication.fuse import Prefill, fuse
from replication.methods import METHODS, Chunks, Method, make_method
from replication.model import Model, wrap
from replication.prompt import ChunkedPrompt, build_prompt, chain
from replication.selectors import SELECTORS, Selector
from replication.selectors.hkvd import HKVD
from replication.store import DirectoryStore, MemoryStore
from replication.stored import Piece, StoredKV

# --- ratio 1, ratio 0 and full prefill


@pytest.mark.parametrize(("family", "name"), crossed(BLENDING))
def test_ratio_1_is_full_prefill(tiny, family, name):
    prompt = a_prompt()
    result = run(tiny(family), name, prompt)
    assert_full(tiny(family), prompt, result)
    assert result.report.reused == sum(LENGTHS)
    # a true prefix needs no recomputation even now
    assert result.report.selected == list(range(exact_tokens(name, prompt), sum(LENGTHS)))


@given(prompts(), st.sampled_from(FAMILIES), st.sampled_from(BLENDING))
@settings(deadline=None, max_examples=60)
def test_ratio_1_is_full_prefill_for_any_prompt(tiny, prompt, family, name):
    assert_full(tiny(family), prompt, run(tiny(family), name, prompt))


@pytest.mark.parametrize(("family", "name"), crossed(BLENDING))
def test_ratio_0_is_full_reuse_bit_for_bit(tiny, family, name):
    model, prompt = tiny(family), a_prompt()
    store = learned(model, prompt)
    result = run(model, name, prompt, 0.0, store)
    assert_identical(result, reuse_alone(name).prefill(model, prompt, store))
    if make_method(name).source == Chunks():
        assert_identical(result, run(model, "full-reuse", prompt, store=store))
    assert result.report.rows == [4] * 4
    assert not torch.allclose(result.logits, transformers_logits(model, prompt.ids)[-1], atol=TOLERANCE)


@given(prompts(), st.sampled_from(FAMILIES), st.sampled_from(BLENDING))
@settings(deadline=None, max_examples=40)
def test_ratio_0_is_full_reuse_for_any_prompt(tiny, prompt, family, name):
    model, store = tiny(family), learned(tiny(family), prompt)
    assert_identical(run(model, name, prompt, 0.0, store), reuse_alone(name).prefill(model, prompt, store))


@given(prompts(), st.sampled_from(FAMILIES), st.sampled_from(EXACT))
@settings(deadline=None, max_examples=40)
def test_exact_methods_are_full_prefill(tiny, prompt, family, name):
    assert_full(tiny(family), prompt, run(tiny(family), name, prompt))


@pytest.mark.parametrize(("family", "name"), crossed(METHODS, SLIDING))
def test_beyond_the_sliding_window(tiny, family, name):
    """A passage several windows long: its stored KV was made under the window, and so must the fused one be."""
    model, prompt = tiny(family), a_prompt((3, 5 * WINDOW, 2 * WINDOW), question=WINDOW + 3)
    result = run(model, name, prompt)
    if name in REUSING:
        assert not torch.allclose(kv(result.cache)[-1], kv(transformers_cache(model, prompt.ids))[-1], atol=TOLERANCE)
    else:
        assert_full(model, prompt, result)


# --- a true prefix


@pytest.mark.parametrize(("family", "name"), crossed(METHODS))
def test_one_true_prefix_is_exact_prefix_caching(tiny, family, name):
    assert_one_true_prefix_is_exact(tiny(family), name)


@given(prompts(), prompts(), st.sampled_from(FAMILIES))
@settings(deadline=None, max_examples=25)
def test_prefix_caching_reuses_exactly_the_common_segments(tiny, earlier, prompt, family):
    model, method, store = tiny(family), make_method("prefix"), MemoryStore()
    prompt = chain([(s.kind, s.ids) for s in earlier.segments[:2]] + [(s.kind, s.ids) for s in prompt.segments])
    method.learn(model, earlier, store)
    result = method.prefill(model, prompt, store)
    common = 0
    for a, b in zip(earlier.segments[:-1], prompt.segments[:-1], strict=False):
        if a.ids != b.ids:
            break
        common += len(a.ids)
    assert result.report.reused == common
    assert_full(model, prompt, result)


def test_prefix_caching_reuses_nothing_behind_a_swap(tiny):
    model, prompt, store = tiny("llama"), a_prompt(), MemoryStore()
    method = make_method("prefix")
    method.learn(model, prompt, store)
    assert method.prefill(model, prompt.reordered([0, 2, 1]), store).report.reused == LENGTHS[0] + LENGTHS[1]
    assert method.prefill(model, prompt.reordered([1, 0, 2]), store).report.reused == LENGTHS[0]
    assert method.prefill(model, replaced(prompt, 0, tokens(5, 77)), store).report.reused == 0


def test_blending_behind_a_longer_exact_prefix(tiny):
    """Positions of the picked rows are those of the prompt, not of what follows the prefix."""
    model, prompt = tiny("llama"), a_prompt()
    head = prompt.ids[: LENGTHS[0] + LENGTHS[1]]
    rest = [Piece(prefill_chunk(model, s.ids), s.start) for s in prompt.segments[2:4]]
    pieces = [Piece(prefill_chunk(model, head), 0), *rest]
    result = fuse(StoredKV(model, prompt.ids, pieces), HKVD(1.0))
    assert_full(model, prompt, result)
    assert result.report.rows == [LENGTHS[2] + LENGTHS[3] + 4] * 4
    half = fuse(StoredKV(model, prompt.ids, pieces), HKVD(0.5))
    assert len(half.report.selected) == 4
    assert min(half.report.selected) >= len(head)
    assert_close(kv(half.cache, slice(len(head))), kv(transformers_cache(model, prompt.ids), slice(len(head))))


# --- what lies between: a dense reference


@torch.inference_mode()
def dense_reference(stored: StoredKV, selector: Selector, selected: list[int]) -> tuple[torch.Tensor, DynamicCache]:
    """What fused prefill with a fixed choice must give, by a plain full-length forward of the model."""
    model, rows = stored.model, torch.arange(len(stored.ids))
    early = ~stored.exact if selector.ratio else ~stored.stored
    late = ~stored.stored | torch.isin(rows, torch.tensor(selected, dtype=torch.long))
    last = selector.check_layer if selector.write_back else selector.check_layer - 1
    cache = DenseCache(stored, [early if i <= last else late for i in range(len(model.layers))])
    logits = model.lm(input_ids=model.tensor(stored.ids), cache=cache, use_cache=True).logits[0, -1]
    return logits, cache


FUSIONS = {
    "prompt": prompts(),
    "hits": st.lists(st.booleans(), min_size=6, max_size=6),
    "name": st.sampled_from(sorted(SELECTORS)),
    "ratio": RATIOS,
    "check_layer": st.integers(0, 3),
    "write_back": st.booleans(),
    "move": st.booleans(),
}


@pytest.mark.parametrize("family", CORE)
@given(**FUSIONS)
@settings(deadline=None, max_examples=25)
def test_fusion_equals_the_dense_reference(tiny, family, **fusion):
    assert_dense_reference(tiny(family), **fusion)


@pytest.mark.parametrize("family", [f for f in FAMILIES if f not in CORE])
@given(**FUSIONS)
@settings(deadline=None, max_examples=6)
def test_fusion_equals_the_dense_reference_in_other_families(tiny, family, **fusion):
    assert_dense_reference(tiny(family), **fusion)


def assert_dense_reference(model, prompt, hits, name, ratio, check_layer, write_back, move):
    pieces = [
        Piece(prefill_chunk(model, s.ids), s.start) for s, hit in zip(prompt.chunks, hits, strict=False) if hit
    ] or [Piece(prefill_chunk(model, prompt.chunks[0].ids), prompt.chunks[0].start)]
    selector = SELECTORS[name](ratio, check_layer=check_layer, write_back=write_back)
    selector = prepared(selector, StoredKV(model, prompt.ids, pieces, move), prompt)
    result = fuse(StoredKV(model, prompt.ids, pieces, move), selector, transformers_cache(model, prompt.ids))
    logits, cache = dense_reference(StoredKV(model, prompt.ids, pieces, move), selector, result.report.selected)
    assert_close([result.logits], [logits])
    assert_close(kv(result.cache), kv(cache))


@pytest.mark.parametrize("write_back", [True, False])
def test_what_the_check_layer_writes_back(tiny, write_back):
    model, prompt = tiny("llama"), a_prompt()
    stored = StoredKV(model, prompt.ids, Chunks().find(model, prompt, filled(model, prompt)))
    result = fuse(stored, HKVD(0.3, write_back=write_back))
    passed_over = sorted(set(range(LENGTHS[0], sum(LENGTHS))) - set(result.report.selected))
    at_check, base = result.cache.layers[1], stored.layer(1)
    full = transformers_cache(model, prompt.ids).layers[1]
    if write_back:
        assert_close([at_check.keys[:, :, passed_over]], [full.keys[:, :, passed_over]])
    else:
        assert torch.equal(at_check.keys[:, :, passed_over], base[0][:, :, passed_over])
        assert torch.equal(at_check.values[:, :, passed_over], base[1][:, :, passed_over])


# --- hits and misses


@pytest.mark.parametrize("hits", list(product([True, False], repeat=3)))
@pytest.mark.parametrize("family", FAMILIES)
def test_every_pattern_of_hits(tiny, family, hits):
    assert_a_pattern_of_hits_works(tiny(family), hits)


@pytest.mark.parametrize(("family", "name"), crossed(CHUNKED, core=("llama",), few=HKVD_FEW))
def test_every_method_with_every_pattern_of_hits(tiny, family, name):
    """The earlier request had the prefix and some of the passages."""
    model, prompt = tiny(family), a_prompt((5, 6, 3, 9))
    passages = [s for s in prompt.segments if s.kind == "passage"]
    for hits in product([True, False], repeat=3):
        kept, store = [s.ids for s, hit in zip(passages, hits, strict=True) if hit], MemoryStore()
        earlier = chain([("prefix", prompt.prefix_ids), *[("passage", ids) for ids in kept], ("question", (2,))])
        make_method(name).learn(model, backwards(earlier), store)
        for ratio in (0.3, 1.0):
            result = run(model, name, prompt, ratio, store)
            assert result.report.reused == 5 + sum(map(len, kept))
            if name in REUSING:
                assert result.report.rows == [len(prompt) - result.report.reused] * 4
            elif ratio == 1.0:
                assert_full(model, prompt, result)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("ratio", [0.0, 0.3, 1.0])
def test_nothing_stored(tiny, name, ratio):
    model, prompt = tiny("qwen2"), a_prompt()
    result = run(model, name, prompt, ratio, MemoryStore())
    assert_full(model, prompt, result)
    assert result.report.reused == 0
    assert result.report.selected == []
    assert result.report.rows == [len(prompt)] * 4


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_every_order_finds_every_chunk(tiny, order):
    model, prompt = tiny("llama"), a_prompt()
    store = filled(model, prompt)
    again = prompt.reordered(list(order))
    result = run(model, "cacheblend-author", again, 1.0, store)
    assert result.report.reused == sum(LENGTHS)
    assert len(store) == len(LENGTHS)
    assert_full(model, again, result)


# --- the store is left alone


def test_a_stored_chunk_is_its_isolated_prefill(tiny):
    """Nothing of the request that stored it is in it, and it does not depend on its place."""
    model, prompt = tiny("llama"), a_prompt()
    for request in (prompt, prompt.reordered([2, 1, 0])):
        for piece in Chunks().find(model, request, filled(model, request)):
            alone = prefill_chunk(model, piece.chunk.ids)
            assert (piece.chunk.start, piece.chunk.context) == (0, ())
            assert all_equal([*piece.chunk.keys, *piece.chunk.values], [*alone.keys, *alone.values])
            assert request.ids[piece.target : piece.stop] == piece.chunk.ids


@pytest.mark.parametrize(("family", "name"), crossed(CHUNKED, core=("mistral",), few=HKVD_FEW))
def test_requests_repeat_and_leave_the_store_as_it_was(tiny, family, name):
    assert_requests_repeat_and_leave_the_store(tiny(family), name)


@pytest.mark.parametrize("name", ["prefix-same-order", *CHUNKED])
def test_results_share_no_memory_with_the_store(tiny, name):
    """Also where there is one chunk only, which is the whole stored part."""
    model = tiny("llama")
    for prompt in (a_prompt(), chain([("passage", tokens(9, 1)), ("question", tokens(2, 2))])):
        method, store = make_method(name, 0.4), MemoryStore()
        method.learn(model, prompt, store)
        before = digest(store)
        result = method.prefill(model, prompt, store)
        owned = {t.untyped_storage().data_ptr() for t in stored_tensors(store)}
        assert owned.isdisjoint(t.untyped_storage().data_ptr() for t in kv(result.cache))
        with torch.inference_mode():
            for tensor in kv(result.cache):
                tensor.zero_()
        assert digest(store) == before


def test_a_directory_gives_the_same_bits_as_memory(tiny, tmp_path):
    model, prompt = tiny("llama"), a_prompt()
    on_disk = DirectoryStore(tmp_path / "kv")
    Chunks().learn(model, prompt, on_disk)
    for store in (on_disk, DirectoryStore(tmp_path / "kv")):
        again = run(model, "cacheblend-paper", prompt, 0.4, store)
        assert_identical(again, run(model, "cacheblend-paper", prompt, 0.4, filled(model, prompt)))


# --- who sees whom


# those whose choice does not depend on the question
UNASKED = [n for n in BLENDING if n not in ("random", "oracle-attention", "query-attention", "query-attention-last")]


@pytest.mark.parametrize(("family", "name"), crossed(UNASKED, core=("llama",), few=("first-k", *HKVD_FEW)))
def test_recomputed_rows_see_nothing_later(tiny, family, name):
    # all rows of an expert are one product, whose rounding depends on their number
    assert_rows_see_nothing_later(tiny(family), name, to_the_bit=family not in EXPERTS)


@pytest.mark.parametrize(
    ("family", "name"),
    crossed(BLENDING, [f for f in FAMILIES if f not in SLIDING], core=("llama",), few=("first-k", *HKVD_FEW)),
)
def test_recomputed_rows_see_everything_earlier(tiny, family, name):
    """A change in the first passage reaches the picked rows behind it and no others."""
    model, prompt = tiny(family), a_prompt()
    changed = replaced(prompt, 1, tokens(LENGTHS[1], 55))
    before, after = run(model, name, prompt, 0.5), run(model, name, changed, 0.5)
    behind = range(prompt.segments[1].stop, prompt.segments[-1].start)
    picked = {*before.report.selected, *after.report.selected} & {*behind}
    assert picked
    for row in behind:
        rows, last = slice(row, row + 1), slice(-1, None)
        assert all_equal(kv(before.cache, rows, last), kv(after.cache, rows, last)) == (row not in picked)


@pytest.mark.parametrize(("family", "name"), crossed(REUSING))
def test_reuse_has_no_attention_across_chunks(tiny, family, name):
    # with a sliding window the question may be out of reach
    assert_no_attention_across_chunks(tiny(family), name, in_reach=family not in SLIDING)


def test_chunks_behind_the_prefix_see_it_and_nothing_else(tiny):
    model, prompt, source = tiny("llama"), a_prompt((5, 9, 7)), Chunks(behind_prefix=True)
    store = MemoryStore()
    source.learn(model, prompt, store)
    for piece, segment in zip(source.find(model, prompt, store), prompt.chunks, strict=True):
        alone = prefill_chunk(model, segment.ids, prompt.prefix_ids if segment.kind == "passage" else ())
        assert all_equal([*piece.chunk.keys, *piece.chunk.values], [*alone.keys, *alone.values])
    assert [p.target for p in source.find(model, prompt.reordered([1, 0]), store)] == [0, 5, 12]
    assert source.find(model, replaced(prompt, 0, tokens(5, 55)), store) == []
    assert Chunks().find(model, prompt, store) == source.find(model, prompt, store)[:1]


def test_naive_keeps_positions_and_full_reuse_repairs_them(tiny):
    model, prompt = tiny("llama"), a_prompt()
    naive, repaired = run(model, "naive", prompt), run(model, "full-reuse", prompt)
    full = transformers_cache(model, prompt.ids)
    for segment in prompt.chunks:
        span, alone = slice(segment.start, segment.stop), prefill_chunk(model, segment.ids)
        assert all_equal(
            kv(naive.cache, span), [t for pair in zip(alone.keys, alone.values, strict=True) for t in pair]
        )
        assert_close(kv(repaired.cache, span, slice(1)), kv(full, span, slice(1)))


# --- going on from the cache


@pytest.mark.parametrize(("family", "name"), crossed(METHODS))
def test_decoding_goes_on_as_after_full_prefill(tiny, family, name):
    """Where the cache is full prefill's: at ratio 1, and for the others behind a true prefix."""
    model, answer = tiny(family), tokens(4, 9)
    prompt = a_prompt() if name in (*BLENDING, *EXACT) else chain([("passage", tokens(20, 1)), ("question", (7, 8))])
    result = run_method(model, NEUTRAL.get(name, make_method(name, 1.0)), prompt)
    assert type(result.cache) is DynamicCache
    assert result.cache.get_seq_length() == len(prompt)
    logits = decode(model, result.cache, answer)
    assert_close([logits], [transformers_logits(model, (*prompt.ids, *answer))[len(prompt) :]])


@pytest.mark.parametrize(("family", "name"), crossed(CHUNKED))
def test_decoding_token_by_token_and_at_once_agree(tiny, family, name):
    """For every method's own cache, whatever it holds."""
    model, prompt, answer = tiny(family), a_prompt(), tokens(5, 9)
    store = learned(model, prompt)
    one_by_one = decode(model, run(model, name, prompt, 0.3, store).cache, answer)
    assert_close([one_by_one], [decode(model, run(model, name, prompt, 0.3, store).cache, answer, step=5)])


@pytest.mark.parametrize("name", METHODS)
@given(prompt=prompts(), ratio=RATIOS, family=st.sampled_from(FAMILIES))
@settings(deadline=None, max_examples=8)
def test_cache_length_is_what_arithmetic_says(tiny, name, prompt, ratio, family):
    model = tiny(family)
    result = run(model, name, prompt, ratio)
    assert result.cache.get_seq_length() == len(prompt)
    assert [layer.keys.shape[2] for layer in result.cache.layers] == [len(prompt)] * 4
    assert [layer.values.shape[2] for layer in result.cache.layers] == [len(prompt)] * 4
    assert result.logits.shape == (VOCABULARY,)
    decode(model, result.cache, (5, 6, 7))
    assert result.cache.get_seq_length() == len(prompt) + 3


@torch.inference_mode()
def generated(model: Model, prompt: ChunkedPrompt, result: Prefill, n: int) -> list[int]:
    ids = model.tensor((*prompt.ids, int(result.logits.argmax())))
    options = {"max_new_tokens": n - 1, "do_sample": False, "attention_mask": torch.ones_like(ids)}
    return model.lm.generate(ids, cache=result.cache, **options)[0, len(prompt) :].tolist()


@torch.inference_mode()
def generated_without_reuse(model: Model, prompt: ChunkedPrompt, n: int) -> list[int]:
    ids = model.tensor(prompt.ids)
    options = {"max_new_tokens": n, "do_sample": False, "attention_mask": torch.ones_like(ids)}
    return model.lm.generate(ids, **options)[0, len(prompt) :].tolist()


@pytest.mark.parametrize(("family", "name"), crossed([*BLENDING, *EXACT]))
def test_generate_goes_on_from_the_cache(tiny, family, name):
    model, prompt = tiny(family), a_prompt()
    answer = generated(model, prompt, run(model, name, prompt), 6)
    assert len(answer) == 6
    assert answer == generated_without_reuse(model, prompt, 6)


@pytest.mark.parametrize("name", ["naive", "full-reuse", "cacheblend-paper"])
def test_generate_goes_on_from_a_blended_cache(tiny, name):
    """It equals greedy decoding by hand."""
    model, prompt = tiny("llama"), a_prompt()
    by_hand, result = [], run(model, name, prompt, 0.3)
    logits = result.logits
    for _ in range(6):
        by_hand.append(int(logits.argmax()))
        logits = decode(model, result.cache, by_hand[-1:])[-1]
    assert generated(model, prompt, run(model, name, prompt, 0.3), 6) == by_hand


# --- the report


@given(prompts(), RATIOS, st.integers(0, 3), st.sampled_from(sorted(SELECTORS)))
@settings(deadline=None, max_examples=60)
def test_rows_of_a_fixed_choice(tiny, prompt, ratio, check_layer, name):
    model = tiny("llama")
    method = Method(name, Chunks(), SELECTORS[name](ratio, check_layer=check_layer))
    report = method.prefill(model, prompt, filled(model, prompt)).report
    reused = sum(len(s.ids) for s in prompt.chunks)
    exact = len(prompt.segments[0].ids)
    fresh, inexact = len(prompt) - reused, reused - exact
    assert report.reused == reused
    wanted = min(inexact, max(1, round(ratio * inexact))) if ratio else 0
    early = fresh + (inexact if ratio else 0)
    assert report.rows == [early] * check_layer + [fresh + wanted] * (4 - check_layer)
    taps = wanted and method.selector.taps
    assert report.tapped == [early if taps and layer == check_layer else 0 for layer in range(4)]
    assert len(report.selected) == wanted
    assert report.selected == sorted(set(report.selected))
    chunked = {row for s in prompt.chunks for row in range(s.start, s.stop)}
    assert set(report.selected) <= chunked - set(range(exact))
    separate = set(range(len(prompt))) - chunked
    assert report.attended[3] == sum(row + 1 for row in separate | set(report.selected))


def test_a_check_layer_that_the_model_lacks_is_refused(tiny):
    with pytest.raises(ReplicationError, match="layers 0 to 3"):
        fuse(StoredKV(tiny("llama"), (3, 4), []), HKVD(0.1, check_layer=4))


def test_a_prompt_without_anything_to_compute_is_refused(tiny):
    model, ids = tiny("llama"), tokens(6, 1)
    with pytest.raises(ReplicationError, match="nothing to compute"):
        fuse(StoredKV(model, ids, [Piece(prefill_chunk(model, ids), 0)]), HKVD(0))


def test_a_prompt_beyond_the_context_is_refused(tiny):
    with pytest.raises(ReplicationError, match="context of 512"):
        fuse(StoredKV(tiny("llama"), tokens(513, 1), []), Selector(ratio=0))


def test_another_configs_chunks_are_not_found(tiny):
    model, other = tiny("llama"), wrap("other", tiny_lm("llama", rms_norm_eps=0.5))
    assert run(other, "full-reuse", a_prompt(), store=filled(model, a_prompt())).report.reused == 0


@pytest.mark.parametrize("name", METHODS)
def test_seconds(tiny, name):
    seconds = run(tiny("llama"), name, a_prompt(), 0.3).report.seconds
    assert set(seconds) == {"lookup", "load", "rotate", "fuse", "ttft"}
    parts = [seconds["lookup"], seconds["load"], seconds["rotate"], seconds["fuse"]]
    assert min(parts) >= 0
    assert seconds["fuse"] > 0
    assert seconds["ttft"] == pytest.approx(sum(parts))
    assert (seconds["load"] > 0) == (name != "full")


@pytest.mark.parametrize("name", BLENDING)
def test_the_smallest_ratio_picks_one_token(tiny, name):
    assert len(run(tiny("llama"), name, a_prompt(), 1e-9).report.selected) == 1


@pytest.mark.parametrize(("family", "name"), crossed(METHODS))
def test_chunks_of_one_token(tiny, family, name):
    model, prompt = tiny(family), a_prompt((1, 1, 1, 1), question=1)
    result = run(model, name, prompt)
    if name in (*BLENDING, *EXACT):
        assert_full(model, prompt, result)
    else:
        assert result.report.rows == [1] * 4


# --- real weights

# one method for each source and each way to choose; the others only order the tokens differently
REAL = [
    "cacheblend-paper",
    "cacheblend-lmcache",
    "shared-prefix-blend",
    "legolink-k",
    "query-attention",
    "cachecraft",
    "oracle",
]


@pytest.fixture(scope="module")
def real_prompt(smollm2) -> ChunkedPrompt:
    passages = (
        Passage("Velm", "The lighthouse at Velm was lit in 1868 by Orla Finch, who had come from Harwick by sea."),
        Passage("Clocks", "Tam Brodie founded the clock museum of Lisk. He was born in a town by the river Aune."),
        Passage("Harwick", "Harwick lies north of Velm."),
    )
    return build_prompt(passages, "Who lit the lighthouse at Velm?", smollm2.tokenizer)


@pytest.fixture(scope="module")
def real_store(smollm2, real_prompt) -> MemoryStore:
    return learned(smollm2, real_prompt)


@pytest.mark.parametrize("name", REAL)
def test_real_model_ratio_1(smollm2, real_prompt, real_store, name):
    assert_full(smollm2, real_prompt, run(smollm2, name, real_prompt, 1.0, real_store))


def test_real_model_full_prefill(smollm2, real_prompt):
    assert_full(smollm2, real_prompt, run(smollm2, "full", real_prompt))


@pytest.mark.parametrize("name", REAL)
def test_real_model_ratio_0(smollm2, real_prompt, real_store, name):
    again = real_prompt.reordered([2, 0, 1])
    result = run(smollm2, name, again, 0.0, real_store)
    assert_identical(result, reuse_alone(name).prefill(smollm2, again, real_store))


def test_real_model_a_b_a(smollm2, real_prompt, real_store):
    before = digest(real_store)
    other = real_prompt.reordered([1, 2, 0])
    first = run(smollm2, "cacheblend-paper", real_prompt, 0.15, real_store)
    run(smollm2, "cacheblend-paper", other, 0.15, real_store)
    assert_identical(run(smollm2, "cacheblend-paper", real_prompt, 0.15, real_store), first)
    assert digest(real_store) == before


@given(st.permutations(range(3)), st.sampled_from(["hkvd", "first-k", "random"]), st.floats(0.05, 0.95))
@settings(deadline=None, max_examples=4)
def test_real_model_equals_the_dense_reference(smollm2, real_prompt, real_store, order, name, ratio):
    prompt = real_prompt.reordered(order)
    pieces, selector = Chunks().find(smollm2, prompt, real_store), SELECTORS[name](ratio)
    result = fuse(StoredKV(smollm2, prompt.ids, pieces), selector)
    logits, cache = dense_reference(StoredKV(smollm2, prompt.ids, pieces), selector, result.report.selected)
    assert_close([result.logits], [logits])
    assert_close(kv(result.cache), kv(cache))


def test_real_model_generates_as_without_reuse(smollm2, real_prompt, real_store):
    result = run(smollm2, "cacheblend-paper", real_prompt, 1.0, real_store)
    answer = generated(smollm2, real_prompt, result, 8)
    assert answer == generated_without_reuse(smollm2, real_prompt, 8)
    assert len(set(answer)) > 4


def first_quick(names) -> list:
    """The first of these, and the others as slow."""
    return [names[0], *(pytest.param(name, marks=pytest.mark.slow) for name in names[1:])]


@pytest.fixture(scope="module")
def real_short(real_prompt) -> ChunkedPrompt:
    """The first tokens of each segment."""
    return chain((s.kind, s.ids[:6]) for s in real_prompt.segments)


@pytest.mark.parametrize("name", first_quick(REAL))
def test_real_model_one_true_prefix_is_prefix_caching(smollm2, real_short, name):
    prompt = chain([("passage", real_short.segments[1].ids), ("question", real_short.segments[-1].ids)])
    result, reference = run(smollm2, name, prompt, 0.3), run(smollm2, "prefix", prompt)
    assert result.report.rows == reference.report.rows == [6] * 30
    assert_close([result.logits, *kv(result.cache)], [reference.logits, *kv(reference.cache)])


@pytest.mark.parametrize("name", ["naive", "full-reuse"])
def test_real_model_reuse_has_no_attention_across_chunks(smollm2, real_short, name):
    changed = replaced(real_short, 1, real_short.segments[1].ids[::-1])
    before, after = (run(smollm2, name, prompt) for prompt in (real_short, changed))
    behind = slice(real_short.segments[1].stop, real_short.segments[-1].start)
    assert all_equal(kv(before.cache, behind), kv(after.cache, behind))
    assert not torch.equal(before.logits, after.logits)


@pytest.mark.parametrize("name", first_quick([name for name in REAL if name in UNASKED]))
def test_real_model_recomputed_rows_are_causal(smollm2, real_short, name):
    """The question reaches no row before it; the first passage reaches, in the last layer, the picked ones behind."""
    prompts = [real_short, *(replaced(real_short, i, real_short.segments[i].ids[::-1]) for i in (4, 1))]
    result, asked, other = (run(smollm2, name, prompt, 0.5) for prompt in prompts)
    start = real_short.segments[-1].start
    assert asked.report.selected == result.report.selected
    assert all_equal(kv(result.cache, slice(start)), kv(asked.cache, slice(start)))
    picked = {*result.report.selected, *other.report.selected}
    for row in range(real_short.segments[1].stop, start):
        rows, last = slice(row, row + 1), slice(-1, None)
        assert all_equal(kv(result.cache, rows, last), kv(other.cache, rows, last)) == (row not in picked)


def test_real_model_every_pattern_of_hits(smollm2, real_short):
    prompt = chain((s.kind, s.ids) for s in real_short.segments[1:])
    alone = [Piece(prefill_chunk(smollm2, s.ids), s.start) for s in prompt.chunks]
    full = [transformers_logits(smollm2, prompt.ids)[-1], *kv(transformers_cache(smollm2, prompt.ids))]
    for hits in product([True, False], repeat=3):
        pieces = [piece for piece, hit in zip(alone, hits, strict=True) if hit]
        reuse = fuse(StoredKV(smollm2, prompt.ids, pieces), HKVD(0))
        assert reuse.report.rows == [len(prompt) - 6 * sum(hits)] * 30
        blend = fuse(StoredKV(smollm2, prompt.ids, pieces), HKVD(1.0))
        assert blend.report.reused == 6 * sum(hits)
        assert_close([blend.logits, *kv(blend.cache)], full)


@pytest.mark.parametrize("name", first_quick(REAL))
def test_real_model_cache_length_while_decoding(smollm2, real_short, name):
    result = run(smollm2, name, real_short, 0.15)
    assert result.cache.get_seq_length() == len(real_short)
    assert len(decode(smollm2, result.cache, (5, 6, 7))) == 3
