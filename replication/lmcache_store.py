"""Chunk KV kept by LMCache's engine: in its CPU memory, in a folder (its `fs://`) or on a Redis server.

LMCache names an entry by a hash of its token ids, which cannot tell a chunk that was prefilled behind a prefix from one
that was prefilled alone, and it does not check what it reads. So an entry is named by the chunk's key here, and its
bytes are the checked file that `chunk_file` defines; LMCache's storage manager keeps, evicts and carries them.
"""

import asyncio
import logging
import weakref
from abc import abstractmethod
from pathlib import Path

import torch

from replication.atomic import explained
from replication.chunk import ChunkKV
from replication.chunk_file import FORMAT, decode, encode
from replication.errors import ReplicationError
from replication.lmcache_engine import contained, start_engine
from replication.store import ChunkStore

__all__ = ["LMCacheFolder", "LMCacheMemory", "LMCacheRedis"]

PAGE = 4096  # LMCache gives an entry whole pages of its memory
BUFFER = 2**28

_LOG = logging.getLogger(__name__)


class _LMCacheStore(ChunkStore):
    """One storage backend of an engine of its own. close(): ends the engine, as garbage collection does."""

    _PLACE: str

    def __init__(self, buffer_bytes: int, url: str | None = None, max_bytes: int | None = None):
        super().__init__(max_bytes)
        with contained():
            from lmcache.v1.config import LMCacheEngineConfig
            from lmcache.v1.metadata import LMCacheMetadata

            config = LMCacheEngineConfig.from_defaults(
                local_cpu=url is None,
                max_local_cpu_size=buffer_bytes / 2**30,
                remote_url=url,
                remote_serde="naive",
                # no header of LMCache's own: our checksum would not cover it, and LMCache waits for ever for the memory
                # that a damaged one asks for
                extra_config={"save_chunk_meta": False},
            )
            # to LMCache an entry is one layer of up to `buffer_bytes` tokens of one byte each
            shape = (1, 1, buffer_bytes, 1, 1)
            metadata = LMCacheMetadata(FORMAT, 1, 1, 0, 0, torch.uint8, shape, chunk_size=buffer_bytes)
        engine = start_engine(config, metadata)
        self.close = weakref.finalize(self, self._end, engine)
        self._buffer_bytes = buffer_bytes
        self._manager = engine.storage_manager
        self._backend = self._manager.storage_backends[self._PLACE]

    @staticmethod
    def _end(engine) -> None:
        engine.close()

    def get(self, key: str) -> ChunkKV | None:
        """As ChunkStore.get, in new tensors on the CPU. A damaged entry is a miss, and stays until it is put again."""
        with self._lock:
            data = self._read(_name(key))
        chunk = None
        try:
            chunk = decode(key, data) if data is not None else None
        except Exception as error:  # whatever is wrong with the content, the chunk can be built again
            _LOG.warning("passed over the damaged entry %s: %s", key, error)
        self._count(chunk is not None)
        return chunk

    def put(self, key: str, chunk: ChunkKV) -> None:
        data = encode(key, chunk)
        if _in_pages(len(data)) > self._buffer_bytes:
            what = f"a chunk of {len(data)} bytes does not fit in LMCache's buffer of {self._buffer_bytes} bytes"
            raise ReplicationError(f"{what}; raise the store's bound or use shorter chunks")
        with self._lock:
            self._write(_name(key), data)

    def __contains__(self, key: str) -> bool:
        return self._backend.contains(_name(key))

    def _read(self, name) -> bytes | None:
        # pinned, so that it is not evicted meanwhile; LMCache's LRU order counts pinned look-ups as uses
        if not self._backend.contains(name, pin=True):
            return None
        entry = self._backend.get_blocking(name)
        self._backend.unpin(name)
        self._manager.touch_cache()
        if entry is None:
            return None
        data = bytes(entry.byte_array)
        entry.ref_count_down()
        return data

    def _write(self, name, data: bytearray) -> None:
        entry = self._manager.allocate(torch.Size([1, 1, len(data), 1]), torch.uint8, busy_loop=False)
        entry.tensor.view(-1).copy_(torch.frombuffer(data, dtype=torch.uint8))
        written = self._backend.submit_put_task(name, entry)
        entry.ref_count_down()
        if written is not None:
            written.result()


