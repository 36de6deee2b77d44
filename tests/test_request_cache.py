"""A request's KV cache: its bytes, decoding with and without it, and one kept over many prompts."""

import copy
import hashlib

import pytest
import torch
from conftest import FAMILIES, SLIDING, VOCABULARY, tiny_lm, tiny_model
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoConfig, DynamicCache, StaticCache

from replication.caches.kept import KeptCache
from replication.caches.request import (
    WithCache,
    WithoutCache,
    decode,
    follow,
    kv_bytes,
    kv_bytes_per_token,
    tensor_bytes,
)
from replication.errors import ReplicationError
from replication.model import wrap

IDS = st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=24).map(tuple)
# few ids, so that prompts share beginnings of every length
SIMILAR = st.lists(st.integers(0, 1), min_size=1, max_size=12).map(tuple)
CLOSE = {"rtol": 0, "atol": 1e-4}


def sha(cache) -> str:
    return hashlib.sha256(
        b"".join(t.numpy().tobytes() for layer in cache.layers for t in (layer.keys, layer.values))
    ).hexdigest()


# --- bytes


@pytest.mark.parametrize(
    ("family", "sizes", "dtype", "per_token"),
    [
        # 30 layers x (K, V) x 3 KV heads x 64 x bytes
        ("smollm2", {}, torch.float32, 46_080),
        ("smollm2", {}, torch.bfloat16, 23_040),
        # Llama-2-7B, one KV head a query head: 32 x 2 x 32 x 128 x 2; Llama-3-8B, grouped: a quarter of it
        ("llama", {"num_hidden_layers": 32, "num_attention_heads": 32, "hidden_size": 4096}, torch.float16, 524_288),
        (
            "llama",
            {"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096},
            torch.float16,
            131_072,
        ),
        # no num_key_value_heads and no head_dim: 12 x 2 x 12 x (768 / 12) x 4
        ("gpt2", {}, torch.float32, 73_728),
        # Gemma-3n: 35 layers, of which 15 read the K and V of others: 20 x 2 x 2 x 256 x 2
        ("gemma3n_text", {}, torch.bfloat16, 40_960),
        # Gemma-4: every sixth layer has heads of 512 instead of 256: (25 x 256 + 5 x 512) x 2 x 4 x 2
        ("gemma4_text", {"num_hidden_layers": 30, "num_key_value_heads": 4}, torch.bfloat16, 143_360),
    ],
)
def test_bytes_per_token_by_hand(smollm2, family, sizes, dtype, per_token):
    config = smollm2.lm.config if family == "smollm2" else AutoConfig.for_model(family, **sizes)
    assert kv_bytes_per_token(config, dtype) == per_token


@given(st.sampled_from([f for f in FAMILIES if f != "gpt_neox"]), st.integers(1, 30), st.booleans())
@settings(deadline=None, max_examples=60)
def test_measured_bytes_are_those_of_the_formula(family, tokens, windowed):
    """gpt_neox is left out: the tiny one's config names KV heads, which that model has not."""
    model = tiny_model(family)
    decoder = WithCache(model, DynamicCache(config=model.lm.config) if windowed else DynamicCache())
    decoder.advance(tuple(range(tokens)))
    config, dtype = model.lm.config, model.dtype
    expected = kv_bytes(config, dtype, tokens) if windowed else tokens * kv_bytes_per_token(config, dtype)
    assert tensor_bytes(decoder.cache) == expected
    assert (kv_bytes(config, dtype, tokens) < tokens * kv_bytes_per_token(config, dtype)) == (
        family in SLIDING and tokens > 7
    )


def test_a_layer_without_plain_k_and_v_is_refused():
    with pytest.raises(ReplicationError, match="layer 0 of deepseek_v3 keeps no plain K and V"):
        kv_bytes_per_token(AutoConfig.for_model("deepseek_v3"), torch.float32)


# --- decoding


@given(st.sampled_from(FAMILIES), IDS, st.integers(1, 12))
@settings(deadline=None, max_examples=60)
def test_with_and_without_the_cache_is_the_same(family, prompt, count):
    model = tiny_model(family)
    with_it, without = WithCache(model), WithoutCache(model)
    kept_, recomputed = decode(with_it, prompt, count), decode(without, prompt, count)
    torch.testing.assert_close(kept_.logits, recomputed.logits, **CLOSE)
    assert kept_.ids == recomputed.ids
    assert len(kept_.ids) == len(kept_.seconds) == len(kept_.logits) == count
    assert with_it.rows == [len(prompt)] + [1] * (count - 1)
    assert without.rows == [len(prompt) + i for i in range(count)]
    assert with_it.cache.get_seq_length() == len(prompt) + count - 1


@given(IDS, IDS)
@settings(deadline=None, max_examples=30)
def test_following_given_tokens_is_one_forward_over_all(prompt, ids):
    model = tiny_model("llama")
    with torch.inference_mode():
        whole = model.lm(input_ids=model.tensor((*prompt, *ids))).logits[0]
    followed = follow(WithCache(model), prompt, ids)
    assert followed.ids == ids
    torch.testing.assert_close(followed.logits, whole[len(prompt) - 1 : -1], **CLOSE)


def test_decoding_stops_at_the_end_token(tiny):
    model = tiny("llama")
    free = decode(WithCache(model), (5, 6, 7), 10).ids
    at = next(i for i in range(1, 10) if free[i] not in free[:i])
    assert decode(WithCache(model), (5, 6, 7), 10, eos=free[at]).ids == free[: at + 1]


@pytest.mark.parametrize(("prompt", "count"), [((), 1), ((1,), 0)])
def test_nothing_to_decode_is_refused(tiny, prompt, count):
    with pytest.raises(ReplicationError, match="at least one"):
        decode(WithCache(tiny("llama")), prompt, count)


@pytest.mark.parametrize("decoder", [WithCache, WithoutCache])
def test_more_than_the_context_is_refused_before_anything_is_computed(tiny, decoder):
    decoder = decoder(tiny("llama"))
    decoder.advance((1,) * 500)
    with pytest.raises(ReplicationError, match="513 tokens exceed the model's context of 512"):
        decode(decoder, (2,) * 5, 9)
    assert len(decoder.ids) == 500
    assert len(decode(decoder, (2,) * 5, 8).ids) == 8


@given(IDS, st.integers(1, 12))
@settings(deadline=None, max_examples=20)
def test_a_cache_survives_generate_without_the_last_token(prompt, count):
    """S-04."""
    model, cache = tiny_model("llama"), DynamicCache()
    ids = model.lm.generate(model.tensor(prompt), cache=cache, max_new_tokens=count, do_sample=False)
    assert ids.shape[1] == len(prompt) + count
    assert cache.get_seq_length() == len(prompt) + count - 1


def test_a_cache_survives_generate_that_ends_early(smollm2):
    prompt = smollm2.tokenizer.apply_chat_template(
        [{"role": "user", "content": "Say only: yes."}], add_generation_prompt=True, return_tensors="pt"
    )["input_ids"]
    cache = DynamicCache()
    ids = smollm2.lm.generate(prompt, cache=cache, max_new_tokens=60, do_sample=False)
    assert ids[0, -1] == smollm2.tokenizer.eos_token_id
    assert cache.get_seq_length() == ids.shape[1] - 1


def test_an_ignored_cache_is_noticed(monkeypatch):
    """User report 36."""
    model = wrap("deaf", tiny_lm("llama"))
    unknown = DynamicCache()
    model.lm(input_ids=model.tensor((1, 2)), kv_cache=unknown, use_cache=True)
    assert unknown.get_seq_length() == 0  # no error: a wrong keyword is silently dropped
    forward = model.lm.forward
    monkeypatch.setattr(model.lm, "forward", lambda cache, **kwargs: forward(**kwargs))
    with pytest.raises(ReplicationError, match="holds 0 tokens where 2 were computed"):
        WithCache(model).advance((1, 2))


# --- one cache over many prompts


@given(st.sampled_from(["llama", *SLIDING]), st.lists(st.tuples(SIMILAR, st.integers(1, 5)), min_size=2, max_size=5))
@settings(deadline=None, max_examples=60)
def test_whatever_comes_the_answer_is_that_of_a_fresh_prefill(family, requests):
    model = tiny_model(family)
    cache = KeptCache(model)
    for prompt, count in requests:
        held = cache.ids
        answer, reuse = cache.answer(prompt, count)
        fresh = decode(WithCache(model), prompt, count)
        torch.testing.assert_close(answer.logits, fresh.logits, **CLOSE)
        assert answer.ids == fresh.ids
        assert cache.ids == (*prompt, *answer.ids[:-1])
        assert cache.cache.get_seq_length() == len(cache.ids)
        same = [a == b for a, b in zip(held, prompt, strict=False)]
        common = (*same, False).index(False)
        assert reuse.reused == min(common, len(prompt) - 1)
        assert reuse.prefilled == len(prompt) - reuse.reused
        assert reuse.parted == (None if common == len(held) else common)


def test_a_stored_cache_used_three_times_by_copies_is_never_changed(tiny):
    """User report 33, S-14; and what happens without the copy."""
    model = tiny("llama")
    stored, prefix = KeptCache(model), tuple(range(20))
    stored.answer(prefix, 1)
    before, answers = sha(stored.cache), []
    for _ in range(3):
        answers.append(stored.copy().answer((*prefix, 50, 51), 6)[0].logits)
        assert sha(stored.cache) == before
        assert stored.ids == prefix
    assert torch.equal(answers[0], answers[1])
    assert torch.equal(answers[0], answers[2])
    raw = copy.deepcopy(stored.cache)  # outside no_grad, too
    model.lm.generate(model.tensor((*prefix, 50, 51)), cache=raw, max_new_tokens=6, do_sample=False)
    assert raw.get_seq_length() == 27
    assert sha(raw) != before


def test_a_broken_forward_leaves_nothing_half_filled(tiny, monkeypatch):
    model = tiny("llama")
    cache = KeptCache(model)
    cache.answer((1, 2, 3), 2)
    with monkeypatch.context() as patch:
        patch.setattr(model.layers[2], "forward", lambda *a, **k: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            cache.answer((1, 2, 3, 4), 2)
    answer, reuse = cache.answer((1, 2, 3, 4), 2)
    assert reuse.reused == 0
    torch.testing.assert_close(answer.logits, decode(WithCache(model), (1, 2, 3, 4), 2).logits, **CLOSE)


# --- what is relied on in transformers (user reports 34, 35)


def test_cropping_takes_a_number_to_remove_and_frees_memory_only_later(tiny):
    decoder = WithCache(tiny("llama"))
    decoder.advance(tuple(range(20)))
    with pytest.raises(ValueError, match="positive"):  # it was the length to keep in earlier versions
        decoder.cache.crop(5)
    decoder.cache.crop(-15)
    keys = decoder.cache.layers[0].keys
    assert keys.shape[2] == 5
    assert keys.untyped_storage().nbytes() == 4 * keys.nbytes
    decoder.ids = decoder.ids[:5]
    decoder.advance((1,))
    keys = decoder.cache.layers[0].keys
    assert keys.untyped_storage().nbytes() == keys.nbytes


def test_a_reset_cache_is_as_good_as_a_new_one(tiny):
    model, cache = tiny("llama"), DynamicCache()
    WithCache(model, cache).advance((1, 2, 3))
    cache.reset()
    assert cache.get_seq_length() == 0
    assert torch.equal(WithCache(model, cache).advance((4, 5)), WithCache(model).advance((4, 5)))


def test_another_batch_size_is_an_error_and_repeating_the_cache_is_right(tiny):
    model = tiny("llama")
    decoder = WithCache(model)
    decoder.advance((1, 2, 3))
    pair = torch.tensor([[7], [8]])
    with torch.inference_mode():
        with pytest.raises(RuntimeError, match="must match"):
            model.lm(input_ids=pair, cache=copy.deepcopy(decoder.cache), use_cache=True)
        decoder.cache.batch_repeat_interleave(2)
        both = model.lm(input_ids=pair, cache=decoder.cache, use_cache=True).logits[:, -1]
    for row, last in zip(both, (7, 8), strict=True):
        torch.testing.assert_close(row, WithCache(model).advance((1, 2, 3, last)), **CLOSE)


@pytest.mark.parametrize("length", [9, 16, 100])
def test_the_length_of_a_static_cache_changes_nothing(tiny, length):
    model = tiny("llama")
    static = WithCache(model, StaticCache(model.lm.config, max_cache_len=length))
    followed = follow(static, (1, 2, 3, 4), (5, 6, 7, 8, 9))
    torch.testing.assert_close(followed.logits, follow(WithCache(model), (1, 2, 3, 4), (5, 6, 7, 8, 9)).logits, **CLOSE)
