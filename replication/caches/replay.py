"""Traffic over a block pool, as numbers only: which blocks each request finds while others and the running batch take
room (S-16).

>>> from replication.caches.block_pool import BlockPool, Name
>>> from replication.caches.replay import Visit, replay
>>> names = [Name("a", "a"), Name("ab", "b")]
>>> replay(BlockPool(2), [Visit(names), Visit(names)])  # one after the other
[0, 2]
>>> replay(BlockPool(2), [Visit(names, start=0, end=5), Visit(names, start=3, end=8)])  # overlapping
[0, 2]
>>> replay(BlockPool(4), [Visit(names, end=5, output=2), Visit([Name("x", "x")], start=3), Visit(names, start=6)])
[0, 0, 2]
"""

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from replication.caches.block_pool import BlockPool, Name


@dataclass(frozen=True)
class Visit:
    """A request. output: blocks for what it generates, never shared. start, end: when it is in flight, in seconds;
    without an end it is over before the next one starts."""

    names: Sequence[Name]
    output: int = 0
    start: float = 0.0
    end: float = 0.0


def replay(pool: BlockPool, visits: Iterable[Visit]) -> list[int]:
    """The number of blocks that each visit finds; visits come in order of their start.

    A visit that does not get all its blocks runs all the same, its own tail kept nowhere (an engine would let it wait).
    """
    found = []
    flying: list[tuple[float, int, list[int]]] = []
    for number, visit in enumerate(visits):
        while flying and flying[0][0] <= visit.start:
            pool.release(heapq.heappop(flying)[2])
        table = pool.match(visit.names)
        found.append(len(table))
        table += pool.reserve(len(visit.names) - len(table) + visit.output)
        heapq.heappush(flying, (visit.end, number, pool.publish(table, visit.names)))
    for _, _, table in flying:
        pool.release(table)
    return found
