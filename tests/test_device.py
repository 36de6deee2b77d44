"""Fused prefill on a device that is not the CPU: pretended, and on the real one that REPLICATION_DEVICE names."""

import functools
import os
from itertools import product
from types import SimpleNamespace

import elsewhere
import pytest
import torch
from conftest import FAMILIES, tiny_lm
from invariants import (
    assert_a_pattern_of_hits_works,
    assert_moved_keys_are_those_of_the_new_place,
    assert_no_attention_across_chunks,
    assert_one_true_prefix_is_exact,
    assert_requests_repeat_and_leave_the_store,
    assert_rows_see_nothing_later,
)
from prefills import (
    BLENDING,
    EXACT,
    FEW,
    a_prompt,
    assert_close,
    assert_full,
    backwards,
    kv,
    learned,
    reuse_alone,
    run,
    tokens,
    transformers_cache,
    transformers_logits,
)

from replication.caches.prefix import PrefixCache
from replication.caches.request import WithCache, decode
from replication.chunk import ChunkKV
from replication.decode import answer_logprobs
from replication.layer_store import LayerStore
from replication.loader import Loader, pipelined_prefill
from replication.masked import Faults, masked_prefill
from replication.methods import METHODS, make_method
from replication.model import DTYPES, Model, wrap
from replication.rotary import KeyRotation
from replication.store import DirectoryStore, HostStore, MemoryStore
from replication.stored import StoredKV

REAL = os.environ.get("REPLICATION_DEVICE")


@pytest.fixture(params=["elsewhere", *([REAL] if REAL else [])])
def device(request, monkeypatch):
    """The device's name."""
    if request.param != "elsewhere":
        yield request.param
        return
    load = Loader._load

    def load_there(loader):
        with elsewhere.pretended():
            load(loader)

    monkeypatch.setattr(Loader, "_load", load_there)
    with elsewhere.pretended():
        yield request.param


@functools.cache
def model_on(device: str, family: str, dtype: str = "float32") -> Model:
    lm = tiny_lm(family).to(DTYPES[dtype])
    return wrap(f"tiny-{family}", elsewhere.moved(lm) if device == "elsewhere" else lm.to(device))


@functools.cache
def store_on(device: str) -> MemoryStore:
    """What every method keeps of a request on the tiny Llama."""
    return learned(model_on(device, "llama"), a_prompt())


def test_what_is_pretended_refuses_tensors_of_two_devices():
    with elsewhere.pretended():
        one = torch.ones(3, device=elsewhere.DEVICE)
        assert (one + torch.arange(3, device=elsewhere.DEVICE)).tolist() == [1, 2, 3]
        assert torch.tensor([4, 5], device=elsewhere.DEVICE)[1].item() == 5
        with pytest.raises(RuntimeError, match="same device"):
            one + torch.arange(3)


@pytest.mark.parametrize("family", FAMILIES)
def test_ratio_1_is_full_prefill_and_stays_on_the_device(device, family):
    model, prompt = model_on(device, family), a_prompt()
    result = run(model, "cacheblend-paper", prompt)
    assert {t.device for t in (*kv(result.cache), result.logits)} == {model.device}
    assert model.device.type != "cpu" or device == "cpu"
    assert_full(model, prompt, result)


@pytest.mark.parametrize("name", METHODS)
def test_every_method(device, name):
    model, prompt = model_on(device, "llama"), a_prompt()
    result = run(model, name, prompt, 1.0, store_on(device))
    if name in (*BLENDING, *EXACT):
        assert_full(model, prompt, result)
    store = store_on(device)
    some = run(model, name, prompt, 0.3, store)
    assert {t.device for t in (*kv(some.cache), some.logits)} == {model.device}
    again = run(model, name, prompt, 0.3, store)
    assert some.report.selected == again.report.selected
    assert_close([some.logits], [again.logits], 0)


@pytest.mark.parametrize("name", BLENDING)
def test_ratio_0_is_full_reuse_bit_for_bit(device, name):
    model, prompt = model_on(device, "llama"), a_prompt()
    store = store_on(device)
    result, reuse = run(model, name, prompt, 0.0, store), reuse_alone(name).prefill(model, prompt, store)
    assert_close([result.logits, *kv(result.cache)], [reuse.logits, *kv(reuse.cache)], 0)


@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
def test_chunks_come_back_from_host_memory_and_files(device, family, tmp_path):
    """The same bits as from the device's own memory, read at once or layer by layer behind the computation."""
    model, prompt, method = model_on(device, family), a_prompt(), make_method("cacheblend-paper", 0.3)
    found = []
    for store in (MemoryStore(), HostStore(), DirectoryStore(tmp_path / "kv"), LayerStore(tmp_path / "layers")):
        method.learn(model, backwards(prompt), store)
        found.append(method.prefill(model, prompt, store))
        found += [pipelined_prefill(method, model, prompt, store, ahead)[0] for ahead in (0, 1, 4)]
        if isinstance(store, HostStore):
            kept = [t for piece in method.source.find(model, prompt, store) for t in piece.chunk.keys]
            assert {t.device.type for t in kept} == {"cpu"}
            assert all(t.is_pinned() for t in kept) == (model.device.type == "cuda")
    for other in found[1:]:
        assert_close([other.logits, *kv(other.cache)], [found[0].logits, *kv(found[0].cache)], 0)


