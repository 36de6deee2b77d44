"""prompt-cost: a user's own log, priced, and the reasons of its misses."""

import json
from pathlib import Path

import pytest
from provider_prompts import NOW, body, cache, text, tokenize, turn, user

from replication import cli
from replication.caches.provider.log import price, read_log
from replication.caches.provider.why import Miss, why_missed
from replication.errors import ReplicationError


@pytest.fixture
def log(tmp_path):
    def write(*lines) -> str:
        file = tmp_path / "log.jsonl"
        file.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
        return str(file)

    return write


def test_prompt_cost_shows_counters_reasons_and_the_token_of_the_miss(log, capsys):
    def request(clock: str, **extra) -> dict:
        return body([text(f"It is {clock}. " + "Be precise, please. " * 400, "bare")], **extra)

    file = log(
        request("12:01", at="2026-11-01T12:01:00Z"),
        request("12:02", at="2026-11-01T12:02:00Z", usage={"cache_read_input_tokens": 900}),
        request("12:02", at="2026-11-01T13:04:00+01:00"),
        "",
        body([text("Be brief.", "bare")]),
    )
    assert cli.main(["prompt-cost", file, "--on", "2026-11-01"]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = [line.split() for line in lines if line.endswith("claude-sonnet-4-5")]
    assert [row[0] for row in rows] == ["1", "2", "3", "5"]
    assert [row[1] for row in rows] == ["0", "60", "180", "180"]
    assert [int(row[2]) > 0 for row in rows] == [False, False, True, False]
    assert rows[2][2] == rows[1][3]
    notes = "\n".join(line.strip() for line in lines)
    assert "miss: token 7 differs\nbefore: id 33 '1'\n'It is 12:0' >>> '1. Be" in notes
    assert "logged otherwise: read 900, written 0" in notes
    assert "fewer than the minimum of 1024" in notes
    assert notes.count("miss:") == 2


def test_prompt_cost_names_the_models_whose_price_is_not_known(log, capsys):
    file = log(body(), body(model="claude-mythos-preview"))
    assert cli.main(["prompt-cost", file, "--on", "2026-11-01"]) == 0
    assert "; the rules have no price for claude-mythos-preview\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("{", "line 2 of .* is no JSON"),
        ("[]", "line 2 of .* is no JSON object"),
        (body(at="noon"), "line 2 of .*: at must be seconds or an ISO 8601 time, not 'noon'"),
        (body(at=True), "at must be seconds"),
        (body(usage=3), "line 2 of .*: usage must be"),
        (body(at=-1), "line 2: time runs back"),
        (body(model="claude-sonet-4-5"), "line 2: no anthropic model 'claude-sonet-4-5'"),
        (body([text("x", "bare")] * 5), "line 2: the API refuses it: a maximum of 4 blocks"),
    ],
)
def test_bad_lines_are_named_by_their_number(log, bad, message):
    with pytest.raises(ReplicationError, match=message):
        list(price(read_log(Path(log(body(), bad))), NOW, tokenize))


def test_line_ends_inside_a_text_end_no_line(tmp_path):
    file = tmp_path / "log.jsonl"
    request = body(messages=[user(text("one\u2028two\x85three"))])
    file.write_bytes(b"\r\n".join(json.dumps(request, ensure_ascii=False).encode() for _ in range(2)))
    assert [entry.body for entry in read_log(file)] == [request, request]


def test_files_without_requests_and_bad_dates_are_refused(log, capsys):
    for lines, options in (([""], []), ([body()], ["--on", "2026-13-01"])):
        assert cli.main(["prompt-cost", log(*lines), *options]) == 2
        assert capsys.readouterr().err.startswith("error: ")
    assert cli.main(["prompt-cost", "no such file"]) == 2
    assert "cannot read no such file" in capsys.readouterr().err


def missed(*requests, gap: float = 1, workspaces=("a", "a")) -> Miss | None:
    kept = cache()
    first, second = (kept.ask(request, at=i * gap, workspace=workspaces[i]) for i, request in enumerate(requests))
    return why_missed(second, first)


@pytest.mark.parametrize(
    ("second", "reason"),
    [
        (body(), None),
        (body([text("s" * 2000)]), "no cache_control"),
        (body([text("s" * 900, "bare")]), "900 tokens up to the last marker, fewer than the minimum of 1024"),
        (body(model="claude-opus-4-8"), "another model: entries belong to claude-sonnet-4-5"),
        (body(speed="fast"), "speed changed, which voids the system level from token 0 on"),
        (body(tool_choice={"type": "any"}), None),
        (body([text("s" * 1999 + "t", "bare")]), "token 1999 differs"),
        (body([text("s" * 1000), text("s" * 1000, "bare")]), "the same tokens are cut into other blocks"),
    ],
)
def test_the_reason_of_a_miss(second, reason):
    found = missed(body(), second)
    assert (found is None) == (reason is None)
    assert reason is None or found.reason.startswith(reason)
    assert reason is None or (found.token is not None) == reason.startswith("token")


def test_the_reason_of_a_miss_can_be_time_look_back_or_a_workspace():
    assert missed(body(), body(), gap=300).reason.startswith("300 s later the entry is gone")
    assert missed(body(), body(), workspaces=("a", "b")).reason.endswith("belong to another workspace")
    before, after = turn(110), turn(110, mark=None) + turn(20)
    lost = missed(body([], [user(*before)]), body([], [user(*after)]))
    assert lost.reason == "no marker within 20 blocks of the entry at block 110"
