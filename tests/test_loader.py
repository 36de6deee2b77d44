"""Layers read from files behind the computation: the same result to the bit, and never a damaged byte."""

import os
import threading
import time

import pytest
import torch
from chunks import assert_same, make_chunk
from conftest import FAMILIES, tiny_model
from hypothesis import given, settings
from hypothesis import strategies as st
from prefills import CHUNKED, RATIOS, a_prompt, assert_full, assert_identical, prompts, replaced

from replication.chunk import ChunkKV
from replication.errors import ReplicationError
from replication.layer_store import DamagedChunk, LayerStore
from replication.loader import Loader, pipelined_prefill
from replication.methods import make_method
from replication.store import SUFFIX, DirectoryStore, MemoryStore
from replication.throttle import TokenBucket

METHODS = [
    name for name in CHUNKED if not (make_method(name).selector.needs_truth or make_method(name).selector.scouts)
]
DEPTH = 4
# K and V, heads, head dim and bytes a number, for the stored tokens of `a_prompt`
LAYER_BYTES = 2 * 2 * 8 * 4 * sum(len(segment.ids) for segment in a_prompt().chunks)


def learned(folder, method, *requests):
    """A layer store and a memory store that have seen these requests."""
    stores = LayerStore(folder), MemoryStore()
    for store in stores:
        for request in requests:
            method.learn(tiny_model("llama"), request, store)
    return stores


# --- the same result


@settings(max_examples=30, deadline=None)
@given(prompt=prompts(), name=st.sampled_from(METHODS), ratio=RATIOS, ahead=st.integers(0, DEPTH), data=st.data())
def test_pipelined_prefill_is_bit_equal_to_prefill_from_memory(tmp_path_factory, prompt, name, ratio, ahead, data):
    """For any hits and misses of its chunks, too."""
    method = make_method(name, ratio)
    kept = [i for i, s in enumerate(prompt.segments) if s.kind == "passage" and data.draw(st.booleans(), f"keep {i}")]
    earlier = prompt
    for index, segment in enumerate(prompt.segments):
        if segment.kind == "passage" and index not in kept:
            earlier = replaced(earlier, index, (*segment.ids, 2))
    layered, memory = learned(tmp_path_factory.mktemp("kv"), method, earlier)
    found, _ = pipelined_prefill(method, tiny_model("llama"), prompt, layered, ahead)
    expected = method.prefill(tiny_model("llama"), prompt, memory)
    assert_identical(found, expected)
    for field in ("rows", "selected", "reused"):
        assert getattr(found.report, field) == getattr(expected.report, field)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_pipelines(tiny, tmp_path, family):
    model, prompt, method = tiny(family), a_prompt(), make_method("cacheblend-paper", 1.0)
    store = LayerStore(tmp_path)
    method.learn(model, prompt, store)
    assert_full(model, prompt, pipelined_prefill(method, model, prompt, store)[0])


def test_nothing_stored_is_full_prefill(tmp_path):
    model, prompt = tiny_model("llama"), a_prompt()
    found, trace = pipelined_prefill(make_method("cacheblend-paper", 0.2), model, prompt, LayerStore(tmp_path))
    assert_full(model, prompt, found)
    assert {event.kind for event in trace} == {"request", "compute"}


def test_the_model_is_left_as_it_was(tmp_path):
    model, prompt = tiny_model("llama"), a_prompt()
    method = make_method("cacheblend-paper", 0.2)
    layered, _ = learned(tmp_path, method, prompt)
    pipelined_prefill(method, model, prompt, layered)
    assert not any("forward" in layer.__dict__ for layer in model.layers)
    assert not any(thread.name == "kv-loader" for thread in threading.enumerate())


# --- what happens when


def events(trace, kind):
    return {e.layer: e for e in trace if e.kind == kind}


