"""What makes each method itself; the invariants that all methods share are in test_fuse."""

import pytest
import torch
from conftest import FAMILIES, SLIDING, tiny_lm
from hypothesis import given, settings
from hypothesis import strategies as st
from prefills import (
    BLENDING,
    DenseCache,
    a_prompt,
    assert_close,
    assert_full,
    backwards,
    filled,
    kv,
    learned,
    prepared,
    prompts,
    replaced,
    run,
    run_method,
    tokens,
    transformers_cache,
)

from replication.chunk import prefill_chunk
from replication.errors import ReplicationError
from replication.fuse import fuse
from replication.masked import Faults, masked_prefill
from replication.methods import Chunks, make_method
from replication.methods.cachecraft import VARIANTS, InContext
from replication.methods.promptcache import Schema
from replication.metrics.cost import ceiling
from replication.model import Model, wrap
from replication.prompt import ChunkedPrompt, chain
from replication.selectors import SELECTORS
from replication.selectors.query_attention import QueryAttention
from replication.store import DirectoryStore, MemoryStore
from replication.stored import StoredKV

ROTARY_ALONE = [family for family in FAMILIES if family not in SLIDING]


# --- equal budgets


@pytest.mark.parametrize("name", BLENDING)
def test_at_15_percent_all_methods_recompute_as_many_tokens(tiny, name):
    """Within one token a layer, from the layer of the choice on: layer 1, before which all tokens are computed, or, for
    a choice before the first layer, layer 0. What is recomputed is a share of the tokens that are not stored exactly:
    those of the first passage, too, are where chunks stand behind the shared prefix."""
    model, prompt = tiny("llama"), a_prompt((20, 60, 41, 83, 57))
    method, report = make_method(name, 0.15), run(model, name, prompt, 0.15).report
    inexact = 41 + 83 + 57 + (0 if name == "shared-prefix-blend" else 60)
    chosen = [rows - 4 for rows in report.rows]
    first = method.selector.check_layer
    assert chosen[:first] == [inexact] * first
    assert abs(sum(chosen[first:]) / len(chosen[first:]) - 0.15 * inexact) <= 1


# --- PromptCache


@pytest.mark.parametrize("family", ROTARY_ALONE)
@given(prompts())
@settings(deadline=None, max_examples=10)
def test_promptcache_is_isolated_passages_in_the_schemas_order(tiny, family, prompt):
    """The question sees each module where the schema put it, whatever the order of import."""
    model = tiny(family)
    prompt = chain((s.kind, s.ids) for s in prompt.segments if s.kind != "separator")
    ids = [s.ids for s in prompt.chunks]
    if len(set(ids)) < len(ids):  # one module at two places: the second is computed, not imported
        return
    alone = masked_prefill(model, backwards(prompt), Faults("repaired", "own", "absent"))
    assert_close([run(model, "promptcache", prompt).logits], [alone.logits])


