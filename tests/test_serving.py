"""The experiment with vLLM as referee, on stand-ins that keep or break its rules; `test_vllm` has the real one."""

import json
import shutil
from dataclasses import replace

import pytest
from vllm_server import StandIn, served

from experiments import serving
from experiments.serving_answers import compared
from experiments.serving_counts import prompts_of
from experiments.serving_summary import by_vllms_rule
from replication.errors import ReplicationError
from replication.model import load_model
from replication.records import RunFolder, without_seconds
from replication.runner import check_runs, recorded, result_folder, run_one
from replication.vllm import VLLM, Greedy

SETTINGS = {
    "dtype": "float32",
    "n": 2,
    "passages": 2,
    "streams": 2,
    "requests": 12,
    "longest": 100,
    "examples": 6,
    "length": 192,
    "chunk": 32,
    "prefix": 16,
    "fresh": 16,
    "rounds": 2,
    "output": 4,
}


@pytest.fixture(scope="module")
def model(tiny_directory):
    return load_model(tiny_directory)


@pytest.fixture(scope="module")
def config(model, tiny_directory):
    with served(StandIn(model)) as url, served(StandIn(model, caches=False)) as uncached:
        yield serving.Config(model=tiny_directory, url=url, uncached_url=uncached, **SETTINGS)


@pytest.fixture(scope="module")
def finished(config, tmp_path_factory):
    return run_one("serving", config, tmp_path_factory.mktemp("runs"))


def summary_of(folder) -> dict:
    return json.loads((folder / "summary.json").read_text())


def test_a_referee_that_follows_the_rules_agrees(finished, config):
    assert finished.name == "synthetic-float32"
    summary = summary_of(finished)
    counts = summary["counts"]
    assert counts["requests"] == 2 * 12 + 2 * 4 + 2
    assert counts["differ"] == counts["metrics_differ"] == counts["cached_without"] == 0
    assert 0 < counts["last_block"] < counts["requests"]
    assert 0 < counts["cached"] < counts["reused"] < counts["tokens"]
    assert all(found["differs"]["mean"] == 0 for found in summary["answers"].values())
    assert summary["answers"]["vllm"]["difference"]["max"] < 1e-3
    assert summary["answers"]["vllm"]["gap"]["max"] is None
    assert "blends" not in summary
    assert (finished / "figure.png").stat().st_size > 10_000


def test_the_hit_is_what_repeats_and_nothing_else(finished, config):
    for record in RunFolder(finished, recorded(config)).records:
        if record["kind"] == "times":
            found = {way.removeprefix("ours, "): f["found"] for way, f in record["found"].items() if "ours" in way}
            # of 192 tokens, the last 16 ask; reversed, the documents share the prefix alone, which is no whole block
            assert found == {"cold": 0, "hit": 5, "reversed": 0, "other tenant": 0}


