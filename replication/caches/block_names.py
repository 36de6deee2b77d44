"""What a block of a prompt is called: a hash chained over token ids, so that one key names a whole prefix (S-10).

Model, block size and a tenant's salt enter before the first block (S-13).

>>> from replication.caches.block_names import BlockNames
>>> names = BlockNames(fingerprint="model", block_size=2)
>>> one, other = names.of((1, 2, 3, 4, 5)), names.of((9, 2, 3, 4))
>>> len(one), len(other)
(2, 2)
>>> one[1].key == other[1].key
False
>>> one[0].key == names.of((1, 2))[0].key
True
>>> one[0].key == names.of((1, 2), salt="tenant")[0].key
False
"""

import hashlib
import struct
from collections.abc import Callable
from dataclasses import dataclass

from replication.caches.block_pool import Name
from replication.errors import ReplicationError

# Part of the first key: raise it when the meaning of keys changes.
FORMAT = "prefix-block/1"


def sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


@dataclass(frozen=True)
class BlockNames:
    """Names of a prompt's whole blocks, the same in every process (user report 24).

    fingerprint: of the model and what else KV depends on. block_size: tokens. hash: of the key before a block and the
    block's token ids, 8 bytes each; the key before the first one is a hash of fingerprint, block size and salt (S-13).
    """

    fingerprint: str
    block_size: int = 16
    hash: Callable[[bytes], bytes] = sha256

    def __post_init__(self):
        if self.block_size < 1:
            raise ReplicationError(f"a block needs at least 1 token, not {self.block_size}")

    def of(self, ids: tuple[int, ...], salt: str = "") -> list[Name]:
        """ReplicationError for ids that are not whole numbers."""
        try:
            data = struct.pack(f"<{len(ids)}q", *ids)
        except struct.error as error:
            raise ReplicationError(f"token ids must be whole numbers of at most 64 bits: {error}") from error
        key, step, names = self._root(salt), 8 * self.block_size, []
        for start in range(0, len(data) - step + 1, step):
            block = data[start : start + step]
            key = self.hash(key + block)
            # The salt is content too: were two salts' first keys equal, a hit must still tell them apart.
            names.append(Name(key, (salt, block)))
        return names

    def _root(self, salt: str) -> bytes:
        # With its length before it, no field can run into the next.
        fields = [field.encode() for field in (FORMAT, self.fingerprint, str(self.block_size), salt)]
        return self.hash(b"".join(struct.pack("<Q", len(field)) + field for field in fields))
