"""The prefix cache on real tensors: what it finds, and that its output is full prefill's."""

import functools
import os
import random
import subprocess
import sys
from contextlib import ExitStack

import pytest
import torch
from conftest import FAMILIES, VOCABULARY, tiny_lm, tiny_model
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, rule

from replication.caches import prefix
from replication.caches.block_names import BlockNames, sha256
from replication.caches.prefix import PrefixCache
from replication.decode import generate
from replication.errors import ReplicationError
from replication.fuse import Prefill, fuse
from replication.model import wrap
from replication.prompt import chain
from replication.selectors.base import Selector
from replication.stored import StoredKV

PROMPTS = st.lists(st.integers(0, 1), min_size=1, max_size=9).map(tuple)


def full_prefill(model, ids) -> Prefill:
    return fuse(StoredKV(model, tuple(ids), []), Selector(ratio=0))


def random_ids(n: int, seed: int = 0) -> tuple[int, ...]:
    return tuple(random.Random(seed).choices(range(VOCABULARY), k=n))


def assert_equal_output(prefill: Prefill, reference: Prefill, tolerance: float = 1e-4) -> None:
    torch.testing.assert_close(prefill.logits, reference.logits, atol=tolerance, rtol=tolerance)
    assert prefill.cache.get_seq_length() == reference.cache.get_seq_length()
    for a, b in zip(prefill.cache.layers, reference.cache.layers, strict=True):
        torch.testing.assert_close(a.keys, b.keys, atol=tolerance, rtol=tolerance)
        torch.testing.assert_close(a.values, b.values, atol=tolerance, rtol=tolerance)


@functools.cache
def reference_of(ids) -> Prefill:
    return full_prefill(tiny_model("llama"), ids)


def weak(data: bytes) -> bytes:
    """A hash of five values: nearly everything collides."""
    return bytes([sum(data) % 5])


class Serving(RuleBasedStateMachine):
    """Requests of two tenants in flight over a pool that is too small for them; every output is full prefill's."""

    requests = Bundle("requests")
    hash = staticmethod(sha256)

    def __init__(self):
        super().__init__()
        self.cache = PrefixCache(tiny_model("llama"), blocks=5, block_size=2, hash=self.hash)

    @rule(target=requests, ids=PROMPTS, salt=st.sampled_from(("", "b")))
    def start(self, ids, salt):
        stack = ExitStack()
        return stack, stack.enter_context(self.cache.request(ids, salt))

    @rule(started=requests)
    def compute(self, started):
        _, request = started
        prefill = self.cache.compute(request)
        assert prefill.report.reused == min(2 * request.found, len(request.ids) - 1)
        assert_equal_output(prefill, reference_of(request.ids))

    @rule(started=consumes(requests))
    def end(self, started):
        started[0].close()


class ServingWithCollisions(Serving):
    hash = staticmethod(weak)


TestServing, TestServingWithCollisions = Serving.TestCase, ServingWithCollisions.TestCase
TestServing.settings = TestServingWithCollisions.settings = settings(
    max_examples=30, stateful_step_count=25, deadline=None
)


