"""Every rule of the dated files: each test says as of which date the rule holds."""

import re
from datetime import date
from pathlib import Path

import pytest
import yaml
from provider_prompts import body, cache, counts, text, user

from replication.caches import provider
from replication.caches.provider.request import ApiError
from replication.caches.provider.rules import PROVIDERS, load_rules
from replication.errors import ReplicationError

OCTOBER = date(2026, 10, 1)
MINIMUM = {
    512: "fable-5-1 mythos-5-1 opus-5-5 opus-5 sonnet-5-5 fable-5 mythos-5",
    1024: "opus-4-8 sonnet-5 sonnet-4-6 sonnet-4-5 sonnet-4 opus-4-1 opus-4",
    2048: "mythos-preview opus-4-7 3-5-haiku",
    4096: "opus-4-6 opus-4-5 haiku-4-5",
}


@pytest.mark.parametrize(
    ("model", "minimum"), [(f"claude-{name}", n) for n, names in MINIMUM.items() for name in names.split()]
)
def test_2026_10_minimum_length_and_silence_below_it(model, minimum):
    def ask(tokens: int):
        kept = cache(OCTOBER)
        kept.ask(body([text("s" * tokens, "bare")], model=model), at=0)
        return counts(kept.ask(body([text("s" * tokens, "bare")], model=model), at=1))

    rest = len("\nuser:Hi")
    assert ask(minimum) == (minimum, 0, rest)
    assert ask(minimum - 1) == (0, 0, minimum - 1 + rest)


@pytest.mark.parametrize(
    ("on", "model", "minimum"),
    [
        (date(2026, 3, 1), "claude-sonnet-4-6", 2048),
        (date(2026, 9, 30), "claude-sonnet-4-6", 2048),
        (OCTOBER, "claude-sonnet-4-6", 1024),
        (date(2026, 3, 1), "claude-mythos-preview", 4096),
        (OCTOBER, "claude-mythos-preview", 2048),
    ],
)
def test_early_2026_had_other_minimum_lengths(on, model, minimum):
    assert load_rules("anthropic", model, on)["minimum_tokens"] == minimum


@pytest.mark.parametrize(
    ("model", "read"),
    [("claude-sonnet-4-5", 0.1), ("claude-opus-5-5", 0.05), ("claude-fable-5-1", 0.025), ("claude-mythos-5-1", 0.025)],
)
def test_2026_10_multipliers(model, read):
    rules = load_rules("anthropic", model, OCTOBER)
    assert (rules["read"], rules["write"]) == (read, {"5m": 1.25, "1h": 2.0})


@pytest.mark.parametrize(
    ("model", "published"),
    [
        ("claude-sonnet-4-5", (3, 3.75, 6, 0.30, 15)),
        ("claude-opus-4-1", (15, 18.75, 30, 1.50, 75)),
        ("claude-haiku-4-5", (1, 1.25, 2, 0.10, 5)),
        ("claude-3-5-haiku", (0.80, 1, 1.6, 0.08, 4)),
        ("claude-fable-5-1", (10, 12.50, 20, 0.25, 50)),
        ("claude-opus-4-8", (5, 6.25, 10, 0.50, 25)),
        ("claude-opus-5-5", (4, 5, 8, 0.20, 20)),
        ("claude-sonnet-5-5", (2, 2.50, 4, 0.20, 10)),
    ],
)
def test_2026_10_published_prices_are_the_multiples_of_the_input_price(model, published):
    rules = load_rules("anthropic", model, OCTOBER)
    rate_in, rate_out = rules["dollars"]
    factors = (1, rules["write"]["5m"], rules["write"]["1h"], rules["read"])
    assert (*(rate_in * factor for factor in factors), rate_out) == pytest.approx(published)


@pytest.mark.parametrize(("ttl", "lives"), [("bare", 300), ("5m", 300), ("1h", 3600)])
def test_2026_10_ttl_defaults_to_5m_and_a_hit_refreshes_it_free_of_charge(ttl, lives):
    kept = cache(OCTOBER)
    request = body([text("s" * 2000, ttl)])
    kept.ask(request, at=0)
    assert counts(kept.ask(request, at=lives - 1)) == (2000, 0, 8)
    assert counts(kept.ask(request, at=2 * lives - 2)) == (2000, 0, 8)
    assert counts(kept.ask(request, at=3 * lives - 2)) == (0, 2000, 8)


