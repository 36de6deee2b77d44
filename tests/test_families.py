"""What families differ in, beyond the invariants of `test_fuse` and `test_rotary`: refusals, dtypes, batches, the
command, and the page that lists them."""

import json
import re
import runpy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from families import EXPERTS, FAMILIES, MATRIX, REFUSED, SLIDING, WINDOW, tiny_lm
from prefills import a_prompt, assert_close, backwards, kv, run, tokens, transformers_logits
from transformers import AutoTokenizer, DynamicCache

from replication import cli
from replication.caches.prefix import PrefixCache
from replication.chunk import prefill_chunk
from replication.data.example import Passage
from replication.decode import batched
from replication.embedded import embedded_directory
from replication.errors import ReplicationError
from replication.fuse import Prefill, fuse
from replication.model import wrap
from replication.prompt import build_prompt
from replication.refusals import REFUSALS, refused
from replication.selectors import Selector
from replication.stored import Piece, StoredKV

ROOT = Path(__file__).resolve().parent.parent

# --- refused models

REASONS = {
    "gpt2": "no-angles",
    "opt": "no-angles",
    "gpt_neo": "no-angles",
    "bloom": "no-angles",
    "mpt": "no-angles",
    "falcon-alibi": "own-attention",
    "falcon": "own-attention",
    "gptj": "moved-key",
    "minimax": "own-cache",
    "llama-dynamic": "length",
    "qwen3_next": "no-plain-kv",
    "deepseek_v2": "moved-value",
    "deepseek_v3": "moved-value",
}


@pytest.mark.parametrize("family", REFUSED)
def test_what_cannot_be_exact_is_refused_with_the_reason_and_works_as_before(family):
    lm, ids = tiny_lm(family), torch.arange(5, 15)[None]
    with torch.inference_mode():
        before = lm(ids).logits
        with pytest.raises(ReplicationError) as caught:
            wrap(family, lm)
        assert torch.equal(lm(ids).logits, before)
    assert str(caught.value) == str(refused(lm, REASONS[family], layer=0))
    assert re.match(r"\w+ is refused: .+\. It would need .+", str(caught.value))


def test_a_layer_that_keeps_no_keys_is_refused():
    lm = tiny_lm("llama")
    lm.model.layers[2].self_attn.forward = lambda hidden_states, **kwargs: (hidden_states, None)
    with pytest.raises(ReplicationError, match="layer 2 does not put its keys into the cache"):
        wrap("forgetful", lm)


def test_what_a_fused_prefill_would_not_cut_is_refused():
    lm = tiny_lm("llama")
    lm.model.layers[0].register_forward_pre_hook(lambda module, args: (*args, args[0].clone()))
    with pytest.raises(ReplicationError, match="layers receive values of every token"):
        wrap("more", lm)


def test_an_unknown_layout_is_refused():
    def reversed_frequencies(module, args, kwargs):
        return args, kwargs | {"position_embeddings": tuple(t.flip(-1) for t in kwargs["position_embeddings"])}

    lm = tiny_lm("llama")
    lm.model.layers[1].self_attn.register_forward_pre_hook(reversed_frequencies, with_kwargs=True)
    with pytest.raises(ReplicationError, match="in layer 1 a moved key differs"):
        wrap("reversed", lm)


def test_angles_that_no_module_makes_are_refused():
    def copied(module, args, kwargs):
        return args, kwargs | {"position_embeddings": tuple(t.clone() for t in kwargs["position_embeddings"])}

    lm = tiny_lm("llama")
    lm.model.layers[1].register_forward_pre_hook(copied, with_kwargs=True)
    with pytest.raises(ReplicationError, match="do not come from a module"):
        wrap("homeless", lm)


def test_a_prompt_beyond_a_change_of_frequencies_is_refused(tiny):
    model = tiny("phi3-longrope")
    assert model.context_length == 128 < model.config.max_position_embeddings
    fuse(StoredKV(model, tokens(128, 1), []), Selector(ratio=0))
    tokenizer = AutoTokenizer.from_pretrained(embedded_directory("smollm2-135m"))
    long, short = Passage("Long", "word " * 129), Passage("Short", "word " * 9)
    for ask in (
        lambda: fuse(StoredKV(model, tokens(129, 1), []), Selector(ratio=0)),
        lambda: PrefixCache(model, blocks=2).prefill(tokens(129, 1)),
        lambda: build_prompt((long,), "Why?", tokenizer, context=model.context),
        lambda: build_prompt((short,) * 9, "Why?", tokenizer, context=model.context),
    ):
        with pytest.raises(ReplicationError, match=r"beyond 128 its rotary frequencies change.*stored before rotation"):
            ask()


def test_reuse_knows_no_family():
    names = {family.model_type.removesuffix("_text") for family in MATRIX.values()}
    pattern = re.compile(rf"\b({'|'.join(names)})\b", re.IGNORECASE)
    reuse = "attention attention_logits chunk fuse layers refusals rotary rotary_proof row_attention stored"
    for file in [ROOT / "replication" / f"{name}.py" for name in reuse.split()]:
        assert not pattern.findall(file.read_text()), file


# --- windows, dtypes and batches


