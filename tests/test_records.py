"""Results folders: resuming, torn lines, mismatched configs, strict JSON."""

import errno
import json
import math
import os
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from replication.errors import ReplicationError
from replication.records import RunFolder, jsonable, read_records, without_seconds, write_json_atomic

CONFIG = {"model": {"name": "tiny", "dtype": "float32"}, "seeds": (0, 1), "ratio": 0.1234567891}


def provenance_of(folder) -> dict:
    return json.loads((folder / "provenance.json").read_text())


def test_records_resume_where_the_run_ended(tmp_path):
    run = RunFolder(tmp_path, CONFIG)
    run.append({"example": 0, "method": "full", "kl": 1 / 3, "seconds": {"ttft": 0.5}})
    run.append({"example": 1, "method": "full", "kl": float("nan")})
    again = RunFolder(tmp_path, CONFIG)
    assert again.records == run.records == read_records(tmp_path) == read_records(tmp_path / "records.jsonl")
    assert again.records[0]["kl"] == 1 / 3
    assert again.records[1]["kl"] is None
    assert again.done(("example", "method")) == {(0, "full"), (1, "full")}
    assert again.done(["method"]) == {("full",)}
    assert again.done(["absent"]) == set()


def test_list_valued_fields_can_be_keys(tmp_path):
    run = RunFolder(tmp_path, {})
    run.append({"order": np.array([0, 2, 1])})
    assert run.done(["order"]) == {((0, 2, 1),)}


@settings(max_examples=20, deadline=None)
@given(cut=st.integers(1, 60))
def test_torn_last_line_is_dropped(tmp_path_factory, cut):
    folder = tmp_path_factory.mktemp("run")
    run = RunFolder(folder, CONFIG)
    run.append({"example": 0})
    whole = (folder / "records.jsonl").read_bytes()
    run.append({"example": 1, "text": "x" * 60})
    data = (folder / "records.jsonl").read_bytes()
    (folder / "records.jsonl").write_bytes(data[:-cut])
    assert read_records(folder) == [{"example": 0}]
    again = RunFolder(folder, CONFIG)
    assert again.records == [{"example": 0}]
    assert (folder / "records.jsonl").read_bytes() == whole
    again.append({"example": 1})
    assert read_records(folder) == [{"example": 0}, {"example": 1}]


def test_damaged_middle_line_is_named(tmp_path):
    (tmp_path / "records.jsonl").write_text('{"a": 1}\n{"a": \n{"a": 3}\n')
    with pytest.raises(ReplicationError, match="line 2 of"):
        read_records(tmp_path)


def test_missing_records_say_what_to_do(tmp_path):
    with pytest.raises(ReplicationError, match="run the experiment"):
        read_records(tmp_path / "none")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({**CONFIG, "model": {"name": "tiny", "dtype": "bfloat16"}}, 'model.dtype = "float32", not "bfloat16"'),
        ({**CONFIG, "seeds": [0]}, r"seeds = \[0, 1\], not \[0\]"),
        ({**CONFIG, "extra": None}, "extra = absent, not null"),
        ({**CONFIG, "model": "tiny", "zeta": 1}, 'model = {"dtype": "float32", "name": "tiny"}, not "tiny"'),
    ],
)
def test_other_config_is_refused_by_its_first_field(tmp_path, config, message):
    RunFolder(tmp_path, CONFIG)
    with pytest.raises(ReplicationError, match=f"{message}; choose another --out or delete") as error:
        RunFolder(tmp_path, config)
    assert "\n" not in str(error.value)


def test_equal_config_of_other_types_is_accepted(tmp_path):
    RunFolder(tmp_path, {"seeds": (0, 1), "ratio": np.float64(0.5)})
    RunFolder(tmp_path, {"ratio": 0.5, "seeds": [0, 1]})


def test_records_of_unknown_config_are_not_taken_over(tmp_path):
    (tmp_path / "records.jsonl").write_text('{"a": 1}\n')
    with pytest.raises(ReplicationError, match="unknown config"):
        RunFolder(tmp_path, CONFIG)


