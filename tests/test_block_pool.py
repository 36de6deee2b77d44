"""The block pool: a state machine of requests in flight, and what goes first."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from replication.caches.block_pool import BlockPool, Name
from replication.errors import ReplicationError


def chain(text: str) -> list[Name]:
    """Names of one-letter blocks whose keys are the prefixes of `text`."""
    return [Name(text[: end + 1], letter) for end, letter in enumerate(text)]


def serve(pool: BlockPool, text: str) -> int:
    """One request from look-up to release; the number of blocks that it found."""
    names = chain(text)
    found = pool.match(names)
    pool.release(pool.publish(found + pool.reserve(len(names) - len(found)), names))
    return len(found)


class Requests(RuleBasedStateMachine):
    """Requests overlap in any way. The machine keeps what was written to each block, as a tensor would."""

    CAPACITY = 7
    requests = Bundle("requests")

    def __init__(self):
        super().__init__()
        self.pool = BlockPool(self.CAPACITY)
        self.written: dict[int, str] = {}
        self.tables: dict[int, list[int]] = {}  # of requests in flight
        self.complete: dict[int, str] = {}  # text of those that published
        self.seen: set[str] = set()
        self.count = 0

    @rule(target=requests, text=st.text("ab", min_size=1, max_size=5), output=st.integers(0, 2))
    def start(self, text, output):
        """output: blocks for tokens yet to be generated, which never get a name."""
        found = self.pool.match(chain(text))
        assert [self.written[b] for b in found] == [text[: i + 1] for i in range(len(found))]
        fresh = self.pool.reserve(len(text) - len(found) + output)
        in_use = {block for table in self.tables.values() for block in table}
        assert not in_use & set(fresh), "a block in use was given away"
        for at, block in enumerate(fresh, start=len(found)):
            self.written[block] = text[: at + 1] if at < len(text) else "output"
        self.count += 1
        self.tables[self.count] = found + fresh
        return self.count, text

    @rule(request=requests)
    def publish(self, request):
        number, text = request
        self.tables[number] = self.pool.publish(self.tables[number], chain(text))
        self.complete[number] = text
        self.seen.add(text)

    @rule(request=consumes(requests))
    def release(self, request):
        self.pool.release(self.tables.pop(request[0]))
        self.complete.pop(request[0], None)

    @invariant()
    def every_block_is_counted_once(self):
        tables = self.tables.values()
        assert self.pool.pinned == len({block for table in tables for block in table})
        assert all(len(table) == len(set(table)) for table in tables)
        assert self.pool.empty + self.pool.cached + self.pool.pinned == self.CAPACITY

    @invariant()
    def what_is_in_flight_is_found(self):
        for number, text in self.complete.items():
            mine = chain(text)[: len(self.tables[number])]
            table = self.pool.match(mine)
            assert table == self.tables[number][: len(mine)]
            self.pool.release(table)

    def teardown(self):
        for table in self.tables.values():
            self.pool.release(table)
        assert self.pool.pinned == 0
        found = set()
        for text in self.seen:
            table = self.pool.match(chain(text))
            found |= set(table)
            self.pool.release(table)
        assert len(found) == self.pool.cached, "a cached block cannot be reached"


TestRequests = Requests.TestCase
TestRequests.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)


def test_least_recently_used_prompt_goes_first_and_its_tail_before_its_head():
    pool = BlockPool(6)
    assert [serve(pool, text) for text in ("abc", "xyz", "abc")] == [0, 0, 3]
    serve(pool, "k")  # evicts one block: the tail of xyz
    assert pool.evictions == 1
    table = pool.match(chain("xyz"))
    assert len(table) == 2
    pool.release(table)
    assert serve(pool, "abc") == 3


def test_pinned_blocks_are_never_evicted():
    pool = BlockPool(3)
    names = chain("abc")
    table = pool.publish(pool.reserve(3), names)
    assert pool.reserve(1) == []
    assert serve(pool, "abc") == 3
    assert pool.match(chain("x")) == []
    pool.release(table)
    assert len(pool.reserve(1)) == 1


def test_a_longer_chain_than_the_pool_keeps_its_head():
    pool = BlockPool(2)
    assert [serve(pool, "abcd"), serve(pool, "abcd")] == [0, 2]


def test_a_copy_made_meanwhile_is_given_up():
    pool = BlockPool(4)
    first, second = pool.reserve(2), pool.reserve(2)
    first = pool.publish(first, chain("ab"))
    assert pool.publish(second, chain("ab")) == first
    assert (pool.pinned, pool.empty) == (2, 2)


def test_a_colliding_key_is_not_found_and_not_replaced():
    pool = BlockPool(4)
    serve(pool, "ab")
    other = [Name("a", "z"), Name("ab", "b")]  # the same keys for another prefix
    assert pool.match(other) == []
    assert pool.why_missed(other[0]) == "collision"
    pool.release(pool.publish(pool.reserve(2), other))
    assert pool.match(other) == []
    assert serve(pool, "ab") == 2


def test_a_block_is_not_found_behind_another_one_than_it_was_named_behind():
    pool = BlockPool(4)
    serve(pool, "ab")
    serve(pool, "c")
    assert len(pool.match([Name("c", "c"), Name("ab", "b")])) == 1


def test_why_missed():
    pool = BlockPool(1)
    serve(pool, "a")
    serve(pool, "b")
    assert pool.why_missed(chain("a")[0]) == "evicted"
    assert pool.why_missed(chain("c")[0]) == "unknown"
    serve(pool, "c")  # what is remembered is bounded
    assert pool.why_missed(chain("a")[0]) == "unknown"


def test_counts():
    pool = BlockPool(3)
    serve(pool, "ab")
    serve(pool, "abc")
    serve(pool, "xy")
    assert (pool.hits, pool.misses, pool.evictions) == (2, 5, 2)


def test_misuse_is_refused():
    with pytest.raises(ReplicationError, match="at least 1 block"):
        BlockPool(0)
    pool = BlockPool(1)
    table = pool.reserve(1)
    pool.release(table)
    with pytest.raises(ValueError, match="not in use"):
        pool.release(table)