@pytest.mark.parametrize("family", SLIDING)
def test_a_sliding_layer_reuses_only_what_its_window_sees(tiny, family):
    """Other K and V in its stored tokens change nothing, but for those that the question's window still holds."""
    model, prompt = tiny(family), a_prompt((3, 5 * WINDOW, 2 * WINDOW))
    kinds = getattr(model.config, "layer_types", None) or ["sliding_attention"] * 4
    pieces = [Piece(prefill_chunk(model, s.ids), s.start) for s in prompt.chunks]
    seen_from = prompt.segments[-1].start - WINDOW + 1

    def spoiled(until: int) -> Prefill:
        found = [replace(p, chunk=prefill_chunk(model, p.chunk.ids)) for p in pieces]
        with torch.inference_mode():
            for piece in found:
                for keys, values, kind in zip(piece.chunk.keys, piece.chunk.values, kinds, strict=True):
                    if kind == "sliding_attention":
                        keys[:, : max(0, until - piece.target)] = 9.0
                        values[:, : max(0, until - piece.target)] = -9.0
        return fuse(StoredKV(model, prompt.ids, found), Selector(ratio=0))

    as_stored = fuse(StoredKV(model, prompt.ids, pieces), Selector(ratio=0)).logits
    assert torch.equal(spoiled(seen_from).logits, as_stored)
    assert not torch.allclose(spoiled(seen_from + 1).logits, as_stored, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family", FAMILIES)
def test_kv_and_logits_are_of_the_models_dtype(family, dtype):
    model, prompt = wrap(family, tiny_lm(family).to(dtype)), a_prompt()
    result = run(model, "cacheblend-paper", prompt, 0.3)
    assert {t.dtype for t in (result.logits, *kv(result.cache))} == {dtype}
    assert len(result.report.selected) > 1
    if family not in EXPERTS:  # where rounding may choose another expert
        full, everything = transformers_logits(model, prompt.ids)[-1], run(model, "cacheblend-paper", prompt).logits
        assert (everything - full).abs().max() <= 0.05 * full.abs().max()


@pytest.mark.parametrize("family", FAMILIES)
def test_prompts_of_equal_length_go_on_as_a_batch(tiny, family):
    model, prompt = tiny(family), a_prompt()
    results = [run(model, "cacheblend-paper", p, 0.3) for p in (prompt, backwards(prompt), a_prompt(seed=1))]
    answers = torch.tensor([tokens(4, seed) for seed in range(3)])
    cache, logits = batched(results)
    assert_close([logits], [torch.stack([result.logits for result in results])])
    with torch.inference_mode():
        together = model.lm(input_ids=answers, cache=cache, use_cache=True).logits
        alone = [
            model.lm(input_ids=ids[None], cache=result.cache, use_cache=True).logits[0]
            for ids, result in zip(answers, results, strict=True)
        ]
    assert_close(list(together), alone)
    assert type(cache) is DynamicCache
    assert cache.get_seq_length() == len(prompt) + 4


def test_what_is_no_batch_is_refused(tiny):
    model = tiny("llama")
    with pytest.raises(ReplicationError, match="of one length, not of 27, 28 tokens"):
        batched([run(model, "full", a_prompt(question=n)) for n in (3, 4)])
    with pytest.raises(ReplicationError, match="one prompt at a time"):
        batched([run(model, "ape", a_prompt())])


# --- the command and the page

# one projection and part of a head rotated; soft cap and window; experts. The others take minutes together
COMMANDED = ("phi3", "gemma2", "mixtral")
SMALL = ["n=1", "passages=2", "timed=1", "rounds=1", "ratios=0.15,1", "point_ratios=0.15"]


@pytest.mark.parametrize("family", [f if f in COMMANDED else pytest.param(f, marks=pytest.mark.slow) for f in FAMILIES])
def test_the_command_needs_no_option_but_the_directory(family, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(embedded_directory("smollm2-135m"))
    sizes = {"vocab_size": len(tokenizer), "max_position_embeddings": 2048}
    if "original_max_position_embeddings" in MATRIX[family].settings:
        longer = {"original_max_position_embeddings": 1024}
        sizes |= {"rope_parameters": MATRIX[family].settings["rope_parameters"] | longer, **longer}
    tiny_lm(family, **sizes).save_pretrained(tmp_path / family)
    tokenizer.save_pretrained(tmp_path / family)
    command = ["run", "quality_vs_ttft", "--model", str(tmp_path / family), "--out", str(tmp_path)]
    assert cli.main([*command, "--set", *SMALL]) == 0
    (summary,) = tmp_path.glob(f"{family}/quality_vs_ttft/*/summary.json")
    cells = json.loads(summary.read_text())["cells"]
    assert cells["cacheblend-paper@100"]["kl_first"]["mean"] < 1e-4
    assert cells["naive"]["kl_first"]["mean"] > 1e-3


def test_the_page_is_what_the_models_turn_out_to_be():
    page = runpy.run_path(str(ROOT / "scripts" / "render_families.py"))
    assert page["rendered"]() == page["PAGE"].read_text()


def test_every_reason_is_tested():
    elsewhere = {"layers", "per-token", "no-key", "no-module"}
    assert set(REFUSALS) == elsewhere | set(REASONS.values())