def test_2026_10_mixed_ttls_are_billed_by_positions():
    kept = cache(OCTOBER)
    a, b, c = text("a" * 1100, "1h"), text("b" * 200, "1h"), text("c" * 50, "5m")
    kept.ask(body([a]), at=0)
    usage = kept.ask(body([a, b, text("x" * 7), c, text("d" * 5)]), at=1).usage
    assert (usage.read, usage.write) == (1100, {"1h": 200, "5m": 57})
    assert usage.rest == 5 + len("\nuser:Hi")
    rules = load_rules("anthropic", "claude-sonnet-4-5", OCTOBER)
    assert usage.cost(rules) == pytest.approx(110 + 400 + 71.25 + 13)


@pytest.mark.parametrize(
    ("on", "platform", "shared"),
    [
        (date(2026, 2, 4), "api", True),
        (date(2026, 2, 5), "api", False),
        (date(2026, 2, 5), "bedrock", True),
        (date(2026, 2, 5), "vertex", True),
    ],
)
def test_2026_02_05_isolation_is_by_workspace_on_the_api(on, platform, shared):
    kept = cache(on, platform=platform)
    kept.ask(body(), at=0, workspace="one")
    assert (kept.ask(body(), at=1, workspace="two").usage.read > 0) == shared
    assert kept.ask(body(), at=2, workspace="one", organisation="other").usage.read == 0


TOOL = {"name": "look", "description": "d" * 1200, "input_schema": {"type": "object"}}
SEARCH = {"type": "web_search_20250305", "name": "web_search"}
PICTURE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
DOCUMENT = {"type": "document", "source": {"type": "text", "data": "x"}}
THOUGHT = {"type": "thinking", "thinking": "hm", "signature": "s"}


def levelled(change: dict, tools: list | None = None, more: tuple = ()) -> dict:
    """A request with a marker at the end of each level, and `more` after the last."""
    return body(
        system=[text("s" * 100, "bare")],
        messages=[user(text("m" * 100, "bare")), *more],
        tools=[*(tools or []), {**TOOL, "cache_control": {"type": "ephemeral"}}],
        **change,
    )


def kept_levels(before: dict, after: dict) -> tuple[bool, bool, bool]:
    """Which of tools, system and messages the second request reads."""
    kept = cache(OCTOBER)
    first = kept.ask(before, at=0)
    ends = {block.level: index + 1 for index, block in enumerate(first.prompt.blocks) if block.ttl}
    read = kept.ask(after, at=1).hit
    return tuple(read >= ends[level] for level in ("tools", "system", "messages"))


def test_2026_10_nothing_changed_keeps_all_levels():
    assert kept_levels(levelled({}), levelled({})) == (True, True, True)


def test_2026_10_tool_definitions_void_everything():
    other = {**TOOL, "description": "e" * 1200}
    before, after = levelled({}), levelled({})
    after["tools"] = [{**other, "cache_control": {"type": "ephemeral"}}]
    assert kept_levels(before, after) == (False, False, False)


@pytest.mark.parametrize(
    "after", [levelled({"speed": "fast"}), levelled({}, tools=[SEARCH])], ids=["speed", "web search"]
)
def test_2026_10_speed_and_web_search_void_system_and_messages(after):
    assert kept_levels(levelled({}), after) == (True, False, False)


def test_2026_10_citations_void_system_and_messages():
    cited = {**DOCUMENT, "citations": {"enabled": True}}
    before, after = (levelled({}, more=(user(document),)) for document in (DOCUMENT, cited))
    assert kept_levels(before, after) == (True, False, False)


@pytest.mark.parametrize(
    "after",
    [
        levelled({"tool_choice": {"type": "any"}}),
        levelled({"thinking": {"type": "enabled", "budget_tokens": 1024}}),
        levelled({}, more=(user(PICTURE),)),
        levelled({}, more=(user({"type": "tool_result", "tool_use_id": "1", "content": [PICTURE]}),)),
    ],
    ids=["tool_choice", "thinking", "images", "images in a tool's result"],
)
def test_2026_10_tool_choice_thinking_and_images_void_messages(after):
    assert kept_levels(levelled({}), after) == (True, True, False)


def test_2026_10_a_user_turn_after_thinking_voids_messages_and_a_tool_result_does_not():
    on = {"thinking": {"type": "enabled", "budget_tokens": 1024}}
    use = {"type": "tool_use", "id": "1", "name": "look", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "1", "content": "seen"}
    loop = ({"role": "assistant", "content": [THOUGHT, use]}, user(result))
    asked = (*loop, {"role": "assistant", "content": [text("So.")]}, user(text("And?")))
    assert kept_levels(levelled(on), levelled(on, more=loop)) == (True, True, True)
    assert kept_levels(levelled(on, more=loop), levelled(on, more=asked)) == (True, True, False)


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ({**THOUGHT, "cache_control": {"type": "ephemeral"}}, "thinking blocks cannot be marked"),
        (text("", "bare"), "empty text blocks cannot be marked"),
        (text("x", "2h"), "must be one of 5m, 1h, not '2h'"),
        ({**text("x"), "cache_control": {"type": "forever"}}, "must be an object of type 'ephemeral'"),
    ],
)
def test_2026_10_what_cannot_be_marked_is_error_400(block, message):
    with pytest.raises(ApiError, match=message) as caught:
        cache(OCTOBER).ask(body(messages=[user(block)]), at=0)
    assert caught.value.status == 400
    assert "messages.0.content.0.cache_control" in str(caught.value)