@pytest.mark.parametrize("content", ["", "[]", "{}"])
def test_damaged_provenance_is_refused(tmp_path, content):
    (tmp_path / "provenance.json").write_text(content)
    with pytest.raises(ReplicationError, match="is damaged"):
        RunFolder(tmp_path, CONFIG)


def test_provenance_holds_what_a_reader_needs_and_no_path(tmp_path, monkeypatch):
    command = ["/opt/env/bin/python", "-m", "experiments.run", "--out=/home/me/results/", "/data/my sets/a.json", "b/c"]
    monkeypatch.setattr(sys, "orig_argv", command)
    RunFolder(tmp_path, CONFIG)
    found = provenance_of(tmp_path)
    assert found["command"] == ["python", "-m", "experiments.run", "--out=results", "a.json", "b/c"]
    assert found["config"] == json.loads(json.dumps(CONFIG))
    assert found["machine"]["torch_threads"] == torch.get_num_threads()
    assert found["machine"]["cores"] == os.cpu_count()
    assert found["versions"]["torch"] == torch.__version__
    assert found["started"].endswith("+00:00")
    assert {"git", "python"} <= found.keys()


def test_resumption_is_noted_once_and_only_when_it_adds(tmp_path):
    RunFolder(tmp_path, CONFIG).append({"a": 1})
    first = provenance_of(tmp_path)
    again = RunFolder(tmp_path, CONFIG)
    assert provenance_of(tmp_path) == first
    again.append({"a": 2})
    again.append({"a": 3})
    noted = provenance_of(tmp_path)
    assert [entry["python"] for entry in noted.pop("resumed")] == [first["python"]]
    assert noted == first


def test_the_end_is_noted_beside_the_start_that_it_belongs_to(tmp_path):
    first = RunFolder(tmp_path, CONFIG)
    first.append({"a": 1})
    RunFolder(tmp_path, CONFIG).note_finished()  # this process added nothing
    assert "finished" not in provenance_of(tmp_path)
    first.note_finished()
    found = provenance_of(tmp_path)
    assert found["finished"] >= found["started"]
    again = RunFolder(tmp_path, CONFIG)
    again.append({"a": 2})
    again.note_finished()
    assert provenance_of(tmp_path) == found | {"resumed": [provenance_of(tmp_path)["resumed"][0]]}
    assert provenance_of(tmp_path)["resumed"][0]["finished"] >= found["finished"]


def test_summary_is_sorted_rounded_and_strict(tmp_path):
    run = RunFolder(tmp_path, CONFIG)
    run.write_summary({"b": 2 / 3, "a": {"inf": math.inf, "count": np.int64(1234567), "flag": np.bool_(True)}})
    text = (tmp_path / "summary.json").read_text()
    assert json.loads(text) == {"a": {"count": 1234567, "flag": True, "inf": None}, "b": 0.666667}
    assert text.index('"a"') < text.index('"b"')
    run.write_summary({"b": 1})
    assert json.loads((tmp_path / "summary.json").read_text()) == {"b": 1}


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text()


@given(st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3)))
def test_any_value_becomes_strict_json(value):
    assert jsonable(json.loads(json.dumps(jsonable(value), allow_nan=False))) == jsonable(value)


def test_unknown_type_is_not_written():
    with pytest.raises(TypeError, match="no place in JSON"):
        jsonable({"a": object()})


def test_without_seconds():
    assert without_seconds([{"a": 1, "seconds": {"ttft": 2.0}}]) == [{"a": 1}]


def test_full_disk_keeps_the_old_json(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    file = tmp_path / "a.json"
    write_json_atomic(file, {"old": 1})
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ReplicationError, match="free some space"):
        write_json_atomic(file, {"new": 1})
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]
    assert json.loads(file.read_text()) == {"old": 1}


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
def test_record_on_a_full_disk_raises(tmp_path):
    run = RunFolder(tmp_path, CONFIG)
    (tmp_path / "records.jsonl").symlink_to("/dev/full")
    with pytest.raises(ReplicationError, match=r"records\.jsonl; free some space"):
        run.append({"a": 1})
    assert run.records == []