def test_promptcache_in_the_schemas_order_is_full_reuse(tiny):
    model, prompt, store = tiny("llama"), a_prompt(), MemoryStore()
    method = make_method("promptcache")
    method.learn(model, prompt, store)
    result, reference = method.prefill(model, prompt, store), run(model, "full-reuse", prompt)
    assert_close([result.logits, *kv(result.cache)], [reference.logits, *kv(reference.cache)])
    again = method.prefill(model, prompt.reordered([2, 0, 1]), store)
    assert not torch.allclose(again.logits, run(model, "full-reuse", prompt.reordered([2, 0, 1])).logits, atol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_module_is_encoded_at_its_schema_position(tiny, family):
    model, prompt, store = tiny(family), a_prompt(), MemoryStore()
    Schema().learn(model, prompt, store)
    for piece, segment in zip(Schema().find(model, prompt, store), prompt.chunks, strict=True):
        there = prefill_chunk(model, segment.ids, (), segment.start)
        full = transformers_cache(model, prompt.ids).layers[0]
        assert (piece.chunk.start, piece.position, piece.target) == (segment.start,) * 3
        assert torch.equal(piece.chunk.keys[-1], there.keys[-1])
        assert_close([piece.chunk.keys[0]], [full.keys[0, :, segment.start : segment.stop]])


def test_a_module_keeps_the_position_of_the_first_schema_that_has_it(tiny):
    model, store, source = tiny("llama"), MemoryStore(), Schema()
    a, b, c = tokens(4, 1), tokens(6, 2), tokens(5, 3)
    source.learn(model, chain([("passage", a), ("passage", b), ("question", (2,))]), store)
    source.learn(model, chain([("passage", c), ("passage", b), ("question", (2,))]), store)
    prompt = chain([("passage", b), ("passage", a), ("question", (2, 3))])
    pieces = source.find(model, prompt, store)
    assert [(p.target, p.chunk.start) for p in pieces] == [(0, 4), (6, 0)]
    assert [p.position for p in pieces] == [4, 0]
    # c stands at 0 to 4 of the second schema, where a is in the first: it is computed
    three = chain([("passage", b), ("passage", a), ("passage", c), ("question", (2, 3))])
    assert [p.target for p in source.find(model, three, store)] == [0, 6]
    # alone, b is followed by the question at once, whatever its schema had before it
    (alone,) = source.find(model, chain([("passage", b), ("question", (2, 3))]), store)
    assert (alone.chunk.start, alone.position) == (4, 0)


def test_replacing_a_passage_changes_what_promptcache_computes(tiny):
    """A passage that the schema lacks is computed in its place; the modules around it are reused."""
    model, prompt, store = tiny("llama"), a_prompt(), MemoryStore()
    method = make_method("promptcache")
    method.learn(model, prompt, store)
    changed = replaced(prompt, 2, tokens(1, 55))
    result = method.prefill(model, changed, store)
    assert result.report.reused == sum(len(s.ids) for s in prompt.chunks) - 1
    assert result.report.rows == [5] * 4


# --- LegoLink and seams


def test_legolink_recomputes_each_chunks_first_tokens_in_all_layers(tiny):
    model, prompt = tiny("llama"), a_prompt((5, 10, 20, 10))
    report = run(model, "legolink-k", prompt, 0.15).report
    assert report.selected == [5, 6, 15, 16, 35, 36]
    assert report.rows == [6 + 4] * 4
    assert report.tapped == [0] * 4


def test_legolink_0_builds_chunks_behind_a_dummy_bos(tiny):
    model, prompt, store = tiny("llama"), a_prompt(), MemoryStore()
    method = make_method("legolink-0")
    method.learn(model, prompt, store)
    first, *rest = method.source.find(model, prompt, store)
    assert (first.chunk.context, first.chunk.start) == ((), 0)
    for piece in rest:
        alone = prefill_chunk(model, piece.chunk.ids, (model.lm.config.bos_token_id,))
        assert torch.equal(piece.chunk.keys[-1], alone.keys[-1])
    reuse = run(model, "full-reuse", prompt)
    assert not torch.allclose(method.prefill(model, prompt, store).logits, reuse.logits, atol=1e-4)
    wanted = chain([("prefix", (1, *prompt.prefix_ids)), *((s.kind, s.ids) for s in prompt.segments[1:])], bos=(1,))
    assert torch.equal(run(model, "legolink-0", wanted).logits, run(model, "full-reuse", wanted).logits)


def test_legolink_0_needs_a_bos():
    model = wrap("without", tiny_lm("llama", bos_token_id=None))
    with pytest.raises(ReplicationError, match="without has no BOS token"):
        run(model, "legolink-0", a_prompt())


@given(st.integers(0, 11))
@settings(deadline=None, max_examples=12)
def test_seams_get_their_last_tokens_the_last_chunk_after_all_others(tiny, n):
    model, prompt = tiny("llama"), a_prompt((1, 3, 5, 3))
    pieces = StoredKV(model, prompt.ids, Chunks().find(model, prompt, filled(model, prompt)))
    selected = run(model, "seam-last-k", prompt, n / 11).report.selected
    to_seam = {row: p.stop - row for p in pieces.pieces[1:-1] for row in range(p.target, p.stop)}
    assert sorted(to_seam[row] for row in selected if row in to_seam) == sorted(to_seam.values())[:n]
    assert [row for row in selected if row not in to_seam] == list(range(12 - max(0, n - 8), 12))


# --- the question's attention


@torch.inference_mode()
def dense_attention(kv: StoredKV, recomputed: torch.Tensor, question: int) -> list[torch.Tensor]:
    """Attention [heads, question, tokens] per layer, of a plain full-length forward with eager attention, in which only
    the tokens `recomputed` [tokens] have fresh KV."""
    lm, before = kv.model.lm, kv.model.lm.config._attn_implementation
    cache = DenseCache(kv, [recomputed] * len(kv.model.layers))
    lm.set_attn_implementation("eager")
    try:
        output = lm(input_ids=kv.model.tensor(kv.ids), cache=cache, use_cache=True, output_attentions=True)
    finally:
        lm.set_attn_implementation(before)
    return [weights[0, :, -question:] for weights in output.attentions]


def stored_kv(model: Model, prompt: ChunkedPrompt) -> StoredKV:
    return StoredKV(model, prompt.ids, Chunks().find(model, prompt, filled(model, prompt)))


@pytest.mark.parametrize("layers", ["all", "last"])
@pytest.mark.parametrize("family", FAMILIES)
def test_query_attention_is_the_questions_over_the_reused_kv(tiny, family, layers):
    model, prompt = tiny(family), a_prompt()
    kv = stored_kv(model, prompt)
    attention = dense_attention(kv, ~kv.stored, 4)
    used = attention if layers == "all" else attention[-1:]
    expected = torch.stack([w.mean((0, 1)) for w in used]).mean(0)
    assert_close([prepared(QueryAttention(0.5, layers=layers), kv, prompt).scores], [expected])
    name = "query-attention" if layers == "all" else "query-attention-last"
    inexact = (kv.stored & ~kv.exact).nonzero()[:, 0]
    best = inexact[expected[inexact].topk(5).indices]
    assert run(model, name, prompt, 5 / len(inexact)).report.selected == sorted(best.tolist())


@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
def test_oracle_attention_is_the_deviation_from_full_prefills(tiny, family):
    model, prompt = tiny(family), a_prompt()
    kv = stored_kv(model, prompt)
    everything = torch.ones(len(prompt), dtype=torch.bool)
    pairs = zip(dense_attention(kv, everything, 4), dense_attention(kv, ~kv.stored, 4), strict=True)
    expected = torch.stack([(a - b).square().sum((0, 1)) for a, b in pairs]).sum(0)
    assert_close([prepared(SELECTORS["oracle-attention"](0.5), kv, prompt).scores], [expected])


@pytest.mark.parametrize("name", ["query-attention", "query-attention-last"])
def test_the_first_pass_is_reported_and_counted(tiny, name):
    model, prompt = tiny("llama"), a_prompt((5, 40, 30))
    report = run(model, name, prompt, 0.15).report
    assert [scout.rows for scout in report.scouts] == [[4] * 4]
    once = run(model, "legolink-k", prompt, 0.15).report
    assert once.scouts == []
    assert report.rows == once.rows
    assert ceiling(model, len(prompt), report) < ceiling(model, len(prompt), once)
    assert run(model, name, prompt, 0.0).report.scouts == []


def test_a_selector_that_was_not_prepared_says_so(tiny):
    with pytest.raises(TypeError, match="call `prepared` first"):
        fuse(stored_kv(tiny("llama"), a_prompt()), QueryAttention(0.5))


def test_unknown_layers_are_refused():
    with pytest.raises(ReplicationError, match="known: all, last"):
        QueryAttention(0.1, layers="first")


# --- Cache-Craft


def test_cachecraft_records_what_a_chunk_attended_to(tiny):
    model, store, parts = tiny("llama"), MemoryStore(), a_prompt((5, 11, 4, 7)).segments
    prompt = chain(
        [*((s.kind, s.ids) for s in parts[:2]), ("separator", (9, 8)), *((s.kind, s.ids) for s in parts[2:])]
    )
    InContext().learn(model, prompt, store)
    nothing = StoredKV(model, prompt.ids, [])
    whole = dense_attention_of_all(nothing)
    full = transformers_cache(model, prompt.ids)
    for piece, segment in zip(InContext().find(model, prompt, store), prompt.chunks, strict=True):
        attended, own = piece.chunk.attended, whole[segment.start : segment.stop]
        before = [s for s in prompt.chunks if s.start < segment.start]
        assert attended.chunks(piece.chunk.context) == [s.ids for s in before]
        assert attended.inter == pytest.approx([own[:, s.start : s.stop].sum().item() for s in before], abs=1e-4)
        assert attended.intra == pytest.approx(own[:, segment.start : segment.stop].sum().item(), abs=1e-4)
        paid = sum((own[:, s.start : s.stop].sum(1) for s in before), torch.zeros(len(segment.ids)))
        assert attended.tokens == pytest.approx(paid.tolist(), abs=1e-4)
        assert_close([piece.chunk.keys[3]], [full.layers[3].keys[0, :, segment.start : segment.stop]])


def dense_attention_of_all(kv: StoredKV) -> torch.Tensor:
    """[tokens, tokens], mean over layers and heads, of full prefill."""
    lm, before = kv.model.lm, kv.model.lm.config._attn_implementation
    lm.set_attn_implementation("eager")
    try:
        with torch.inference_mode():
            attentions = lm(input_ids=kv.model.tensor(kv.ids), output_attentions=True).attentions
    finally:
        lm.set_attn_implementation(before)
    return torch.stack([weights[0].mean(0) for weights in attentions]).mean(0)


def test_cachecraft_reuses_the_variant_whose_prefix_overlaps_most(tiny):
    model, store, source = tiny("llama"), MemoryStore(), InContext()
    prefix, a, b, c = (("prefix", tokens(5, 9)), *(("passage", tokens(6, i)) for i in range(3)))
    asked = ("question", (2, 3))
    for earlier in ([prefix, a, c, asked], [prefix, b, c, asked], [prefix, b, a, c, asked], [prefix, b, c, asked]):
        source.learn(model, chain(earlier), store)

    def context_of_c(*parts) -> tuple[int, ...]:
        return source.find(model, chain([*parts, asked]), store)[-1].chunk.context

    def ids(*parts) -> tuple[int, ...]:
        return tuple(i for _, part in parts for i in part)

    assert len(store) == 1 + 2 + 1 + 3  # a stood in two contexts, b in one, c in three
    for before in ([prefix, a], [prefix, b], [prefix, b, a]):
        assert context_of_c(*before, c) == ids(*before)
        assert source.find(model, chain([*before, c, asked]), store)[-1].chunk.context == ids(*before)
    # a is missing: what c saw behind b and the prefix is all there again
    assert context_of_c(prefix, ("passage", tokens(3, 7)), b, c) == ids(prefix, b)
    for number in range(VARIANTS):
        source.learn(model, chain([prefix, ("passage", tokens(4, 30 + number)), c, asked]), store)
    assert len(source.find(model, chain([prefix, c, asked]), store)) == 2
    assert sum(chunk.ids == c[1] for chunk in store._chunks.values()) == VARIANTS


def test_cachecraft_leaves_alone_what_saw_nothing_else_before(tiny):
    """Behind a prefix that is all there again, CFO is 0: the other chunks' tokens are recomputed first."""
    model, store, parts = tiny("llama"), MemoryStore(), a_prompt((5, 12, 12, 12)).segments
    method, (prefix, a, b, c, asked) = make_method("cachecraft", 0.5), ((s.kind, s.ids) for s in parts)
    method.learn(model, chain([prefix, a, asked]), store)
    method.learn(model, chain([prefix, b, c, asked]), store)
    prompt = chain([prefix, c, a, asked])
    selected = method.prefill(model, prompt, store).report.selected
    assert len(selected) == 12
    assert selected == list(range(5, 17))


def test_cachecraft_behind_the_same_prefix_is_exact_prefix_caching(tiny):
    model, prompt, store = tiny("llama"), a_prompt(), MemoryStore()
    method = make_method("cachecraft", 0.15)
    method.learn(model, prompt, store)
    result = method.prefill(model, prompt, store)
    assert result.report.rows == [4] * 4
    assert_full(model, prompt, result)


def test_what_a_chunk_attended_to_outlives_the_process(tiny, tmp_path):
    model, prompt = tiny("llama"), a_prompt()
    method, memory = make_method("cachecraft", 0.3), learned(model, prompt)
    method.learn(model, backwards(prompt), DirectoryStore(tmp_path / "kv"))
    pieces = [method.source.find(model, prompt, s) for s in (memory, DirectoryStore(tmp_path / "kv"))]
    assert [p.chunk.attended for p in pieces[0]] == [p.chunk.attended for p in pieces[1]]
    again = run_method(model, method, prompt, DirectoryStore(tmp_path / "kv"))
    assert torch.equal(again.logits, run_method(model, method, prompt, memory).logits)
