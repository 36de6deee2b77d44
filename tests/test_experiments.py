"""Every experiment from config to figure on a tiny model, resumed and repeated, and the arithmetic of its summary."""

import json
from dataclasses import replace

import pytest

from experiments import naive_concatenation, peak_memory, quality_vs_ttft, ttft
from experiments.cells import NO_CONTEXT, speedups
from replication.records import RunFolder, without_seconds
from replication.runner import recorded, run_one

SMALL = {"n": 2, "passages": 2}


def configs(model: str) -> dict:
    few = {"ratios": (0.15, 1.0), "point_ratios": (0.15,), "timed": 1, "rounds": 2}
    return {
        "naive_concatenation": naive_concatenation.Config(model=model, attention=1, **SMALL),
        "quality_vs_ttft": quality_vs_ttft.Config(model=model, **few, **SMALL),
        "ttft": ttft.Config(model=model, dtypes=("float32",), lengths=(256,), chunk=64, rounds=2, **SMALL),
    }


@pytest.mark.parametrize("name", ["naive_concatenation", "quality_vs_ttft", "ttft"])
def test_runs_twice_with_the_same_records_and_draws_its_figure(tiny_directory, tmp_path, name):
    config = configs(tiny_directory)[name]
    first, second = run_one(name, config, tmp_path / "a"), run_one(name, config, tmp_path / "b")
    left, right = (RunFolder(folder, recorded(config)).records for folder in (first, second))
    assert without_seconds(left) == without_seconds(right)
    assert (first / "figure.png").stat().st_size > 10_000
    assert (first / "figure.pdf").exists()


@pytest.mark.parametrize("name", ["naive_concatenation", "quality_vs_ttft"])
def test_an_interrupted_run_ends_with_the_same_records(tiny_directory, tmp_path, name):
    config = configs(tiny_directory)[name]
    folder = run_one(name, config, tmp_path)
    file = folder / "records.jsonl"
    whole = file.read_text().splitlines(keepends=True)
    kept = [line for line in whole if json.loads(line)["kind"] != "timing"]
    file.write_text("".join(kept[: len(kept) // 2]) + kept[-1][:20])
    run_one(name, config, tmp_path)
    ended = [json.loads(line) for line in file.read_text().splitlines()]
    quality = [r for r in ended if r["kind"] != "timing"]
    assert sorted(map(json.dumps, quality)) == sorted(line.strip() for line in map(str, kept))
    assert len(ended) == len(whole)


def test_peak_memory_is_that_of_stored_chunks_and_result_at_least(tiny_directory, tmp_path):
    config = peak_memory.Config(model=tiny_directory, dtypes=("float32",), lengths=(256,), chunk=64, **SMALL)
    folder = run_one("peak_memory", config, tmp_path)
    (place,) = json.loads((folder / "summary.json").read_text())["places"].values()
    assert place["peak_in_kv"] is None or place["peak_in_kv"] > 2
    assert (folder / "figure.png").stat().st_size > 10_000


def test_speedups_are_over_the_same_round():
    def timed(number, cell, seconds, transformers):
        times = {"ttft": seconds, "transformers": transformers}
        return {"kind": "timing", "example": "e", "round": number, "cell": cell, "ceiling": 4.0, "seconds": times}

    rounds = [(0, "prefix", 3, 4), (0, "naive", 1, 4), (1, "naive", 2, 8), (1, "prefix", 10, 8)]
    found = speedups([timed(*r) for r in rounds])["naive"]
    assert found["speedup"]["median"] == 4
    assert (found["over_prefix"]["low"], found["over_prefix"]["high"]) == (3.5, 4.5)
    assert "over_prefix" not in speedups([timed(*r) for r in rounds if r[1] != "prefix"])["naive"]


def test_shapley_parts_sum_to_naives_kl(tiny_directory, tmp_path):
    folder = run_one("naive_concatenation", configs(tiny_directory)["naive_concatenation"], tmp_path)
    summary = json.loads((folder / "summary.json").read_text())
    parts = sum(summary["shapley"][f]["nats"]["mean"] for f in naive_concatenation.FAULTS)
    assert parts == pytest.approx(summary["cells"][naive_concatenation.NAIVE]["kl_first"]["mean"], rel=1e-4)
    assert summary["cells"]["repaired shared recomputed"]["kl_first"]["mean"] < 1e-6


def test_answers_are_reported_only_behind_the_gate(tiny_directory, tmp_path):
    config = configs(tiny_directory)["quality_vs_ttft"]
    folder = run_one("quality_vs_ttft", config, tmp_path)
    summary = json.loads((folder / "summary.json").read_text())
    assert not any(summary["gate"]["open"].values())
    assert not any("f1" in metrics for metrics in summary["cells"].values())
    records = RunFolder(folder, recorded(config)).records
    for record in records:
        if record["kind"] == "quality":
            record |= {"f1": float(record["cell"] != NO_CONTEXT), "em": 0.0, "rank": 0.0}
    opened = quality_vs_ttft.summarise(records, replace(config))
    assert opened["gate"]["open"] == {"f1": True, "f1_tokens": True, "em": True, "rank": False}
    assert opened["cells"]["naive"]["f1"]["mean"] == 1.0
