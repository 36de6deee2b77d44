"""A directory of chunks that are read one layer at a time, so that loading can run behind the computation (A-20)."""

import os
import time
import weakref
from pathlib import Path

import torch

from replication.chunk_file import Header, header_bytes, raw_bytes
from replication.store import SUFFIX, DirectoryStore
from replication.throttle import TokenBucket

KV = tuple[torch.Tensor, torch.Tensor]


class DamagedChunk(Exception):
    """A stored chunk whose header was sound turns out damaged further in; `key` names it."""

    def __init__(self, key: str, reason: str):
        super().__init__(reason)
        self.key = key


class LayerChunk:
    """A stored chunk whose layers stay in its file until they are asked for. ids, start, context, attended: as in
    ChunkKV.

    The open file outlives an eviction. Errors: as DirectoryStore's reading, at once for what the header says.
    """

    def __init__(self, key: str, file: Path, bucket: TokenBucket | None = None):
        self.key, self._bucket = key, bucket
        self._file = os.open(file, os.O_RDONLY)
        weakref.finalize(self, os.close, self._file)
        size = os.fstat(self._file).st_size
        # a damaged length may be anything
        head = os.pread(self._file, min(size, header_bytes(os.pread(self._file, 8, 0))), 0)
        self._header = Header.read(key, head)
        if size != self._header.nbytes:
            raise ValueError("it is longer or shorter than its header says")
        header = self._header
        self.ids, self.start, self.context, self.attended = header.ids, header.start, header.context, header.attended

    def layer(self, index: int) -> KV:
        """K and V [kv heads, n, head dim] of one layer, on the CPU, read and checked now; DamagedChunk if they are not
        what was stored."""
        tensors = []
        for span in self._header.layer(index):
            begun = time.perf_counter()
            tensor = span.empty()
            read = os.preadv(self._file, [raw_bytes(tensor)], span.start)
            if self._bucket is not None:
                self._bucket.take(read, begun)
            if read < span.stop - span.start:
                raise DamagedChunk(self.key, f"layer {index}: the file was cut short")
            try:
                span.check(tensor)
            except ValueError as error:
                raise DamagedChunk(self.key, f"layer {index}: {error}") from error
            tensors.append(tensor)
        return tuple(tensors)


class LayerStore(DirectoryStore):
    """A DirectoryStore that hands out chunks unread (LayerChunk). bucket: slows every reading down to its rate."""

    def __init__(self, path: str | Path, max_bytes: int | None = None, bucket: TokenBucket | None = None):
        super().__init__(path, max_bytes)
        self.bucket = bucket

    def forget_cached(self) -> None:
        """Ask the system to drop the files from its page cache, so that the next reading is from the disk."""
        for file in self.path.glob("*" + SUFFIX):
            handle = os.open(file, os.O_RDONLY)
            try:
                os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(handle)

    def _read(self, key: str, file: Path) -> LayerChunk:
        return LayerChunk(key, file, self.bucket)