@pytest.mark.parametrize("ahead", [0, 1, 2, DEPTH])
def test_a_layer_is_loaded_no_earlier_than_allowed_and_computed_no_earlier_than_loaded(tmp_path, ahead):
    method = make_method("cacheblend-paper", 0.3)
    layered, _ = learned(tmp_path, method, a_prompt())
    _, trace = pipelined_prefill(method, tiny_model("llama"), a_prompt(), layered, ahead)
    loads, waits, computes = (events(trace, kind) for kind in ("load", "wait", "compute"))
    assert list(loads) == list(waits) == list(computes) == list(range(DEPTH))
    for index in range(DEPTH):
        assert loads[index].end <= waits[index].end <= computes[index].end
        if index >= max(1, ahead):
            allowed = waits[index].begin if ahead == 0 else waits[index - ahead].end
            assert loads[index].begin >= allowed


def test_loading_overlaps_computing_only_where_it_may(tmp_path):
    """A device that takes 20 ms a layer, and 20 ms of work between layers."""
    model, method, prompt = tiny_model("llama"), make_method("full-reuse"), a_prompt()
    layered, _ = learned(tmp_path, method, prompt)
    layered.bucket = TokenBucket(LAYER_BYTES / 0.02)
    overlaps = []
    for ahead in (0, 1):
        worked = []
        with Loader(model, prompt.ids, method.source.find(model, prompt, layered), ahead=ahead) as loader:
            for index in range(DEPTH):
                loader.layer(index)
                time.sleep(0.02)
                worked.append(time.perf_counter())
        loads = events(loader.trace, "load")
        overlaps.append(sum(loads[index + 1].begin < worked[index] for index in range(DEPTH - 1)))
        assert all(load.end - load.begin > 0.019 for load in loads.values())
    assert overlaps[0] == 0
    assert overlaps[1] > 0


def test_ttft_is_the_sum_of_its_parts(tmp_path):
    method = make_method("cacheblend-paper", 0.3)
    layered, _ = learned(tmp_path, method, a_prompt())
    layered.bucket = TokenBucket(1e6)
    seconds = pipelined_prefill(method, tiny_model("llama"), a_prompt(), layered)[0].report.seconds
    assert seconds["ttft"] == pytest.approx(seconds["lookup"] + seconds["wait"] + seconds["fuse"])
    assert seconds["loader"] > 0.99 * DEPTH * LAYER_BYTES / 1e6
    assert seconds["wait"] > 0


# --- the interface


def test_fetch_kv_gives_a_chunk_as_stored_or_minus_1(tmp_path):
    method, prompt = make_method("full-reuse"), a_prompt()
    layered, memory = learned(tmp_path, method, prompt)
    loader = Loader(tiny_model("llama"), prompt.ids, method.source.find(tiny_model("llama"), prompt, layered))
    for piece in method.source.find(tiny_model("llama"), prompt, memory):
        for layer in range(DEPTH):
            found = loader.fetch_kv(piece.chunk.ids, layer)
            assert all(torch.equal(a, b) for a, b in zip(found, piece.chunk.layer(layer), strict=True))
    assert loader.fetch_kv((1, 2, 3), 0) == -1


def test_layers_come_once_and_in_order(tmp_path):
    method, prompt = make_method("full-reuse"), a_prompt()
    _, memory = learned(tmp_path, method, prompt)
    model = tiny_model("llama")
    with Loader(model, prompt.ids, method.source.find(model, prompt, memory), ahead=DEPTH) as loader:
        loader.layer(1)
        assert loader.layer(3)[0].shape[2] == len(prompt)
        for passed in (0, 1, 2, 3):
            with pytest.raises(ReplicationError, match="in order"):
                loader.layer(passed)


def test_bad_settings_are_refused(tmp_path):
    with pytest.raises(ReplicationError, match="at least 0"):
        Loader(tiny_model("llama"), (1, 2), [], ahead=-1)
    with pytest.raises(ReplicationError, match="oracle"):
        pipelined_prefill(make_method("oracle", 0.2), tiny_model("llama"), a_prompt(), LayerStore(tmp_path))


# --- files


