"""Chunk stores: keys, bounds, order of eviction, and what comes back."""

import importlib.util

import pytest
import torch
from chunks import assert_same, make_chunk
from hypothesis import given, settings
from hypothesis import strategies as st

from replication.chunk import ChunkKV
from replication.errors import ReplicationError
from replication.lmcache_store import LMCacheMemory
from replication.store import DirectoryStore, MemoryStore, chunk_key

TOKENS = st.lists(st.integers(0, 3), max_size=4).map(tuple)
KEY_PARTS = st.tuples(st.text("ab1", max_size=3), TOKENS, TOKENS, st.integers(0, 3), st.text("ab1", max_size=2))


def key_of(parts) -> str:
    fingerprint, ids, context, start, dtype = parts
    return chunk_key(fingerprint, ids, context, start, dtype=dtype)


@given(KEY_PARTS, KEY_PARTS)
def test_keys_are_equal_only_for_equal_parts(a, b):
    assert (key_of(a) == key_of(b)) == (a == b)


@given(st.lists(st.integers(0, 2**40), min_size=1, max_size=6))
def test_every_split_into_context_and_ids_has_its_own_key(tokens):
    keys = {chunk_key("m", tokens[cut:], tokens[:cut], dtype="f") for cut in range(len(tokens) + 1)}
    assert len(keys) == len(tokens) + 1


def test_key_is_pinned():
    """A change here means that every stored chunk is lost: raise FORMAT with it."""
    key = chunk_key("model", (1, 2), (3,), 4, dtype=torch.bfloat16)
    assert key == chunk_key("model", [1, 2], [3], 4, dtype="bfloat16")
    assert key == "eb07ff8c923c90787b2ea47aec678463192cb191b4c1ab8763dfcdbaa6f414a8"


def test_key_refuses_fractional_ids():
    with pytest.raises(TypeError):
        chunk_key("model", [1.5], dtype="f")


NEEDS_LMCACHE = pytest.mark.skipif(
    importlib.util.find_spec("lmcache") is None,
    reason="LMCache is not installed: run `bash scripts/engines/lmcache.sh`",
)


@pytest.fixture(params=["memory", "directory", pytest.param("lmcache", marks=NEEDS_LMCACHE)])
def new_store(request, tmp_path):
    def make(max_bytes=None):
        if request.param == "lmcache":
            return LMCacheMemory(max_bytes or 2**20)
        return MemoryStore(max_bytes) if request.param == "memory" else DirectoryStore(tmp_path / "kv", max_bytes)

    return make


def size_in(new_store, tmp_path, chunk: ChunkKV) -> int:
    """What the store counts for one chunk."""
    probe = new_store()
    probe.put("probe", chunk)
    size = probe.nbytes
    for file in (tmp_path / "kv").glob("*"):
        file.unlink()
    return size


def test_get_put_and_counts(new_store):
    store, chunk = new_store(), make_chunk()
    assert store.get("a") is None
    store.put("a", chunk)
    store.put("a", chunk)
    assert_same(store.get("a"), chunk)
    assert "a" in store
    assert "b" not in store
    assert (len(store), store.hits, store.misses, store.evictions) == (1, 1, 1, 0)
    assert store.nbytes >= chunk.nbytes


def test_least_recently_used_goes_first(new_store, tmp_path):
    size = size_in(new_store, tmp_path, make_chunk())
    # Names and metadata of the same length, so that all entries are of one size.
    store = new_store(3 * size)
    for key in ("aaaaa", "bbbbb", "ccccc"):
        store.put(key, make_chunk())
    store.get("aaaaa")
    store.put("ddddd", make_chunk())
    assert [key in store for key in ("aaaaa", "bbbbb", "ccccc", "ddddd")] == [True, False, True, True]
    store.put("ccccc", make_chunk())
    store.put("eeeee", make_chunk())
    assert [key in store for key in ("aaaaa", "ccccc", "ddddd", "eeeee")] == [False, True, True, True]
    assert store.evictions == 2


