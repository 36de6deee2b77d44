"""What holds for every sequence of requests."""

from datetime import date

from hypothesis import given
from hypothesis import strategies as st
from provider_prompts import MODEL, body, cache, text, user

from replication.caches.provider.rules import load_rules

RULES = load_rules("anthropic", MODEL, date(2026, 11, 1))
# few lengths and letters, so that prompts often share a prefix; 600 twice is over the minimum, once under it
BLOCKS = st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from([1, 600]), st.booleans()), min_size=1, max_size=8)
GAPS = st.sampled_from([0, 299, 300, 4000])


def request(blocks) -> dict:
    """The first four of the marks count."""
    marked = [i for i, (_, _, mark) in enumerate(blocks) if mark][:4]
    return body([text(c * n, "bare" if i in marked else None) for i, (c, n, _) in enumerate(blocks)])


@given(st.lists(st.tuples(BLOCKS, GAPS), max_size=8))
def test_read_and_write_and_rest_are_all_tokens_and_nothing_below_the_minimum_is_written(requests):
    kept, at, written = cache(), 0, set()
    for blocks, gap in requests:
        at += gap
        call = kept.ask(request(blocks), at=at)
        assert call.usage.total == len(call.prompt.ids) == call.prompt.ends[-1]
        assert min(call.usage.read, call.usage.written, call.usage.rest) >= 0
        assert all(call.prompt.ends[block] >= RULES["minimum_tokens"] for block in call.writes)
        # reads find only what an earlier request wrote, at its markers (S-35)
        assert call.hit == 0 or call.prompt.ids[: call.usage.read] in written
        written |= {call.prompt.ids[: call.prompt.ends[block]] for block in call.writes}
        assert 0.1 * call.usage.total - 1e-6 <= call.usage.cost(RULES) <= 1.25 * call.usage.total + 1e-6


@given(BLOCKS, st.integers(0, 8), st.integers(0, 8))
def test_a_longer_common_prefix_never_costs_more(blocks, shorter, longer):
    def second(common: int) -> float:
        kept = cache()
        kept.ask(request(blocks), at=0)
        changed = blocks[:common] + [("z", n, mark) for _, n, mark in blocks[common:]]
        return kept.ask(request(changed), at=1).usage.cost(RULES)

    assert second(max(shorter, longer)) <= second(min(shorter, longer)) + 1e-6


@given(BLOCKS, st.sampled_from([0, 299]))
def test_the_same_request_again_reads_all_that_it_wrote(blocks, gap):
    kept = cache()
    first = kept.ask(request(blocks), at=0)
    again = kept.ask(request(blocks), at=gap)
    assert (again.usage.read, again.usage.written) == (first.usage.written, 0)


@given(st.integers(1, 40), st.sampled_from(["5m", "1h"]))
def test_break_even_is_the_second_use_for_5m_and_the_third_for_1h(uses, ttl):
    kept, cost, plain = cache(), 0.0, 0.0
    for i in range(uses):
        usage = kept.ask(body([text("s" * 2000, ttl)], [user(text("q" * i))]), at=i).usage
        cost, plain = cost + usage.cost(RULES), plain + usage.total
    assert (cost < plain) == (uses >= {"5m": 2, "1h": 3}[ttl])