def test_layers_come_back_bit_equal_whatever_their_order_and_size(tmp_path):
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for n in (0, 1, 5):
            chunk = make_chunk(n, dtype=dtype, layers=12)
            store = LayerStore(tmp_path)
            store.put("a", chunk)
            found = store.get("a")
            pairs = [found.layer(index) for index in reversed(range(12))][::-1]
            assert_same(ChunkKV(found.ids, found.start, *map(list, zip(*pairs, strict=True)), found.context), chunk)
    assert_same(DirectoryStore(tmp_path).get("a"), chunk)


def test_a_files_layers_lie_in_order(tmp_path):
    """So that a disk reads ahead what is wanted next."""
    store = LayerStore(tmp_path)
    store.put("a", make_chunk(layers=12))
    spans = [span for index in range(12) for span in store.get("a")._header.layer(index)]
    assert [span.start for span in spans[1:]] == [span.stop for span in spans[:-1]]


def test_an_evicted_chunk_can_still_be_read(tmp_path):
    store, chunk = LayerStore(tmp_path), make_chunk()
    store.put("a", chunk)
    found = store.get("a")
    (tmp_path / ("a" + SUFFIX)).unlink()
    assert torch.equal(found.layer(1)[0], chunk.keys[1])
    assert store.get("a") is None


def test_any_damaged_byte_is_a_miss_or_is_noticed_in_its_layer(tmp_path):
    store, chunk = LayerStore(tmp_path), make_chunk(1, layers=2)
    store.put("a", chunk)
    (file,) = tmp_path.iterdir()
    good = file.read_bytes()
    body = store.get("a")._header.layer(0)[0].start
    for position in range(0, len(good), 3):
        damaged = bytearray(good)
        damaged[position] ^= 1 + position % 255
        file.write_bytes(damaged)
        found = store.get("a")
        assert (found is None) == (position < body)
        if found is not None:
            with pytest.raises(DamagedChunk, match="checksum"):
                [found.layer(index) for index in range(2)]
    for content in (good[:-1], good + b"\0", b""):
        file.write_bytes(content)
        assert store.get("a") is None
        assert not file.exists()


@pytest.mark.parametrize("layer", range(DEPTH))
@pytest.mark.parametrize("name", ["cacheblend-paper", "full-reuse"])
def test_a_chunk_damaged_in_any_layer_is_dropped_and_computed(tmp_path, layer, name):
    """The request starts again without it: the result is that of a store that never had it."""
    model, method, prompt = tiny_model("llama"), make_method(name, 0.2), a_prompt()
    layered, memory = learned(tmp_path, method, prompt)
    passage = next(s for s in prompt.segments if s.kind == "passage")
    (file,) = [f for f in tmp_path.iterdir() if layered.get(f.name.removesuffix(SUFFIX)).ids == passage.ids]
    chunk = layered.get(file.name.removesuffix(SUFFIX))
    with open(file, "r+b") as handle:
        handle.seek(chunk._header.layer(layer)[1].start)
        handle.write(b"\xff")
    found, _ = pipelined_prefill(method, model, prompt, layered)
    assert not file.exists()
    memory._drop(file.name.removesuffix(SUFFIX))
    assert_identical(found, method.prefill(model, prompt, memory))
    assert found.report.reused == sum(len(s.ids) for s in prompt.chunks) - len(passage.ids)


def test_a_truncated_file_is_noticed_while_it_is_read(tmp_path):
    store = LayerStore(tmp_path)
    store.put("a", make_chunk(layers=2))
    found = store.get("a")
    os.truncate(tmp_path / ("a" + SUFFIX), found._header.nbytes - 4)
    found.layer(0)
    with pytest.raises(DamagedChunk, match="cut short"):
        found.layer(1)


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="this system cannot drop cached pages")
def test_forgetting_cached_pages_loses_nothing(tmp_path):
    store, chunk = LayerStore(tmp_path), make_chunk()
    store.put("a", chunk)
    store.forget_cached()
    assert torch.equal(store.get("a").layer(0)[1], chunk.values[0])
