"""Directory stores after damage, kills and full disks: whole entries or none."""

import errno
import multiprocessing
import os
import random
import signal
import time
from pathlib import Path

import pytest
import torch
from chunks import make_chunk

from replication.chunk import ChunkKV
from replication.errors import ReplicationError
from replication.store import SUFFIX, DirectoryStore


def test_any_damaged_byte_is_a_miss_and_the_file_goes(tmp_path):
    store = DirectoryStore(tmp_path)
    store.put("a", make_chunk(1, layers=1))
    (file,) = tmp_path.iterdir()
    good, rng = file.read_bytes(), random.Random(0)
    for position in range(len(good)):
        damaged = bytearray(good)
        damaged[position] ^= rng.randrange(1, 256)
        file.write_bytes(damaged)
        assert store.get("a") is None, position
        assert not file.exists(), position
    assert store.misses == len(good)
    store.put("a", make_chunk(1, layers=1))
    assert store.get("a") is not None


def test_truncated_extended_and_foreign_files_are_misses(tmp_path):
    store = DirectoryStore(tmp_path)
    store.put("a", make_chunk())
    file = tmp_path / ("a" + SUFFIX)
    good = file.read_bytes()
    for content in (*(good[:length] for length in range(0, len(good), 37)), good + b"\0", b"GIF89a", b"{}" * 500):
        file.write_bytes(content)
        assert store.get("a") is None
        assert not file.exists()


def test_file_under_another_key_is_a_miss(tmp_path):
    store = DirectoryStore(tmp_path)
    store.put("a", make_chunk())
    (tmp_path / ("a" + SUFFIX)).rename(tmp_path / ("b" + SUFFIX))
    assert store.get("b") is None
    assert len(store) == 0


@pytest.mark.parametrize("broken", ["fsync", "replace"])
def test_full_disk_says_what_to_do_and_leaves_nothing(tmp_path, monkeypatch, broken):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    store = DirectoryStore(tmp_path)
    monkeypatch.setattr(os, broken, full)
    with pytest.raises(ReplicationError, match="free some space"):
        store.put("a", make_chunk())
    assert list(tmp_path.iterdir()) == []


def write_entries(folder: Path, half_written: bool) -> None:
    """Puts entries without end, or kills its own process with half of the sixth one written."""

    def truncate_and_die(temp, _):
        os.truncate(temp, os.path.getsize(temp) // 2)
        os.kill(os.getpid(), signal.SIGKILL)

    store = DirectoryStore(folder)
    for number in range(100_000):
        if half_written and number == 5:
            os.replace = truncate_and_die
        # Many tensors too small for torch to use threads, which do not survive a fork.
        kv = [torch.full((2, 256, 16), float(number)) for _ in range(32)]
        store.put(str(number % 50), ChunkKV((number,), 0, kv[:16], kv[16:]))


def run_until_killed(folder: Path, half_written: bool) -> None:
    # Forked, because importing everything again would take most of the test's time.
    child = multiprocessing.get_context("fork").Process(target=write_entries, args=(folder, half_written))
    child.start()
    deadline = time.monotonic() + 60
    while child.is_alive() and (half_written or len(list(folder.glob("*" + SUFFIX))) < 5):
        assert time.monotonic() < deadline
        time.sleep(0.003)
    child.kill()
    child.join()
    assert child.exitcode == -signal.SIGKILL


def check_survivors(folder: Path) -> None:
    store = DirectoryStore(folder)
    keys = [file.name.removesuffix(SUFFIX) for file in folder.glob("*" + SUFFIX)]
    assert len(keys) >= 5
    for key in keys:
        chunk = store.get(key)
        assert all((tensor == chunk.ids[0]).all() for tensor in (*chunk.keys, *chunk.values))
    for file in folder.glob("*.partial"):
        os.utime(file, (0, 0))
    assert len(DirectoryStore(folder)) == len(keys)
    assert list(folder.glob("*.partial")) == []


def test_half_written_entry_of_a_killed_process_is_not_seen(tmp_path):
    run_until_killed(tmp_path, half_written=True)
    assert len(list(tmp_path.glob("*.partial"))) == 1
    check_survivors(tmp_path)


@pytest.mark.parametrize("attempt", range(3))
def test_kill_at_any_time_leaves_whole_entries_only(tmp_path, attempt):
    run_until_killed(tmp_path, half_written=False)
    check_survivors(tmp_path)


def test_young_partial_of_another_process_stays(tmp_path):
    partial = tmp_path / f".a{SUFFIX}.{'0' * 16}.partial"
    partial.touch()
    DirectoryStore(tmp_path)
    assert partial.exists()


def test_what_is_read_while_others_write_is_one_whole_entry(tmp_path):
    writers = [
        multiprocessing.get_context("fork").Process(target=write_entries, args=(tmp_path, False)) for _ in range(2)
    ]
    for writer in writers:
        writer.start()
    try:
        store, found, deadline = DirectoryStore(tmp_path), 0, time.monotonic() + 60
        while found < 50:
            assert time.monotonic() < deadline
            key = str(random.randrange(50))
            chunk = store.get(key)
            if chunk is not None:
                found += 1
                assert chunk.ids[0] % 50 == int(key)
                assert all((tensor == chunk.ids[0]).all() for tensor in (*chunk.keys, *chunk.values))
    finally:
        for writer in writers:
            writer.kill()
            writer.join()
