"""Content-addressed stores of chunk KV: in memory of the device or the host, or one checked file a chunk.

A key names everything that a chunk's KV depends on, so an entry is never stale: it is right, or it is not found.
"""

import logging
import os
import re
import threading
import time
from abc import ABC, abstractmethod
from collections import OrderedDict
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from replication.atomic import explained, remove_old_partials, write_atomic
from replication.chunk import ChunkKV
from replication.chunk_file import chunk_key, decode, encode
from replication.device import on_host
from replication.errors import ReplicationError

__all__ = ["ChunkStore", "DirectoryStore", "HostStore", "MemoryStore", "chunk_key"]

SUFFIX = ".kv.safetensors"

_LOG = logging.getLogger(__name__)
_SAFE_NAME = re.compile(r"[0-9a-z_-]{1,128}")


class ChunkStore(ABC):
    """What every store does: get, put, `in`, len, nbytes, and counts of hits, misses and evictions.

    max_bytes: bound on nbytes, kept by dropping the least recently used entries; None for no bound.
    """

    def __init__(self, max_bytes: int | None = None):
        if max_bytes is not None and max_bytes < 1:
            raise ReplicationError(f"a store's bound must be at least 1 byte, not {max_bytes}")
        self.max_bytes = max_bytes
        self.hits = self.misses = self.evictions = 0
        self._lock = threading.RLock()

    @abstractmethod
    def get(self, key: str) -> ChunkKV | None:
        """The chunk, now the most recently used one; None if it is not there."""

    @abstractmethod
    def put(self, key: str, chunk: ChunkKV) -> None:
        """Stores the chunk, in place of an earlier one. ReplicationError if it alone exceeds max_bytes."""

    @abstractmethod
    def __contains__(self, key: str) -> bool: ...

    @abstractmethod
    def __len__(self) -> int: ...

    @property
    @abstractmethod
    def nbytes(self) -> int: ...

    def _count(self, hit: bool) -> None:
        with self._lock:
            self.hits, self.misses = self.hits + hit, self.misses + (not hit)

    def _refuse_larger(self, nbytes: int) -> None:
        if self.max_bytes is not None and nbytes > self.max_bytes:
            what = f"a chunk of {nbytes} bytes does not fit in a store of {self.max_bytes} bytes"
            raise ReplicationError(f"{what}; raise the store's bound or use shorter chunks")


class MemoryStore(ChunkStore):
    """Chunks kept as they are, on their device; get returns the stored object, which callers never modify."""

    def __init__(self, max_bytes: int | None = None):
        super().__init__(max_bytes)
        self._chunks: OrderedDict[str, ChunkKV] = OrderedDict()
        self._nbytes = 0

    def get(self, key: str) -> ChunkKV | None:
        with self._lock:
            chunk = self._chunks.get(key)
            if chunk is not None:
                self._chunks.move_to_end(key)
            self._count(chunk is not None)
            return chunk

    def put(self, key: str, chunk: ChunkKV) -> None:
        self._refuse_larger(chunk.nbytes)
        with self._lock:
            self._drop(key)
            while self.max_bytes is not None and self._nbytes + chunk.nbytes > self.max_bytes:
                self._drop(next(iter(self._chunks)))
                self.evictions += 1
            self._chunks[key] = chunk
            self._nbytes += chunk.nbytes

    def _drop(self, key: str) -> None:
        old = self._chunks.pop(key, None)
        self._nbytes -= old.nbytes if old is not None else 0

    def __contains__(self, key: str) -> bool:
        return key in self._chunks

    def __len__(self) -> int:
        return len(self._chunks)

    @property
    def nbytes(self) -> int:
        """Bytes of all K and V tensors."""
        return self._nbytes


