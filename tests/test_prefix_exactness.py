"""prefix_exactness on a tiny model: its control, its hits, and the arithmetic of its summary."""

import json
import shutil
from dataclasses import replace

import pytest

from experiments import prefix_exactness
from experiments.prefix_exactness import CHUNKS, OTHER, SAME, TRANSFORMERS, WAYS
from replication.caches.prefix import PrefixCache
from replication.errors import ReplicationError
from replication.records import RunFolder
from replication.runner import recorded, result_folder, run_one


@pytest.fixture(scope="module")
def config(tiny_directory) -> prefix_exactness.Config:
    return prefix_exactness.Config(model=tiny_directory, n=2, passages=2, chunk=64, output=4)


@pytest.fixture(scope="module")
def finished(config, tmp_path_factory):
    return run_one("prefix_exactness", config, tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def pairs(config, finished) -> dict:
    records = [r for r in RunFolder(finished, recorded(config)).records if r["kind"] == "pair"]
    return {(r["dtype"], r["way"], r["example"]): r for r in records}


def test_a_hit_reuses_whole_blocks_and_changes_nothing_but_rounding(pairs):
    assert len(pairs) == 2 * len(WAYS) * 2
    for (dtype, way, example), record in pairs.items():
        assert record["parted"] is None or 0 <= record["parted"] < 4
        assert (record["margin"] is None) == (record["parted"] is None)
        if dtype == "float32":
            assert record["parted"] is None
            assert record["logit_difference"] < 1e-4
        if way == SAME:
            assert record["reused"] == min(record["tokens"] // 16 * 16, record["tokens"] - 1)
        if way == OTHER:
            assert 0 < record["reused"] <= pairs[dtype, SAME, example]["reused"]
        if way in (TRANSFORMERS, CHUNKS):
            assert record["reused"] == 0
    assert all(pairs[key]["logit_difference"] == 0 for key in pairs if key[1] == TRANSFORMERS)


def test_wrong_blocks_are_noticed_in_hits_alone(config, tmp_path, monkeypatch):
    class Broken(PrefixCache):
        def prefill(self, *args):
            result = super().prefill(*args)
            self._kv.zero_()
            return result

    monkeypatch.setattr(prefix_exactness, "PrefixCache", Broken)
    config = replace(config, n=1, dtypes=("float32",))
    folder = run_one("prefix_exactness", config, tmp_path)
    for record in RunFolder(folder, recorded(config)).records[1:]:
        assert (record["logit_difference"] > 0.1) == (record["way"] in (SAME, OTHER))
        assert (record["parted"] is None) == (record["way"] not in (SAME, OTHER))
        assert record["parted"] is None or record["margin"] > 0


def test_the_summary_counts_what_parts_and_where(config, pairs):
    records = [{"kind": "pair", **r} for r in pairs.values()]
    places = iter((0, 2))
    for record in records:
        record |= {"parted": None, "margin": None}
        if (record["dtype"], record["way"]) == ("bfloat16", OTHER):
            record |= {"parted": next(places), "margin": 0.5}
    summary = prefix_exactness.summarise(records, config)
    found = summary["cells"]["bfloat16 other question"]
    assert (found["differs"]["mean"], found["differs"]["n"]) == (1, 2)
    assert found["still_equal"] == [0.5, 0.5, 0, 0]
    assert (found["parted"]["median"], found["margin"]["median"]) == (1, 0.5)
    assert summary["cells"]["float32 other question"]["still_equal"] == [1, 1, 1, 1]
    assert summary["cells"]["float32 chunks"]["parted"]["n"] == 0
    assert summary["more_than_chunks"]["bfloat16"]["mean"] == 1
    assert summary["control"] == 0


def test_draws_its_figure_and_resumes_to_the_same_records(config, finished, tmp_path):
    assert (finished / "figure.png").stat().st_size > 10_000
    assert json.loads((finished / "summary.json").read_text())["n"] == 2
    whole = RunFolder(finished, recorded(config)).records
    copy = result_folder("prefix_exactness", config, tmp_path)
    shutil.copytree(finished, copy)
    lines = (copy / "records.jsonl").read_text().splitlines(keepends=True)
    (copy / "records.jsonl").write_text("".join(lines[:7]) + lines[-1][:20])
    run_one("prefix_exactness", config, tmp_path)
    assert RunFolder(copy, recorded(config)).records == whole


@pytest.mark.parametrize("settings", [{"n": 0}, {"chunk": 0}, {"output": 0}, {"dtypes": ("float8",)}, {"dtypes": ()}])
def test_bad_settings_are_refused(settings):
    with pytest.raises(ReplicationError):
        prefix_exactness.Config(**settings)
