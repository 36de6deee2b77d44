"""Sentence pairs: what the sets hold, how they are cut, and what their records say about them."""

import gzip
import json
from collections import Counter

import pytest

from replication.data.pairs import PAIRS, QQP_FILE, load_pairs
from replication.errors import ReplicationError

ROWS = [{"text_a": f"a{i}", "text_b": f"b{i}", "label": i % 2} for i in range(6)]


@pytest.fixture
def folder(tmp_path):
    """A data directory with a small file in the format of the real one."""

    def write(rows):
        (tmp_path / QQP_FILE).write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode(), mtime=0))
        return tmp_path

    return write


def test_fow_cache_is_half_traps_of_four_kinds():
    loaded = load_pairs("fow-cache")
    kinds = Counter((pair.category, pair.same) for pair in loaded.pairs)
    assert sum(kinds.values()) + loaded.provenance["dropped"]["ambiguous"] == 600
    assert {category for category, same in kinds if same} == {"paraphrase", "near_repeat"}
    assert {category for category, same in kinds if not same} == {"negation", "entity_swap", "number_date", "scope"}
    assert min(kinds.values()) >= 65


def test_a_larger_n_extends_a_smaller_one_and_a_seed_gives_another_order():
    few, more = load_pairs("fow-cache", n=5), load_pairs("fow-cache", n=9)
    assert more.pairs[:5] == few.pairs
    assert load_pairs("fow-cache", n=5).provenance == few.provenance
    assert load_pairs("fow-cache", n=5, seed=1).pairs != few.pairs
    assert few.provenance["pairs_sha256"] != more.provenance["pairs_sha256"]


def test_qqp_rows_become_pairs(folder):
    loaded = load_pairs("qqp", data_dir=folder(ROWS))
    pairs = sorted(loaded.pairs, key=lambda pair: pair.id)
    assert [(p.stored, p.asked, p.same) for p in pairs] == [(r["text_a"], r["text_b"], bool(r["label"])) for r in ROWS]
    assert {p.category for p in pairs} == {"duplicate", "other"}


@pytest.mark.parametrize("name", PAIRS)
def test_provenance_identifies_the_data_without_its_text(name, folder):
    loaded = load_pairs(name, n=4, data_dir=folder(ROWS))
    text = json.dumps(loaded.provenance)
    assert len(loaded.provenance["file_sha256"]) == 64
    assert str(folder(ROWS)) not in text
    assert not any(json.dumps(pair.stored)[1:-1] in text for pair in loaded.pairs if len(pair.stored) > 5)


@pytest.mark.parametrize("n", [0, -1, 7])
def test_more_pairs_than_there_are_is_an_error(folder, n):
    with pytest.raises(ReplicationError, match="has 6 pairs"):
        load_pairs("qqp", n=n, data_dir=folder(ROWS))


@pytest.mark.parametrize("change", [{"label": 2}, {"label": None}, {"text_a": " "}, {"text_b": 3}])
def test_a_bad_row_is_named(folder, change):
    with pytest.raises(ReplicationError, match="row qqp-5"):
        load_pairs("qqp", data_dir=folder([*ROWS[:5], ROWS[5] | change]))


def test_a_row_without_a_field_is_named(folder):
    with pytest.raises(ReplicationError, match="row qqp-0 has no 'text_b'"):
        load_pairs("qqp", data_dir=folder([{"text_a": "a", "label": 1}]))


def test_files_that_cannot_be_read_are_named(tmp_path, monkeypatch):
    monkeypatch.delenv("REPLICATION_DATA", raising=False)
    with pytest.raises(ReplicationError, match="--data-dir"):
        load_pairs("qqp")
    with pytest.raises(ReplicationError, match="No such file"):
        load_pairs("qqp", data_dir=tmp_path)
    for content in (b"no gzip", gzip.compress(b"{}\n" * 100)[:-9], gzip.compress(b"{")):
        (tmp_path / QQP_FILE).write_bytes(content)
        with pytest.raises(ReplicationError, match=QQP_FILE):
            load_pairs("qqp", data_dir=tmp_path)


def test_an_unknown_set_is_named():
    with pytest.raises(ReplicationError, match="did you mean qqp"):
        load_pairs("qqq")
