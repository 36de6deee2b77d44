"""The prompt-cost experiment at a small size: from config to figure, resumed, and equal to the arithmetic."""

import json
from dataclasses import replace

import pytest

from experiments import prompt_cost
from experiments.prompt_scenarios import PITFALLS
from replication.errors import ReplicationError
from replication.records import RunFolder
from replication.runner import recorded, run_one

CONFIG = prompt_cost.Config(n=2, passages=16, calls=4, gap=60, gaps=(60, 300, 3600), added=21)
READ, WRITE = 0.1, {"5m": 1.25, "1h": 2.0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return run_one("prompt_cost", CONFIG, tmp_path_factory.mktemp("out"))


@pytest.fixture(scope="module")
def summary(folder) -> dict:
    return json.loads((folder / "summary.json").read_text())


def test_an_interrupted_run_ends_with_the_same_records_and_the_figure(folder, tmp_path):
    again = run_one("prompt_cost", CONFIG, tmp_path)
    file = again / "records.jsonl"
    whole = file.read_text()
    assert whole == (folder / "records.jsonl").read_text()
    file.write_text(whole[: len(whole) // 2])
    run_one("prompt_cost", CONFIG, tmp_path)
    assert file.read_text() == whole
    assert (again / "figure.png").stat().st_size > 10_000


def test_break_even_is_the_arithmetic(folder, summary):
    assert summary["break_even"]["5m 60"]["mean"] == 2
    assert summary["break_even"]["1h 60"]["mean"] == summary["break_even"]["1h 300"]["mean"] == 3
    assert summary["break_even"]["5m 300"] is summary["break_even"]["1h 3600"] is None
    records = RunFolder(folder, recorded(CONFIG)).records
    covered = {r["example"]: r["covered"] for r in records if r["kind"] == "two calls"}
    for record in (r for r in records if r["kind"] == "calls" and r["cell"].endswith(" 60")):
        write, prefix = WRITE[record["cell"].split()[0]], covered[record["example"]]
        saved = [plain - cost for plain, cost in zip(record["plain"], record["cost"], strict=True)]
        assert saved == pytest.approx([prefix * (u - write - READ * (u - 1)) for u in range(1, CONFIG.calls + 1)])


def test_the_look_back_ends_after_19_added_blocks(summary):
    assert summary["look_back"]["last_that_reads"] == 19
    assert summary["look_back"]["second_marker_reads"] is True


def test_all_facts_hold_and_the_prompts_part_at_token_3(summary):
    assert set(summary["facts"].values()) == {1.0}
    assert summary["parts_at"]["mean"] == 3


def test_every_pitfall_costs_more_than_its_repair_but_shorter_histories(summary):
    pitfalls = summary["pitfalls"]
    shorter = {"history summarised", "newest output truncated"}
    assert all(pitfalls[name]["cost"]["mean"] > 1 for name in PITFALLS if name not in shorter)
    assert pitfalls["marker on the question"]["reads"]["mean"] == 0
    assert pitfalls["history summarised"]["history_read"]["mean"] == 0
    assert pitfalls["newest output truncated"]["history_read"]["mean"] == 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"on": "tomorrow"}, "on must be a date"),
        ({"api_model": "claude-mythos-preview"}, "no price for claude-mythos-preview"),
        ({"cheaper": "claude-haiku"}, "the nearest model is"),
        ({"calls": 3}, "calls must be from 4 to 16"),
        ({"gap": 61}, "gaps must hold gap = 61"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(ReplicationError, match=message):
        replace(CONFIG, **settings)