class LMCacheMemory(_LMCacheStore):
    """Chunks in the CPU memory of an LMCache engine, which evicts by its own LRU policy.

    max_bytes: LMCache's buffer, set aside at once. nbytes counts whole pages of 4,096 bytes, as LMCache hands them out.
    """

    _PLACE = "LocalCPUBackend"

    def __init__(self, max_bytes: int = BUFFER):
        super().__init__(max_bytes, max_bytes=max_bytes)

    def _write(self, name, data: bytearray) -> None:
        self._backend.remove(name)
        before = len(self)
        super()._write(name, data)
        self.evictions += before + 1 - len(self)

    def __len__(self) -> int:
        return len(self._backend.hot_cache)

    @property
    def nbytes(self) -> int:
        return sum(entry.get_physical_size() for entry in self._backend.hot_cache.values())


class _LMCacheRemote(_LMCacheStore):
    """Chunks behind one of LMCache's connectors; `_sizes`: bytes of each."""

    _PLACE = "RemoteBackend"

    def __len__(self) -> int:
        return len(self._sizes())

    @property
    def nbytes(self) -> int:
        return sum(self._sizes())

    @abstractmethod
    def _sizes(self) -> list[int]: ...


class LMCacheFolder(_LMCacheRemote):
    """One file a chunk, by LMCache's `fs://` connector, in a folder that processes may share and that outlives them.

    LMCache never evicts from a folder, so there is no bound. buffer_bytes: memory that each read and write goes
    through, which the largest chunk must fit.
    """

    def __init__(self, path: str | Path, buffer_bytes: int = BUFFER):
        self.path = Path(path).resolve()
        if set(",?#") & set(str(self.path)):
            raise ReplicationError(f"LMCache takes no folder with one of , ? # in its name: choose another than {path}")
        with explained(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        super().__init__(buffer_bytes, f"fs://localhost:0{self.path}/")

    def put(self, key: str, chunk: ChunkKV) -> None:
        with explained(self.path):
            super().put(key, chunk)

    def _sizes(self) -> list[int]:
        return [file.stat().st_size for file in self.path.glob("*.data")]


class LMCacheRedis(_LMCacheRemote):
    """Chunks on a Redis server, by LMCache's connector; what to evict is the server's business (its `maxmemory`).

    url: redis://host:port. buffer_bytes: as in LMCacheFolder. ReplicationError when the server cannot be reached.
    """

    def __init__(self, url: str, buffer_bytes: int = BUFFER):
        super().__init__(buffer_bytes, url)
        self.url = url
        self._redis(lambda client: client.ping())

    @staticmethod
    def _end(engine) -> None:
        # LMCache's own closing of its connection blocks the very thread that it waits for
        manager = engine.storage_manager
        connector = manager.storage_backends.pop("RemoteBackend").connection.getWrappedConnector()

        async def leave():
            await connector.pq_executor.shutdown_async(wait=False)
            await connector.connection.aclose()

        asyncio.run_coroutine_threadsafe(leave(), manager.loop).result()
        engine.close()

    def put(self, key: str, chunk: ChunkKV) -> None:
        try:
            super().put(key, chunk)
        except ReplicationError:
            raise
        except Exception as error:
            raise self._unreachable(error) from error

    def _sizes(self) -> list[int]:
        async def ask(client):
            return [await client.strlen(name) async for name in client.scan_iter(f"{FORMAT}@*kv_bytes")]

        return self._redis(ask)

    def _redis(self, ask):
        """What `ask` returns for LMCache's own connection, in the thread that owns it."""
        connection = self._backend.connection.getWrappedConnector().connection
        try:
            return asyncio.run_coroutine_threadsafe(ask(connection), self._manager.loop).result()
        except Exception as error:
            raise self._unreachable(error) from error

    def _unreachable(self, error: Exception) -> ReplicationError:
        return ReplicationError(
            f"Redis at {self.url} does not answer ({error}): start a server there or give another URL"
        )


def _name(key: str):
    """The entry's name in LMCache: the key takes the place of the hash of token ids."""
    from lmcache.utils import CacheEngineKey

    return CacheEngineKey(FORMAT, 1, 0, int.from_bytes(key.encode(), "big"), torch.uint8)


def _in_pages(nbytes: int) -> int:
    return -(-nbytes // PAGE) * PAGE