def test_an_interrupted_run_ends_with_the_same_records(finished, config, tmp_path):
    whole = RunFolder(finished, recorded(config)).records
    copy = result_folder("serving", config, tmp_path)
    shutil.copytree(finished, copy)
    lines = (copy / "records.jsonl").read_text().splitlines(keepends=True)
    (copy / "records.jsonl").write_text("".join(lines[: len(lines) // 2]) + lines[-1][:20])
    run_one("serving", config, tmp_path)
    assert without_seconds(RunFolder(copy, recorded(config)).records) == without_seconds(whole)


def test_a_referee_that_counts_otherwise_is_noticed(model, config, tmp_path):
    with served(StandIn(model, off_by=1)) as url:
        folder = run_one("serving", replace(config, url=url, streams=1, rounds=1, n=1), tmp_path)
    counts = summary_of(folder)["counts"]
    assert counts["differ"] == counts["requests"]


def test_blending_is_reported_where_there_is_a_server(model, config, tmp_path):
    with served(StandIn(model)) as url:
        folder = run_one("serving", replace(config, blend_url=url, streams=1, rounds=1, n=1), tmp_path)
    blends = summary_of(folder)["blends"]
    assert blends["reused"]["cold"]["mean"] == 0
    assert blends["of_cold"]["median"] > 0


def test_shared_beginnings_are_at_and_beside_block_borders(config):
    prompts = list(prompts_of(replace(config, requests=200), 1000, stream=0))
    assert prompts == list(prompts_of(replace(config, requests=200), 1000, stream=0))
    assert {len(ids) % 32 for ids, _ in prompts} >= {31, 0, 1}
    assert max(len(ids) for ids, _ in prompts) <= 100
    assert {tenant for _, tenant in prompts} == {0, 1}


def test_the_rule_for_the_last_block():
    assert [by_vllms_rule(2, tokens, 32) for tokens in (64, 65, 96)] == [32, 64, 64]
    assert by_vllms_rule(0, 64, 32) == by_vllms_rule(1, 32, 32) == 0


def test_where_outputs_part():
    one = Greedy((5, 6, 7), (-0.1, -0.2, -0.3), (1.0, 0.5, 0.2))
    other = Greedy((5, 8, 7), (-0.15, -0.2, -0.3), (1.0, 0.25, 0.2))
    assert compared(one, one) == {"parted": None, "gap": None, "difference": 0}
    assert compared(one, other) == {"parted": 1, "gap": 0.25, "difference": pytest.approx(0.05)}
    assert compared(one, Greedy((1, 6, 7), (-0.1,) * 3, (0.1,) * 3)) == {"parted": 0, "gap": 0.1, "difference": None}


# --- what cannot be


def test_no_server_is_a_clear_error_before_anything_is_run(config, tmp_path):
    with served(StandIn(load_model(config.model))) as gone:
        pass
    with pytest.raises(ReplicationError, match=r"no vLLM server answers at .*scripts/engines/vllm.sh serve"):
        check_runs([("serving", replace(config, url=gone))], tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_server_that_was_started_otherwise_is_refused(model, config, tmp_path):
    with served(StandIn(model, block_size=16)) as url, pytest.raises(ReplicationError, match="--block-size 32"):
        check_runs([("serving", replace(config, url=url))], tmp_path)
    with pytest.raises(ReplicationError, match="must cache prefixes"):
        check_runs([("serving", replace(config, url=config.uncached_url))], tmp_path)
    with pytest.raises(ReplicationError, match="must not cache prefixes"):
        check_runs([("serving", replace(config, uncached_url=config.url))], tmp_path)
    with pytest.raises(ReplicationError, match="--max-model-len"):
        check_runs([("serving", replace(config, length=5000))], tmp_path)


def test_a_server_of_another_model_or_dtype_is_refused(model, config, tmp_path):
    with pytest.raises(ReplicationError, match=r"serves 'tiny-float32', not 'tiny-bfloat16': .* --dtype bfloat16"):
        check_runs([("serving", replace(config, dtype="bfloat16"))], tmp_path)
    other = StandIn(model)
    other.name = "other-float32"
    with served(other) as url, pytest.raises(ReplicationError, match="serves 'other-float32', not 'tiny-float32'"):
        check_runs([("serving", replace(config, blend_url=url))], tmp_path)


def test_another_kind_of_server_is_refused(model, monkeypatch):
    with pytest.raises(ReplicationError, match="no server's address"):
        VLLM("127.0.0.1:8011")
    stand_in = StandIn(model)
    monkeypatch.setattr(stand_in, "page", lambda path: "hello")
    with served(stand_in) as url, pytest.raises(ReplicationError, match="no vLLM server of one model"):
        VLLM(url)


def test_a_refused_request_says_why(config):
    with pytest.raises(ReplicationError, match=r"refuses /v1/completions \(400\): .*too long"):
        VLLM(config.url).complete(range(4100))


@pytest.mark.parametrize("wrong", [{"longest": 32}, {"output": 1}, {"rounds": 0}, {"length": 64}])
def test_bad_settings_are_refused(wrong):
    with pytest.raises(ReplicationError):
        serving.Config(**{**SETTINGS, **wrong})