class HostStore(MemoryStore):
    """Chunks kept in the host's memory, whatever device they were made on; pinned where that is a GPU."""

    def put(self, key: str, chunk: ChunkKV) -> None:
        keys, values = ([on_host(tensor) for tensor in tensors] for tensors in (chunk.keys, chunk.values))
        super().put(key, replace(chunk, keys=keys, values=values))


class DirectoryStore(ChunkStore):
    """One safetensors file a chunk in a folder that processes may share and that outlives them.

    K and V come back bit-equal, on the CPU. A damaged, truncated or foreign file is a miss and is deleted. The
    files' times of modification say which was used last. Other files of the folder are left alone. While several
    processes put at once, max_bytes can be exceeded until the next put.
    """

    def __init__(self, path: str | Path, max_bytes: int | None = None):
        super().__init__(max_bytes)
        self.path = Path(path)
        self._last_use_ns = 0
        with explained(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        remove_old_partials(self.path)
        self._make_room(0)

    def get(self, key: str) -> ChunkKV | None:
        file = self._file(key)
        chunk = None
        try:
            chunk = self._read(key, file)
            self._touch(file)
        except OSError:  # not there, or not readable now, which says nothing about its content
            pass
        except Exception as error:  # whatever is wrong with the content, the chunk can be built again
            self.drop_damaged(key, error)
        self._count(chunk is not None)
        return chunk

    def _read(self, key: str, file: Path) -> ChunkKV:
        """The chunk in a file; OSError if that cannot be read, another exception if its content is wrong."""
        return decode(key, file.read_bytes())

    def drop_damaged(self, key: str, reason: Exception) -> None:
        """Deletes an entry whose content is wrong."""
        file = self._file(key)
        _LOG.warning("dropped the damaged entry %s: %s", file.name, reason)
        with suppress(OSError):
            file.unlink()

    def put(self, key: str, chunk: ChunkKV) -> None:
        """As ChunkStore.put; ReplicationError also when the disk is full, and then nothing is stored."""
        file = self._file(key)
        data = encode(key, chunk)
        self._refuse_larger(len(data))
        with self._lock:
            self._make_room(len(data), beside=file)
            write_atomic(file, data)
            self._touch(file)

    def __contains__(self, key: str) -> bool:
        """Whether there is a file; only get says whether it is sound."""
        return self._file(key).is_file()

    def __len__(self) -> int:
        return len(self._entries())

    @property
    def nbytes(self) -> int:
        """Bytes of all files, headers included."""
        return sum(size for _, size, _ in self._entries())

    def _file(self, key: str) -> Path:
        if not _SAFE_NAME.fullmatch(key):
            raise ReplicationError(f"'{key}' cannot name a stored chunk; use chunk_key to make keys")
        return self.path / (key + SUFFIX)

    def _entries(self) -> list[tuple[int, int, Path]]:
        """(last use in ns, bytes, file) of every entry, least recently used first."""
        found = []
        for file in self.path.glob("*" + SUFFIX):
            with suppress(FileNotFoundError):  # evicted by another process since the listing
                stat = file.stat()
                found.append((stat.st_mtime_ns, stat.st_size, file))
        return sorted(found)

    def _make_room(self, nbytes: int, beside: Path | None = None) -> None:
        """Evicts until nbytes more fit, not counting the file `beside` that they replace."""
        if self.max_bytes is None:
            return
        entries = [entry for entry in self._entries() if entry[2] != beside]
        excess = sum(size for _, size, _ in entries) + nbytes - self.max_bytes
        for _, size, file in entries:
            if excess <= 0:
                break
            with explained(file):
                file.unlink(missing_ok=True)
            self.evictions += 1
            excess -= size

    def _touch(self, file: Path) -> None:
        with self._lock:
            # Strictly rising, because the clock's steps can be longer than the time between two uses.
            self._last_use_ns = now = max(time.time_ns(), self._last_use_ns + 1)
        with suppress(OSError):  # evicted meanwhile, or a read-only folder: the entry is good all the same
            os.utime(file, ns=(now, now))
