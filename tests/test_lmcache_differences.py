"""The experiment on LMCache's differences, from config to figure on a tiny model, and interrupted."""

import json

import pytest

from experiments import lmcache_differences
from experiments.lmcache_differences import Config
from replication.errors import ReplicationError
from replication.records import RunFolder
from replication.runner import recorded, run_one

pytest.importorskip("lmcache", reason="LMCache is not installed: run `bash scripts/engines/lmcache.sh`")


@pytest.fixture(scope="module")
def finished(tiny_directory, tmp_path_factory):
    config = Config(model=tiny_directory, n=2, passages=3)
    return config, run_one("lmcache_differences", config, tmp_path_factory.mktemp("out"))


def test_summary_and_figure(finished):
    _, folder = finished
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["cells"]["full"]["kl_first"]["mean"] == 0
    # of three passages and the prefix, LMCache uses the prefix and the first passage; ours all but the missing one
    assert 0 < summary["used"]["lmcache missing"]["mean"] < summary["used"]["ours missing"]["mean"] == 1
    assert (summary["used"]["cut"]["mean"], summary["used"]["whole"]["mean"]) == (1, 0)
    assert 0 <= summary["budget_for_separators"]["mean"] < 1
    assert (folder / "figure.png").stat().st_size > 10_000


def test_an_interrupted_run_ends_with_the_same_records(finished, tmp_path):
    config, folder = finished
    whole = (folder / "records.jsonl").read_text().splitlines(keepends=True)
    again = tmp_path / folder.parent.parent.name / "lmcache_differences" / config.dataset
    again.mkdir(parents=True)
    (again / "provenance.json").write_bytes((folder / "provenance.json").read_bytes())
    (again / "records.jsonl").write_text("".join(whole[:5]) + whole[5][:20])
    run_one("lmcache_differences", config, tmp_path)
    kept = [json.dumps(r) for r in RunFolder(again, recorded(config)).records]
    assert kept == [json.dumps(json.loads(line)) for line in whole]


def test_a_missing_passage_that_is_none_is_refused():
    with pytest.raises(ReplicationError, match="passage 7"):
        Config(missing=7)


def test_without_lmcache_nothing_is_begun(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ReplicationError, match="not installed"):
        lmcache_differences.check(Config())
