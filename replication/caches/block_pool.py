"""Which of a fixed number of blocks holds what, who uses it, and which one goes first: numbers only, no tensors.

A block is empty, or pinned by the requests that use it, or cached: named, used by nobody, and free to be evicted
(S-12). A name is found only behind the name before it, so that look-up of blocks is look-up of a prefix (S-10).

>>> from replication.caches.block_pool import BlockPool, Name
>>> pool = BlockPool(capacity=4)
>>> names = [Name("a", "Once"), Name("ab", "upon"), Name("abc", "a time")]
>>> table = pool.match(names)  # nothing is there yet
>>> table += pool.reserve(3)  # pinned, their content still to be written
>>> table = pool.publish(table, names)  # from now on others find them
>>> pool.release(table)  # cached: the tail, "abc", would be evicted first
>>> pool.match([*names[:2], Name("abd", "a midnight")]) == table[:2]
True
>>> pool.pinned, pool.cached, pool.empty
(2, 1, 1)
"""

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from replication.errors import ReplicationError


@dataclass(frozen=True)
class Name:
    """key: what a block is looked up by. content: what the key stands for, compared on every hit, since two contents
    may have the same key (user report 25)."""

    key: Hashable
    content: Hashable


class BlockPool:
    """Blocks 0..capacity-1. hits, misses: names looked up and found, or not; evictions: cached blocks given away.

    A table is a request's blocks in the order of its names. Errors: ReplicationError for a capacity below 1;
    ValueError when a block is released that nobody uses.
    """

    def __init__(self, capacity: int):
        if capacity < 1:
            raise ReplicationError(f"a block pool needs at least 1 block, not {capacity}")
        self.capacity = capacity
        self.hits = self.misses = self.evictions = 0
        self._users = [0] * capacity
        self._empty = list(range(capacity))[::-1]
        self._cached: OrderedDict[int, None] = OrderedDict()  # least recently used first
        self._index: dict[Hashable, int] = {}
        self._named: dict[int, tuple[Name, int | None]] = {}  # the name, and the block before it
        self._evicted: OrderedDict[Hashable, None] = OrderedDict()

    @property
    def empty(self) -> int:
        return len(self._empty)

    @property
    def cached(self) -> int:
        return len(self._cached)

    @property
    def pinned(self) -> int:
        return self.capacity - self.empty - self.cached

    def match(self, names: Sequence[Name]) -> list[int]:
        """Pin the blocks of the longest run of `names` that is there, from the first one on."""
        table: list[int] = []
        for name in names:
            block = self._find(name, table)
            if block is None:
                break
            self._pin(block)
            table.append(block)
        self.hits += len(table)
        self.misses += len(names) - len(table)
        return table

    def why_missed(self, name: Name) -> str:
        """Why a name that the walk reached was not found. `unknown` is all that can be said of a key never seen:
        another salt gives another key, and evictions longer ago than the last `capacity` are forgotten."""
        if name.key in self._index:
            return "collision"
        return "evicted" if name.key in self._evicted else "unknown"

    def reserve(self, count: int) -> list[int]:
        """Pin `count` blocks without a name, evicting cached ones; fewer where all others are pinned."""
        return [self._take() for _ in range(min(count, self.empty + self.cached))]

    def publish(self, table: Sequence[int], names: Sequence[Name]) -> list[int]:
        """Name the blocks of a table, whose content is now complete. Returns the table to release: where another
        request named the same content first, its block stands in for this one's, which is empty again.

        Behind a key that stands for other content nothing is named, as nothing could be found there.
        """
        shared: list[int] = []
        for block, name in zip(table, names, strict=False):
            there = self._find(name, shared)
            if there is None:
                if name.key in self._index:
                    break
                self._index[name.key] = block
                self._named[block] = name, shared[-1] if shared else None
                self._evicted.pop(name.key, None)
            elif there != block:
                self._pin(there)
                self.release([block])
            shared.append(block if there is None else there)
        return shared + list(table[len(shared) :])

    def release(self, table: Sequence[int]) -> None:
        """Unpin the blocks of a table, the last first: a tail is of use to fewer requests than what it stands behind
        (vLLM design), and so a block is never evicted before those behind it."""
        for block in reversed(table):
            if not self._users[block]:
                raise ValueError(f"block {block} is not in use")
            self._users[block] -= 1
            if not self._users[block]:
                if block in self._named:
                    self._cached[block] = None
                else:
                    self._empty.append(block)

    def _find(self, name: Name, before: Sequence[int]) -> int | None:
        """The block of this name behind the blocks `before`. The block before is part of what is compared: by
        induction so is the whole prefix, and its number is given to no other content while this one is there."""
        block = self._index.get(name.key)
        if block is None:
            return None
        known, parent = self._named[block]
        return block if known.content == name.content and parent == (before[-1] if before else None) else None

    def _pin(self, block: int) -> None:
        if not self._users[block]:
            del self._cached[block]
        self._users[block] += 1

    def _take(self) -> int:
        if self._empty:
            block = self._empty.pop()
        else:
            block, _ = self._cached.popitem(last=False)
            name, _ = self._named.pop(block)
            del self._index[name.key]
            self.evictions += 1
            self._evicted[name.key] = None
            if len(self._evicted) > self.capacity:
                self._evicted.popitem(last=False)
        self._users[block] = 1
        return block
