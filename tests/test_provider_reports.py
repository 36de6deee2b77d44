"""User reports 41 to 47 (docs/user_reports.md): each is one behaviour of the simulator, as of 2026-10."""

import pytest
from provider_prompts import body, cache, counts, text, turn, user

from replication.caches.provider.request import ApiError


def test_user_report_41_five_markers_are_error_400():
    kept = cache()
    kept.ask(body([text("s", "bare")] * 4), at=0)
    with pytest.raises(ApiError, match="a maximum of 4 blocks with cache_control may be provided: found 5"):
        kept.ask(body([text("s", "bare")] * 5), at=1)


def test_user_report_42_1h_must_precede_5m_and_bare_is_5m():
    kept = cache()
    long, short = text("s" * 1100, "1h"), text("t" * 1100, "bare")
    assert kept.ask(body([long, short]), at=0).usage.write == {"1h": 1100, "5m": 1100}
    with pytest.raises(ApiError, match="'1h' must not come after"):
        kept.ask(body([short, long]), at=1)


def test_user_report_43_a_marker_that_moves_with_the_changing_message_never_reads():
    kept, fixed = cache(), cache()
    for i in range(9):
        moving = kept.ask(body([text("s" * 2000)], [user(text(f"{i} asks", "bare"))]), at=i)
        assert moving.usage.read == 0
        assert moving.usage.written == moving.usage.total
        assert (fixed.ask(body(messages=[user(text(f"{i} asks"))]), at=i).usage.read > 0) == (i > 0)


def test_user_report_44_a_second_marker_inside_the_window_is_the_fallback():
    before, after = turn(110), turn(110) + turn(25)
    kept = cache()
    kept.ask(body([], [user(*before)]), at=0)
    lost = [{**b, "cache_control": None} for b in after[:-1]] + after[-1:]
    assert kept.open(body([], [user(*lost)]), at=1).usage.read == 0
    assert kept.open(body([], [user(*after)]), at=1).usage.read > 0


def test_user_report_45_marking_the_most_volatile_block_pays_for_writes_that_nobody_reads():
    def cost(mark: str | None) -> float:
        kept, total = cache(), 0.0
        for i in range(5):
            call = kept.ask(body(messages=[user(text(f"{i}" * 400, mark))]), at=i)
            total += call.usage.cost(call.rules)
        return total

    volatile = 5 * 406  # tokens, "\nuser:" included
    assert cost("bare") - cost(None) == pytest.approx(0.25 * volatile)


def test_user_report_46_tool_order_and_a_split_system_prompt_void_and_a_retry_reads():
    tools = [{"name": n, "description": n * 700, "input_schema": {}} for n in "ab"]
    kept = cache()
    request = body(tools=tools)
    first = kept.ask(request, at=0)
    assert kept.ask(request, at=1).usage.read == first.usage.written
    assert kept.open(body(tools=tools[::-1]), at=2).usage.read == 0
    assert kept.open(body([text("s" * 1000), text("s" * 1000, "bare")], tools=tools), at=2).usage.read == 0


@pytest.mark.parametrize(("last", "found"), [(34, True), (35, False)])
def test_user_report_47_a_turn_of_35_blocks_misses_the_entry_at_block_15(last, found):
    first = [text("x" * 100, "bare" if i == 14 else None) for i in range(15)]
    later = [text("x" * 100, "bare" if i == last - 1 else None) for i in range(last)]
    kept = cache()
    assert kept.ask(body([], [user(*first)]), at=0).usage.written == 1506
    assert (kept.ask(body([], [user(*later)]), at=1).usage.read == 1506) == found


def test_user_report_47_json_keys_in_another_order_are_another_prompt():
    schema = {"a": {"type": "string"}, "b": {"type": "string"}}
    kept = cache()
    for properties in (schema, dict(reversed(schema.items()))):
        tool = {"name": "look", "description": "d" * 1100, "input_schema": {"properties": properties}}
        assert kept.ask(body(tools=[tool]), at=0).usage.read == 0


def test_user_report_47_below_the_minimum_nothing_is_cached_or_said():
    kept = cache()
    for at in (0, 1):
        call = kept.ask(body([text("s" * 500, "bare")]), at=at)
        assert counts(call) == (0, 0, 508)


def test_user_report_47_concurrent_first_requests_all_miss():
    kept = cache()
    calls = [kept.open(body(), at=0) for _ in range(3)]
    for call in calls:
        assert counts(call) == (0, 2000, 8)
        kept.response_begins(call, at=2)
    assert counts(kept.open(body(), at=2)) == (2000, 0, 8)