def test_chunk_above_the_bound_is_refused_and_nothing_is_lost(new_store, tmp_path):
    size = size_in(new_store, tmp_path, make_chunk())
    store = new_store(size)
    store.put("small", make_chunk())
    with pytest.raises(ReplicationError, match="raise the store's bound"):
        store.put("large", make_chunk(n=500))
    assert "small" in store
    assert (len(store), store.evictions) == (1, 0)


ACTIONS = st.lists(st.tuples(st.booleans(), st.sampled_from("abcde"), st.integers(0, 40)), max_size=12)


def check_bound(store, actions) -> None:
    model = {}
    for is_put, key, n in actions:
        if is_put:
            chunk = model[key] = make_chunk(n, seed=n)
            store.put(key, chunk)
            assert key in store
        else:
            found = store.get(key)
            assert found is None or found.ids == model[key].ids
        assert store.nbytes <= store.max_bytes
        assert len(store) <= len(model)


@given(ACTIONS, st.integers(5200, 12000))
def test_memory_bound_holds(actions, bound):
    store = MemoryStore(bound)
    check_bound(store, actions)
    assert store.nbytes == sum(store.get(key).nbytes for key in "abcde" if key in store)


@settings(max_examples=25, deadline=None)
@given(actions=ACTIONS, bound=st.integers(7000, 14000))
def test_directory_bound_holds(tmp_path_factory, actions, bound):
    folder = tmp_path_factory.mktemp("kv")
    check_bound(DirectoryStore(folder, bound), actions)
    assert sum(file.stat().st_size for file in folder.iterdir()) <= bound


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_tensors_come_back_bit_equal(tmp_path, dtype):
    chunk = make_chunk(5, dtype=dtype)
    # NaN payloads, signed zeros and infinities are bits too.
    chunk.keys[0][0, 0] = torch.tensor([float("nan"), -0.0, float("inf"), -float("inf")], dtype=dtype)
    store = DirectoryStore(tmp_path)
    store.put("a", chunk)
    assert_same(store.get("a"), chunk)


def test_views_shared_and_empty_tensors(tmp_path):
    base = torch.randn(2, 6, 4).transpose(0, 1)
    empty = torch.empty(2, 0, 4)
    store = DirectoryStore(tmp_path)
    for key, tensors in (("views", [base, base[:3]]), ("empty", [empty, empty]), ("none", [])):
        chunk = ChunkKV((1,), 0, tensors, tensors)
        store.put(key, chunk)
        assert_same(store.get(key), chunk)


def test_memory_store_returns_the_object_itself():
    store, chunk = MemoryStore(), make_chunk()
    store.put("a", chunk)
    assert store.get("a") is chunk


def test_restart_keeps_entries_and_their_order(tmp_path):
    store = DirectoryStore(tmp_path)
    for number, key in enumerate("abc"):
        store.put(key, make_chunk(seed=number))
    store.get("a")
    size = store.nbytes
    again = DirectoryStore(tmp_path, max_bytes=size)
    assert_same(again.get("c"), make_chunk(seed=2))
    again.put("d", make_chunk())
    assert [key in again for key in "abcd"] == [True, False, True, True]
    smaller = DirectoryStore(tmp_path, max_bytes=size // 2)
    assert smaller.nbytes <= size // 2
    assert "d" in smaller


def test_unsafe_key_is_refused(tmp_path):
    with pytest.raises(ReplicationError, match="chunk_key"):
        DirectoryStore(tmp_path).put("../a", make_chunk())


def test_other_files_of_the_folder_stay(tmp_path):
    other = tmp_path / "model.safetensors"
    other.write_bytes(b"x" * 10_000)
    store = DirectoryStore(tmp_path, max_bytes=5_000)
    store.put("a", make_chunk())
    assert other.exists()
    assert len(store) == 1
