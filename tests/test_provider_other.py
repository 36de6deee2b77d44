"""OpenAI's and Gemini's rules: each test says as of which date the rule holds."""

from datetime import date

import pytest

from replication.caches.provider.gemini import ExplicitCache, implicit_best
from replication.caches.provider.openai import OpenAICache
from replication.caches.provider.rules import load_rules
from replication.errors import ReplicationError

CLASSIC, NEW = date(2025, 12, 1), date(2026, 9, 1)
PROMPT = tuple(range(4000))


@pytest.mark.parametrize(("length", "read"), [(1023, 0), (1024, 1024), (1151, 1024), (1152, 1152), (4000, 3968)])
def test_classic_reads_in_steps_of_128_from_1024_tokens(length, read):
    cache = OpenAICache("gpt-5", CLASSIC)
    first, second = (cache.ask(PROMPT[:length], at=at) for at in (0, 1))
    assert first.read == 0
    assert second.read == read
    assert first.cost(cache.rules) == length
    assert second.cost(cache.rules) == pytest.approx(length - 0.9 * read)


def test_classic_matches_the_prefix_exactly():
    cache = OpenAICache("gpt-5", CLASSIC)
    cache.ask(PROMPT, at=0)
    assert cache.ask((*PROMPT[:2000], -1, *PROMPT[2001:]), at=1).read == 1920
    assert cache.ask((-1, *PROMPT[1:]), at=2).read == 0


def test_classic_entries_live_5_minutes_idle_and_at_most_an_hour_or_24_hours():
    memory, long = OpenAICache("gpt-5", CLASSIC), OpenAICache("gpt-5", CLASSIC, retention="24h")
    assert [memory.ask(PROMPT, at=at).read > 0 for at in (0, 299, 599)] == [False, True, False]
    assert [long.ask(PROMPT, at=at).read > 0 for at in (0, 80_000, 86_400)] == [False, True, False]
    often = OpenAICache("gpt-5", CLASSIC)
    assert [often.ask(PROMPT, at=at).read > 0 for at in range(0, 3601, 240)] == [False, *[True] * 14, False]


def test_classic_a_prompt_cache_key_separates_and_15_requests_a_minute_overflow():
    cache = OpenAICache("gpt-5", CLASSIC)
    assert [cache.ask(PROMPT, at=i / 10).read > 0 for i in range(17)] == [False, *[True] * 14, False, True]
    assert cache.ask(PROMPT, at=2, key="other").read == 0


@pytest.mark.parametrize(("model", "least", "fee"), [("gpt-5.6", 1024, 1.25), ("gpt-5.1", 2048, 1)])
def test_2026_09_minimum_and_write_fee(model, least, fee):
    cache = OpenAICache(model, NEW)
    assert cache.ask(PROMPT[: least - 1], at=0).written == 0
    usage = cache.ask(PROMPT[: least + 10], at=1)
    assert usage.written == least
    assert usage.cost(cache.rules) == pytest.approx(fee * least + 10)


def test_2026_09_explicit_breakpoints_hidden_tokens_and_30_minutes():
    cache = OpenAICache("gpt-5.6", NEW, hidden_tokens=20)
    first = cache.ask(PROMPT[:2000], at=0, breakpoints=[1500])
    assert (first.read, first.written, first.rest) == (0, 1500, 500)
    second = cache.ask(PROMPT[:1900], at=1799, breakpoints=[1500, 1900])
    assert (second.read, second.written, second.total) == (1408, 400, 1900)
    assert cache.ask(PROMPT[:1500], at=3598, breakpoints=[1500]).read == 1408
    assert cache.ask(PROMPT[:1500], at=5398, breakpoints=[1500]).read == 0


def test_2026_09_models_before_gpt_5_6_keep_their_retention_and_refuse_breakpoints():
    assert OpenAICache("gpt-5.1", NEW, retention="24h").rules["write"]["24h"] == 1
    for on in (CLASSIC, NEW):
        with pytest.raises(ReplicationError, match="gpt-5 takes no explicit breakpoints"):
            OpenAICache("gpt-5", on).ask(PROMPT, at=0, breakpoints=[1500])
    with pytest.raises(ReplicationError, match=r"no retention '24h' for .* on 2026-09-01; known: 30m"):
        OpenAICache("gpt-5.6", NEW, retention="24h")


@pytest.mark.parametrize(
    ("model", "on", "least"),
    [
        ("gemini-2.5-flash", date(2025, 5, 8), 1024),
        ("gemini-2.5-pro", date(2025, 5, 8), 4096),
        ("gemini-3-flash-preview", date(2026, 10, 1), 1024),
        ("gemini-3-pro-preview", date(2026, 10, 1), 4096),
    ],
)
def test_gemini_implicit_minimum_and_discount(model, on, least):
    prompt = tuple(range(least + 50))
    usage = implicit_best(prompt, [prompt[:least], prompt[:3]], model, on)
    assert (usage.read, usage.rest) == (least, 50)
    assert usage.cost(load_rules("gemini", model, on)) == pytest.approx(0.1 * least + 50)
    assert implicit_best(prompt, [prompt[: least - 1]], model, on).read == 0


def test_gemini_2025_05_explicit_cache_costs_input_and_storage_and_expires_after_an_hour():
    cache = ExplicitCache(load_rules("gemini", "gemini-2.5-flash", date(2025, 6, 1)), tokens=10_000, created=0)
    assert cache.ask(50, at=3599).read == 10_000
    assert cache.keeping_cost(storage=3.0) == 40_000
    with pytest.raises(ReplicationError, match="expires at 3600 s"):
        cache.ask(50, at=3600)
    older = load_rules("gemini", "gemini-2.0-flash", date(2025, 6, 1))
    assert ExplicitCache(older, 10_000, 0).ask(0, at=1).cost(older) == 2500
