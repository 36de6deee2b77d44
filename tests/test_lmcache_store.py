"""Chunk stores over LMCache's real engine: what comes back, what outlives it, and what it leaves in the process."""

import gc
import importlib.util
import multiprocessing
import os
import random
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from chunks import assert_same, make_chunk
from hypothesis import given, settings
from hypothesis import strategies as st
from prefills import a_prompt, assert_identical
from redis_server import redis_binary, running_redis
from test_store import ACTIONS, check_bound

from replication.errors import ReplicationError
from replication.lmcache_store import PAGE, LMCacheFolder, LMCacheMemory, LMCacheRedis
from replication.methods import make_method
from replication.store import MemoryStore

pytest.importorskip("lmcache", reason="LMCache is not installed: run `bash scripts/engines/lmcache.sh`")
needs_redis = pytest.mark.skipif(redis_binary() is None, reason="no redis-server: apt install redis-server")

SMALL = 2**20


@pytest.fixture
def redis_url(tmp_path):
    with running_redis(tmp_path) as (url, _):
        yield url


@pytest.fixture(params=["memory", "folder", pytest.param("redis", marks=needs_redis)])
def store(request, tmp_path):
    """A small store in each of the three places."""
    if request.param == "memory":
        return LMCacheMemory(SMALL)
    if request.param == "folder":
        return LMCacheFolder(tmp_path / "kv", SMALL)
    return LMCacheRedis(request.getfixturevalue("redis_url"), SMALL)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_tensors_come_back_bit_equal(store, dtype):
    chunk = make_chunk(5, dtype=dtype)
    chunk.keys[0][0, 0] = torch.tensor([float("nan"), -0.0, float("inf"), -float("inf")], dtype=dtype)
    assert store.get("a") is None
    store.put("a", chunk)
    assert_same(store.get("a"), chunk)
    assert "a" in store
    assert "b" not in store
    assert (len(store), store.hits, store.misses, store.evictions) == (1, 1, 1, 0)
    assert store.nbytes >= chunk.nbytes


def test_a_second_put_replaces_the_first(store):
    store.put("a", make_chunk(3, seed=1))
    store.put("b", make_chunk(4, seed=2))
    store.put("a", make_chunk(50, seed=3))
    assert_same(store.get("a"), make_chunk(50, seed=3))
    assert_same(store.get("b"), make_chunk(4, seed=2))
    assert len(store) == 2


def test_what_was_handed_out_is_the_callers_own(store):
    """LMCache reuses its memory; a chunk that somebody holds must not change with it."""
    store.put("a", make_chunk(seed=1))
    held = store.get("a")
    for number in range(20):
        store.put("a", make_chunk(40, seed=number))
    assert_same(held, make_chunk(seed=1))


def test_chunk_above_the_buffer_is_refused(store):
    store.put("small", make_chunk())
    with pytest.raises(ReplicationError, match="raise the store's bound"):
        store.put("large", make_chunk(n=20_000))
    assert "small" in store


@settings(max_examples=10, deadline=None)
@given(actions=ACTIONS, bound=st.integers(2 * PAGE, 6 * PAGE))
def test_bound_holds(actions, bound):
    store = LMCacheMemory(bound)
    check_bound(store, actions)
    store.close()


def test_fusing_from_it_is_fusing_from_memory(store, tiny):
    model, prompt = tiny("llama"), a_prompt()
    for name in ("cacheblend-lmcache", "shared-prefix"):
        method, memory = make_method(name, 0.3), MemoryStore()
        method.learn(model, prompt, memory)
        method.learn(model, prompt, store)
        reordered = prompt.reordered([2, 0, 1])
        assert_identical(method.prefill(model, reordered, store), method.prefill(model, reordered, memory))


# --- a folder


def test_any_damaged_byte_is_a_miss_and_a_put_mends_it(tmp_path):
    store, chunk = LMCacheFolder(tmp_path, SMALL), make_chunk(1, layers=1)
    store.put("a", chunk)
    (file,) = tmp_path.iterdir()
    good, rng = file.read_bytes(), random.Random(0)
    for position in (*range(0, 64), *rng.sample(range(len(good)), 100)):
        damaged = bytearray(good)
        damaged[position] ^= rng.randrange(1, 256)
        file.write_bytes(damaged)
        assert store.get("a") is None, position
    for content in (good[:-1], good + b"\0", b"", b"GIF89a", good * 3000):
        file.write_bytes(content)
        assert store.get("a") is None
    store.put("a", chunk)
    assert_same(store.get("a"), chunk)


ANOTHER = """
import sys
from replication.lmcache_store import LMCacheFolder
store = LMCacheFolder(sys.argv[1], 2**20)
print(store.get("a").ids, len(store))
"""


def test_another_process_finds_it_and_ends_by_itself(tmp_path):
    """It closes nothing: what LMCache started must not keep it alive."""
    LMCacheFolder(tmp_path, SMALL).put("a", make_chunk())
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent.parent)}
    command = [sys.executable, "-c", ANOTHER, str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=400)
    assert (done.stdout, done.returncode) == ("(0, 1) 1\n", 0), done.stderr


def test_a_folder_that_is_gone_says_so(tmp_path):
    store = LMCacheFolder(tmp_path / "kv", SMALL)
    shutil.rmtree(tmp_path / "kv")
    with pytest.raises(ReplicationError, match="cannot write"):
        store.put("a", make_chunk())
    assert store.get("a") is None


def test_a_folder_that_lmcache_would_split_is_refused(tmp_path):
    with pytest.raises(ReplicationError, match="choose another"):
        LMCacheFolder(tmp_path / "a,b")


# --- Redis


@needs_redis
def test_redis_outlives_the_engine(redis_url):
    first = LMCacheRedis(redis_url, SMALL)
    first.put("a", make_chunk())
    first.close()
    assert_same(LMCacheRedis(redis_url, SMALL).get("a"), make_chunk())


@needs_redis
def test_a_lost_redis_is_a_miss_and_an_error_on_put(tmp_path):
    with running_redis(tmp_path) as (url, server):
        store = LMCacheRedis(url, SMALL)
        store.put("a", make_chunk())
        server.terminate()
        server.wait(10)
        assert store.get("a") is None
        with pytest.raises(ReplicationError, match="does not answer"):
            store.put("b", make_chunk())


def test_no_redis_says_what_to_do():
    with pytest.raises(ReplicationError, match="start a server there"):
        LMCacheRedis("redis://127.0.0.1:1", SMALL)


# --- what it leaves behind


def state() -> tuple:
    waits = {t.name for t in threading.enumerate() if not t.daemon and "aiofiles" not in t.name}
    return multiprocessing.get_start_method(allow_none=True), gc.isenabled(), dict(os.environ), waits


def test_the_process_is_as_it_was(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))  # where LMCache would note that it sends usage data
    before = state()
    store = LMCacheFolder(tmp_path / "kv", SMALL)
    assert state() == before
    store.put("a", make_chunk())
    store.get("a")
    store.close()
    store.close()
    assert state() == before
    assert [path.name for path in tmp_path.iterdir()] == ["kv"]


def test_a_store_that_is_dropped_frees_its_engine():
    threads = threading.active_count()
    for _ in range(5):
        LMCacheMemory(SMALL).put("a", make_chunk())
    gc.collect()
    assert threading.active_count() <= threads + 1


def test_without_lmcache_the_error_names_the_command(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ReplicationError, match=r"scripts/engines/lmcache\.sh"):
        LMCacheMemory()