# --- what `test_fuse` and `test_rotary` assert of every family on the CPU


@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
def test_moved_keys_are_those_of_the_new_place(device, family):
    assert_moved_keys_are_those_of_the_new_place(model_on(device, family))


@pytest.mark.parametrize("name", FEW)
def test_one_true_prefix_is_exact_prefix_caching(device, name):
    assert_one_true_prefix_is_exact(model_on(device, "llama"), name)


@pytest.mark.parametrize("hits", list(product([True, False], repeat=3)))
def test_every_pattern_of_hits(device, hits):
    assert_a_pattern_of_hits_works(model_on(device, "llama"), hits)


def test_requests_repeat_and_leave_the_store_as_it_was(device):
    assert_requests_repeat_and_leave_the_store(model_on(device, "llama"), "cacheblend-paper")


def test_recomputed_rows_see_nothing_later(device):
    assert_rows_see_nothing_later(model_on(device, "llama"), "uniform")


def test_reuse_has_no_attention_across_chunks(device):
    assert_no_attention_across_chunks(model_on(device, "llama"), "full-reuse")


# --- what goes on from there


def test_the_prefix_cache_hits(device):
    model, ids = model_on(device, "llama"), tokens(50, 3)
    cache = PrefixCache(model, blocks=8, block_size=8)
    for reused in (0, 48):
        result = cache.prefill(ids)
        assert result.report.reused == reused
        assert_close(kv(result.cache), kv(transformers_cache(model, ids)))


def test_the_model_goes_on_from_the_cache(device):
    model, prompt, answer = model_on(device, "llama"), a_prompt(), tokens(4, 9)
    result = run(model, "cacheblend-paper", prompt)
    expected = transformers_logits(model, (*prompt.ids, *answer))[len(prompt) - 1 : -1].float().log_softmax(-1)
    assert_close([answer_logprobs(model, result, answer)], [expected])
    by_hand = decode(WithCache(model), prompt.ids, 4).ids
    assert decode(WithCache(model, result.cache, prompt.ids), by_hand[:1], 3).ids == by_hand[1:]


def test_masks_of_the_factorial(device):
    model, prompt = model_on(device, "mistral"), a_prompt()
    assert_full(model, prompt, masked_prefill(model, prompt, Faults()))
    naive = masked_prefill(model, prompt, Faults("stored", "own", "absent", 99))
    assert_close([naive.logits], [run(model, "naive", prompt).logits])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision(device, dtype):
    model, prompt = model_on(device, "qwen2", dtype), a_prompt()
    full = transformers_logits(model, prompt.ids)[-1]
    for name in ("full", "cacheblend-paper", "cacheblend-lmcache"):
        result = run(model, name, prompt)
        assert {t.dtype for t in (*kv(result.cache), result.logits)} == {DTYPES[dtype]}
        assert_close([result.logits], [full], 0.05 * full.abs().max().item())
    assert run(model, "full-reuse", prompt).logits.isfinite().all()


# --- clocks


class SlowDevice:
    """A device that computes only while it is waited for. now: what a clock says."""

    def __init__(self):
        self.now = self.asked = 0.0

    def wait(self, device) -> None:
        self.now, self.asked = self.now + self.asked, 0.0

    def asks(self, seconds: float, work):
        def asked(*args, **kwargs):
            self.asked += seconds
            return work(*args, **kwargs)

        return asked


@pytest.fixture
def slow(monkeypatch) -> SlowDevice:
    device = SlowDevice()
    for module in ("replication.stored", "replication.methods.base"):
        monkeypatch.setattr(f"{module}.synchronize", device.wait)
        monkeypatch.setattr(f"{module}.time", SimpleNamespace(perf_counter=lambda: device.now))
    return device


def test_the_parts_are_times_of_the_work_and_not_of_asking_for_it(tiny, slow, monkeypatch):
    model, prompt = tiny("llama"), a_prompt()
    pieces = make_method("full-reuse").source.find(model, prompt, learned(model, prompt))
    monkeypatch.setattr(KeyRotation, "angles", slow.asks(5.0, KeyRotation.angles))
    monkeypatch.setattr(KeyRotation, "move", slow.asks(7.0, KeyRotation.move))
    monkeypatch.setattr(ChunkKV, "layer", slow.asks(1.0, ChunkKV.layer))
    slow.asked = 100.0  # by earlier work
    stored = StoredKV(model, prompt.ids, pieces)
    assert stored.seconds == {"load": 0, "rotate": 5}
    for index in range(4):
        slow.asked = 100.0  # by the layer before
        stored.layer(index)
    assert stored.seconds == {"load": 4 * len(pieces), "rotate": 5 + 4 * 7}


def test_building_chunks_is_waited_for(tiny, slow, monkeypatch):
    monkeypatch.setattr(
        "replication.methods.base.prefill_chunk", slow.asks(3.0, lambda model, ids, context: ChunkKV(ids, 0, [], []))
    )
    assert make_method("full-reuse").learn(tiny("llama"), a_prompt(), MemoryStore()) == 3 * 4