def test_an_image_counts_a_digest_and_an_answers_citations_are_no_setting():
    large = {**PICTURE, "source": {**PICTURE["source"], "data": "A" * 10_000}}
    quoted = {**text("So."), "citations": [{"type": "char_location", "cited_text": "x"}]}
    messages = [user(large), {"role": "assistant", "content": [quoted]}, user({**text("x"), "citations": None})]
    prompt = cache(OCTOBER).ask(body([], messages), at=0).prompt
    assert len(prompt.ids) < 300
    assert prompt.settings["system"] == {"citations": False, "speed": None}


def test_2026_10_the_automatic_marker_is_on_the_last_block_and_counts_as_one():
    kept = cache(OCTOBER)
    grown = [user(text("m" * 1100)), {"role": "assistant", "content": "So."}, user(text("And?"))]
    automatic = {"cache_control": {"type": "ephemeral"}}
    first = kept.ask(body([], grown[:1], **automatic), at=0)
    second = kept.ask(body([], grown, **automatic), at=1)
    assert counts(first) == (0, first.usage.total, 0)
    assert counts(second) == (first.usage.total, second.usage.total - first.usage.total, 0)
    with pytest.raises(ApiError, match="found 5"):
        kept.ask(body([text("s", "bare")] * 4, **automatic), at=2)


def test_a_facts_date_and_source_are_those_of_the_entry_that_it_is_from():
    rules = load_rules("anthropic", "claude-sonnet-4-5-20250929", date(2026, 12, 1))
    assert rules.model == "claude-sonnet-4-5"
    assert rules.as_of["isolation"] == date(2026, 2, 5)
    assert "pricing" in rules.source["dollars"]
    assert "prompt-caching" in rules.source["minimum_tokens"]


@pytest.mark.parametrize("name", PROVIDERS)
def test_every_rule_has_a_date_and_a_source(name):
    """A source names a page, and a price stands apart from the rules, whose source is another."""
    content = yaml.safe_load((Path(provider.__file__).parent / "rules" / f"{name}.yaml").read_text())
    for entry in content["facts"]:
        assert type(entry["as_of"]) is date
        assert re.search(r"[a-z]+\.(com|dev)/\S+", entry["source"])
        facts = {fact for values in entry.get("models", {}).values() for fact in values}
        assert facts == {"dollars"} or "dollars" not in facts
    for model in {model for entry in content["facts"] for model in entry.get("models", {})}:
        known = load_rules(name, model, date(2027, 1, 1))
        assert set(known.values) == set(known.as_of) == set(known.source)
        assert known["minimum_tokens"] > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("anthropic", "claude-sonet-4-5", OCTOBER), "the nearest model is claude-sonnet-4-5"),
        (
            ("anthropic", "claude-opus-5", date(2026, 4, 1)),
            "begin on 2026-10-01 for it; the nearest model is claude-opus",
        ),
        (("anthropic", "claude-sonnet-4-5", date(2025, 1, 1)), "begin on 2026-01-01: 2025-01-01 is before them"),
        (("mistral", "large", OCTOBER), "no rules of provider 'mistral'"),
    ],
)
def test_unknown_models_and_dates_are_refused(arguments, message):
    with pytest.raises(ReplicationError, match=message):
        load_rules(*arguments)


def test_dollars_are_unknown_where_the_rules_have_no_price():
    call = cache().ask(body(model="claude-mythos-preview"), at=0)
    assert call.usage.dollars(call.rules) is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"messages": None}, "messages: must be a list"),
        ({"messages": []}, "at least one message"),
        ({"messages": [{"role": "system", "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "user", "content": [{"text": "x"}]}]}, "messages.0.content.0.type"),
        ({"system": [{"type": "text"}]}, "system.0.text"),
        ({"tools": "none"}, "tools: must be a list"),
        ({"model": None}, "model: field required"),
    ],
)
def test_malformed_requests_are_error_400(changes, message):
    with pytest.raises(ApiError, match=message):
        cache().ask({**body(), **changes}, at=0)
