"""The prefix cache's experiments on a tiny model, resumed, and a trace that one of them replays."""

import shutil
from dataclasses import replace

import pytest

from experiments import prefix_cache, prefix_copies, prefix_traces, prefix_traffic
from replication.caches.prefix import PrefixCache
from replication.data.mooncake import FILE, load_trace
from replication.errors import ReplicationError
from replication.records import RunFolder, without_seconds
from replication.runner import check_runs, recorded, result_folder, run_one


@pytest.fixture(scope="module")
def configs(tiny_directory, trace_dir) -> dict:
    timed = {"rounds": 2, "unique_length": 32, "unique_rounds": 2, "probes": 2, "secret": (16,), "outputs": (2,)}
    return {
        "prefix_cache": prefix_cache.Config(
            model=tiny_directory, n=4, length=128, cached=100, block_sizes=(1, 16, 64), **timed
        ),
        "prefix_copies": prefix_copies.Config(
            model=tiny_directory, n=2, passages=2, output=2, lengths=(32, 64), rounds=2
        ),
        "prefix_traces": prefix_traces.Config(model=tiny_directory, data_dir=trace_dir, capacities=(0.4, 1.0)),
        "prefix_traffic": prefix_traffic.Config(
            model=tiny_directory, n=2, passages=3, seeds=2, requests=500, unique=(0.0, 0.5), tenants=(1, 2)
        ),
    }


@pytest.mark.parametrize("name", ["prefix_cache", "prefix_copies", "prefix_traces", "prefix_traffic"])
def test_draws_its_figure_and_resumes_to_the_same_records(configs, finished, tmp_path, name):
    config, folder = configs[name], finished(name)
    assert (folder / "figure.png").stat().st_size > 10_000
    whole = RunFolder(folder, recorded(config)).records
    copy = result_folder(name, config, tmp_path)
    shutil.copytree(folder, copy)
    lines = (copy / "records.jsonl").read_text().splitlines(keepends=True)
    (copy / "records.jsonl").write_text("".join(lines[: len(lines) // 2]) + lines[-1][:20])
    run_one(name, config, tmp_path)
    again = RunFolder(copy, recorded(config)).records
    assert list(without_seconds(again)) == list(without_seconds(whole))


@pytest.mark.parametrize(("cut", "prefills"), [(0, 0), (1, 12)])
def test_a_resumed_part_repeats_its_warm_up_and_the_broken_round_alone(
    configs, finished, tmp_path, monkeypatch, cut, prefills
):
    """The last part's round takes six prefills: victim, hit and miss, with and without salt."""
    config, copy = configs["prefix_cache"], result_folder("prefix_cache", configs["prefix_cache"], tmp_path)
    shutil.copytree(finished("prefix_cache"), copy)
    lines = (copy / "records.jsonl").read_text().splitlines(keepends=True)
    (copy / "records.jsonl").write_text("".join(lines[: len(lines) - cut]))
    calls, prefill = [], PrefixCache.prefill
    monkeypatch.setattr(PrefixCache, "prefill", lambda *args: calls.append(args) or prefill(*args))
    run_one("prefix_cache", config, tmp_path)
    assert len(calls) == prefills


def test_block_sizes_reuse_whole_blocks_and_change_nothing(summary_of):
    summary = summary_of("prefix_cache")
    assert {size: cell["reused"] for size, cell in summary["block_sizes"].items()} == {"1": 100, "16": 96, "64": 64}
    assert all(cell["kl"] < 1e-6 for cell in summary["block_sizes"].values())
    assert summary["tail_waste"] == 36


def test_only_the_copy_keeps_the_first_question_out_of_the_second_answer(summary_of):
    found = summary_of("prefix_copies")["contamination"]
    assert found["copied"]["kl"]["mean"] == found["copied"]["stale"]["mean"] == 0
    assert found["not copied"]["kl"]["mean"] > 1e-3
    assert found["not copied"]["stale"]["mean"] > 2


def test_trace_by_hand(summary_of):
    """Unbounded: 0 + 2 + 3 + 0 of 10 blocks. In two blocks, only the shared head survives: 0 + 2 + 2 + 0."""
    cells = summary_of("prefix_traces")["capacities"]
    assert (cells["1"]["blocks"], cells["1"]["hit_rate"]) == (5, 0.5)
    assert (cells["0.4"]["blocks"], cells["0.4"]["hit_rate"], cells["0.4"]["of_best"]) == (2, 0.4, 0.8)


def test_another_first_passage_leaves_nothing_to_reuse(summary_of):
    summary = summary_of("prefix_traffic")
    assert summary["orders"]["other first passage"]["mean"] == 0
    assert summary["orders"]["same first passage"]["mean"] > 0.2
    assert summary["tenants"]["1"]["hit_rate_difference"]["mean"] == 0
    assert summary["tenants"]["2"]["memory_ratio"]["mean"] > 1.5


def test_a_missing_or_wrong_trace_is_refused_before_the_run(configs, tmp_path, monkeypatch):
    config = configs["prefix_traces"]
    monkeypatch.delenv("REPLICATION_DATA", raising=False)
    for data_dir, message in (("", "not part of the package"), (str(tmp_path), "cannot read")):
        with pytest.raises(ReplicationError, match=message):
            check_runs([("prefix_traces", replace(config, data_dir=data_dir))], tmp_path)
    for text, message in (("", "is empty"), ('{"timestamp": 1}\n', "line 1")):
        (tmp_path / FILE).write_text(text)
        with pytest.raises(ReplicationError, match=message):
            load_trace(tmp_path)


@pytest.mark.parametrize(
    ("experiment", "settings"),
    [
        (prefix_cache, {"cached": 2048}),
        (prefix_cache, {"block_size": 32}),
        (prefix_cache, {"outputs": (1,)}),
        (prefix_copies, {"n": 1}),
        (prefix_copies, {"lengths": (8,)}),
        (prefix_traces, {"capacities": (0.0,)}),
        (prefix_traffic, {"unique": (1.0,)}),
        (prefix_traffic, {"tenants": (0,)}),
    ],
)
def test_bad_settings_are_refused(experiment, settings):
    with pytest.raises(ReplicationError):
        experiment.Config(**settings)