@settings(deadline=None, max_examples=60)
@given(st.lists(PROMPTS, min_size=1, max_size=6), st.integers(1, 5))
def test_reuse_is_the_longest_common_prefix_in_whole_blocks(prompts, block_size):
    cache = PrefixCache(tiny_model("llama"), blocks=100, block_size=block_size)
    for number, ids in enumerate(prompts):
        common = max((common_prefix(ids, earlier) // block_size for earlier in prompts[:number]), default=0)
        assert cache.prefill(ids).report.reused == min(common * block_size, len(ids) - 1)


def common_prefix(a, b) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


@pytest.mark.parametrize("n", [1, 15, 16, 17, 31, 32, 33])
def test_a_repeated_prompt_reuses_its_whole_blocks_but_not_its_last_token(n):
    """User reports 27 and 32."""
    cache, ids = PrefixCache(tiny_model("llama"), blocks=4), random_ids(n)
    assert cache.prefill(ids).report.reused == 0
    again = cache.prefill(ids)
    assert again.report.reused == min(n // 16 * 16, n - 1)
    assert again.report.rows == [n - again.report.reused] * 4
    assert_equal_output(again, full_prefill(tiny_model("llama"), ids))


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_gives_full_prefills_output(family):
    model = tiny_model(family)
    cache, ids = PrefixCache(model, blocks=20, block_size=4), random_ids(30)
    cache.prefill(ids[:21] + random_ids(5, seed=1))
    prefill = cache.prefill(ids)
    assert prefill.report.reused == 20
    assert_equal_output(prefill, full_prefill(model, ids))


def test_growing_one_requests_cache_changes_no_block():
    """User report 33: what generation appends must not reach the pool."""
    model = tiny_model("llama")
    cache, ids = PrefixCache(model, blocks=8, block_size=4), random_ids(14)
    for _ in range(3):
        prefill = cache.prefill(ids)
        assert_equal_output(prefill, full_prefill(model, ids))
        model.lm.generate(model.tensor((*ids, 5)), cache=prefill.cache, max_new_tokens=3, do_sample=False)
        for layer in prefill.cache.layers:
            layer.keys.zero_()


def test_salt_isolates_and_no_field_runs_into_another():
    cache, ids = PrefixCache(tiny_model("llama"), blocks=20, block_size=4), random_ids(16)
    cache.prefill(ids, salt="a")
    assert cache.prefill(ids, salt="b").report.reused == 0
    assert cache.prefill(ids).report.reused == 0
    assert cache.prefill(ids, salt="a").report.reused == 15
    fields = [("ab", "c"), ("a", "bc"), ("abc", ""), ("", "abc")]
    assert len({BlockNames(model, 2).of((1, 2), salt)[0].key for model, salt in fields}) == len(fields)


def test_another_model_dtype_or_block_size_has_other_keys():
    small, large = (PrefixCache(tiny_model("llama"), blocks=1, block_size=b) for b in (2, 4))
    other = PrefixCache(wrap("other", tiny_lm("llama", seed=1)), blocks=1, block_size=2)
    half = PrefixCache(wrap("half", tiny_lm("llama").bfloat16()), blocks=1, block_size=2)
    ids = random_ids(4)
    keys = [cache.names.of(ids)[-1].key for cache in (small, large, other, half)]
    assert len(set(keys)) == 4


def test_keys_are_the_same_in_every_process():
    """User report 24: Python's own hash differs between processes, or worse, does not where one relies on it."""
    code = """
from replication.caches.block_names import BlockNames
print(BlockNames("m", 2).of((1, 2, 3, 4), "s")[1].key.hex())
"""
    for seed in ("0", "1"):
        environment = {"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        found = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=True)
        assert found.stdout.decode().strip() == "b9a54f91a80733db655fbd53863b4627c82d7a10c9cc005b166bea34e491c10d"


def polynomial(data: bytes) -> bytes:
    """Base 31 over 8-byte words modulo 2^61 - 1, as fast hashes of token lists are: one token less by 31 and the one
    before it more by 1 cancel out."""
    value = 0
    for at in range(0, len(data) - len(data) % 8, 8):
        value = (31 * value + int.from_bytes(data[at : at + 8], "little")) % (2**61 - 1)
    return value.to_bytes(8, "little")


def test_a_colliding_key_never_serves_wrong_kv():
    """User report 25: without comparing token ids the second prompt would be answered from the first one's KV."""
    model = tiny_model("llama")
    cache = PrefixCache(model, blocks=8, block_size=4, hash=polynomial)
    first = (3, 40, 50, 60, 7, 8, 9, 10, 11)
    second = (3, 41, 19, 60, 7, 8, 9, 10, 11)
    assert [n.key for n in cache.names.of(first)] == [n.key for n in cache.names.of(second)]
    wrong = cache.prefill(first)
    with cache.request(second) as request:
        assert (request.found, request.missed) == (0, "collision")
        right = cache.compute(request)
    assert_equal_output(right, full_prefill(model, second))
    assert (wrong.logits - right.logits).abs().max() > 0.1
    assert cache.prefill(first).report.reused == 8


def test_why_a_block_missed():
    """User report 30."""
    cache = PrefixCache(tiny_model("llama"), blocks=2, block_size=4)

    def missed(ids, salt=""):
        with cache.request(ids, salt) as request:
            cache.compute(request)
            return request.missed

    a, b = random_ids(8, seed=1), random_ids(8, seed=2)
    assert [missed(a), missed(a), missed(a, "salt"), missed(a), missed(b)] == [
        "unknown", None, "unknown", "evicted", "unknown",
    ]  # fmt: skip
    assert missed(a[:3]) is None  # no whole block, so none was looked for


def test_a_failed_request_leaves_nothing_behind(monkeypatch):
    cache = PrefixCache(tiny_model("llama"), blocks=4, block_size=4)

    def fail(*args, **kwargs):
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(prefix, "fuse", fail)
        with pytest.raises(RuntimeError, match="out of memory"):
            cache.prefill(random_ids(16))
    assert cache.pool.empty == 4
    assert cache.prefill(random_ids(16)).report.reused == 0


def test_blocks_come_back_bit_equal_in_bf16():
    """User report 29: reuse itself changes no bit; what differs is the order of sums in the tokens computed anew."""
    model = wrap("half", tiny_lm("llama").bfloat16())
    cache, ids = PrefixCache(model, blocks=8, block_size=4), random_ids(18)
    cold, warm = cache.prefill(ids), cache.prefill(ids)
    assert warm.report.reused == 16
    for a, b in zip(cold.cache.layers, warm.cache.layers, strict=True):
        assert torch.equal(a.keys[:, :, :16], b.keys[:, :, :16])
        assert torch.equal(a.values[:, :, :16], b.values[:, :, :16])
    torch.testing.assert_close(cold.logits, warm.logits, atol=0.1, rtol=0.1)


def test_bad_input_is_refused():
    model = tiny_model("llama")
    cache = PrefixCache(model, blocks=2)
    for ids, message in (((), "empty"), ((1.5,) * 16, "whole numbers"), ((1,) * 513, "exceed the model's context")):
        with pytest.raises(ReplicationError, match=message):
            cache.prefill(ids)
    for sizes, message in (((0, 16), "at least 1 block"), ((2, 0), "at least 1 token")):
        with pytest.raises(ReplicationError, match=message):
            PrefixCache(model, *sizes)
    assert cache.pool.empty == 2


def test_the_real_model_answers_the_same_and_reports_its_seconds(smollm2):
    tokenizer = smollm2.tokenizer
    shared = tuple(tokenizer("The lighthouse keeper wrote down every ship that passed. " * 30)["input_ids"])
    question = tuple(tokenizer("\nQuestion: What did the keeper write down?\nAnswer:")["input_ids"])
    cache, prompt = PrefixCache(smollm2, blocks=64), chain([("passage", shared), ("question", question)])
    cold, warm = cache.prefill(prompt), cache.prefill(prompt)
    assert warm.report.reused == len(prompt) // 16 * 16
    assert_equal_output(warm, cold, 1e-3)
    assert generate(smollm2, prompt.ids, warm) == generate(smollm2, prompt.ids, cold)
    seconds = warm.report.seconds
    assert seconds["ttft"] == pytest.approx(sum(seconds[k] for k in ("lookup", "load", "rotate", "fuse")))
    assert min(seconds.values()) >= 0
    assert cache.nbytes == 64 * 16 * 30 * 2 * 3 * 64 * 4
