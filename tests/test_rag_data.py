"""MuSiQue, NQ, SAMSum and Multi-News on invented rows, and the counts of the real files where they are at hand."""

import csv
import gzip
import hashlib
import io
import json
import os
import zipfile
from pathlib import Path

import pytest
from hub import hub_answers

from replication.data import DATASETS, load
from replication.errors import ReplicationError
from replication.task import DIALOGUE_SUMMARY, NEWS_SUMMARY, QA

DATA = os.environ.get("REPLICATION_DATA", "")
FILES = {
    "musique": "cacheblend_musique_s.json",
    "nq": "nq-open-oracle.jsonl.gz",
    "samsum": "samsum_test.csv",
    "multi_news": "longbench_multi_news.jsonl",
}
ROWS = 12


def musique_rows():
    """Row k has its answer in k of its ten chunks."""
    rows = []
    for k in range(11):
        texts = [f"chunk {j} of row {k}" + f" names Drevik {k}hall" * (j < k) for j in range(10)]
        ctxs = [{"title": "", "text": text} for text in reversed(texts)]
        rows.append({"question": f"Who is {k}?", "answers": [f"drevik {k}HALL"], "ctxs": ctxs})
    return rows


def nq_rows():
    return [
        {
            "question": f"where does {k} stand",
            "answers": [f"Kest{k:02}", f"the town of Kest{k:02}"],
            # row 1's passage gives row 0's answer away
            "ctxs": [{"title": f"Tower {k}", "text": f"It stands in Kest{k:02}." + " And in kest00!" * (k == 1)}],
        }
        for k in range(ROWS)
    ]


def samsum_rows():
    return [
        {"id": f"{k}", "dialogue": f"Ada: Is it {k}?\r\n \r\nPiet: It is {k}.", "summary": f"Piet says\nit is {k}."}
        for k in range(ROWS)
    ]


def news_rows():
    """Articles of 7, 4 and 2 words; row 0 has one of 2 words."""
    articles = ["a1 a2 a3 NEWLINE_CHAR a4 a5 a6 a7", "b1 b2 b3 b4", "c1 c2"]
    texts = [articles[-1:], *[articles] * (ROWS - 1)]
    return [
        {
            "context": "\n".join(f"Passage {i}:\n{text}" for i, text in enumerate(found, start=1)),
            "answers": [f"Summary {k}."],
        }
        for k, found in enumerate(texts)
    ]


def jsonl(rows) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


@pytest.fixture
def folder(tmp_path) -> Path:
    table = io.StringIO(newline="")
    writer = csv.DictWriter(table, ["id", "summary", "dialogue"])
    writer.writeheader()
    writer.writerows(samsum_rows())
    contents = {
        "musique": json.dumps(musique_rows()).encode(),
        "nq": gzip.compress(jsonl(nq_rows())),
        "samsum": table.getvalue().encode(),
        "multi_news": jsonl(news_rows()),
    }
    for name, content in contents.items():
        (tmp_path / FILES[name]).write_bytes(content)
    return tmp_path


def get(name, n, folder, **params):
    if name == "multi_news":
        params = {"words": 3, "passages": 4} | params
    return load(name, n, data_dir=folder, **params)


@pytest.mark.parametrize("name", FILES)
def test_source_is_the_file_and_its_hash(name, folder):
    found = get(name, 3, folder).provenance
    assert found["source"] == FILES[name]
    assert found["file_sha256"] == hashlib.sha256((folder / FILES[name]).read_bytes()).hexdigest()
    assert str(folder) not in json.dumps(found)


@pytest.mark.parametrize("name", FILES)
def test_longer_run_extends_shorter_and_the_seed_decides(name, folder):
    assert get(name, 9, folder).examples[:4] == get(name, 4, folder).examples
    assert get(name, 9, folder).examples != get(name, 9, folder, seed=1).examples


@pytest.mark.parametrize("name", FILES)
def test_more_passages_extend_fewer_in_the_same_order(name, folder):
    few, many = (get(name, 8, folder, passages=count).examples for count in (2, 4))
    for small, large in zip(few, many, strict=True):
        assert (small.question, small.answers) == (large.question, large.answers)
        assert [p for p in large.passages if p in small.passages] == list(small.passages)


def test_musique_keeps_what_holds_the_answer(folder):
    for example in get("musique", 11, folder, passages=3).examples:
        holding = int(example.id.split("-")[1])
        assert len(example.supports) == min(holding, 3)
        assert example.answerable == (holding > 0)
        assert len(example.distractors) == 4
        assert example.answers[0] not in example.distractors
        numbers = [int(p.text.split()[1]) for p in example.passages]
        assert numbers == sorted(numbers, reverse=True)  # as in the file


def test_nq_has_one_gold_passage_among_others(folder):
    for example in get("nq", ROWS, folder, passages=4).examples:
        (gold,) = example.supports
        assert example.holders == (gold,)
        assert len({p.title for p in example.passages}) == 4
        assert len(example.distractors) == 4
        assert not any(d in a or a in d for d in example.distractors for a in example.answers)
    assert len({e.supports for e in get("nq", ROWS, folder, passages=4).examples}) > 1


def test_nq_without_distractors_and_with_too_many(folder):
    assert get("nq", 2, folder, passages=1).examples[0].supports == (0,)
    with pytest.raises(ReplicationError, match="too few passages for 11 distractors of question nq-1"):
        get("nq", ROWS, folder, passages=12)


def test_samsum_examples_come_from_other_rows_with_their_summaries(folder):
    for example in get("samsum", ROWS, folder, passages=5).examples:
        number = example.id.split("-")[1]
        assert example.question == f"Ada: Is it {number}?\nPiet: It is {number}."
        assert example.answers == (f"Piet says it is {number}.",)
        shown = [p.text for p in example.passages]
        assert len(set(shown)) == 5
        assert not any(f"Is it {number}?" in text for text in shown)
        assert all(text.splitlines()[2].startswith("Summary: Piet says it is") for text in shown)


def test_multi_news_takes_every_articles_beginning_first(folder):
    texts = {k: [p.text for p in get("multi_news", 1, folder, passages=k).examples[0].passages] for k in (3, 4, 6)}
    assert texts[3] == ["a1 a2 a3", "b1 b2 b3", "c1 c2"]
    assert texts[4] == ["a1 a2 a3", "a4 a5 a6", "b1 b2 b3", "c1 c2"]
    assert texts[6] == ["a1 a2 a3", "a4 a5 a6", "a7", "b1 b2 b3", "b4", "c1 c2"]
    assert get("multi_news", 11, folder).provenance["dropped"] == {"too few chunks": 1}


def test_each_set_says_what_is_asked():
    tasks = {name: DATASETS[name].task for name in FILES}
    assert tasks == {"musique": QA, "nq": QA, "samsum": DIALOGUE_SUMMARY, "multi_news": NEWS_SUMMARY}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("musique", b"[{}]", "is not the paper's MuSiQue file"),
        ("musique", b"{", "is not the paper's MuSiQue file"),
        ("nq", b"no gzip", "cannot read nq-open-oracle"),
        ("nq", gzip.compress(b"{}\n", mtime=0), "line 1 is no question with one passage"),
        (
            "nq",
            gzip.compress(jsonl([nq_rows()[0] | {"answers": "Kest0"}]), mtime=0),
            "line 1 is no question with one passage",
        ),
        ("samsum", b"id,dialogue\n1,x\n", "row 1 lacks one of id, dialogue, summary"),
        ("samsum", b"\xff", "is no CSV file"),
        ("multi_news", b"[]\n", "line 1 is no row of LongBench"),
        ("multi_news", jsonl([{"context": "Passage 1:\nx", "answers": []}]), "line 1 is no row of LongBench"),
    ],
)
def test_a_damaged_file_is_named(folder, name, content, message):
    (folder / FILES[name]).write_bytes(content)
    with pytest.raises(ReplicationError, match=message):
        get(name, 1, folder)


@pytest.mark.parametrize("name", FILES)
def test_too_many_examples_and_a_missing_file(folder, tmp_path, name):
    with pytest.raises(ReplicationError, match="but n is 13"):
        get(name, 13, folder)
    with pytest.raises(ReplicationError, match=f"cannot read {FILES[name]}"):
        get(name, 1, tmp_path / "none")


def test_musique_without_a_folder_says_where_the_file_is(monkeypatch):
    monkeypatch.delenv("REPLICATION_DATA", raising=False)
    with pytest.raises(ReplicationError, match=r"REPLICATION_DATA \(inputs/musique_s.json of github.com/YaoJiayi"):
        load("musique", 1)


@pytest.mark.parametrize("name", ["nq", "samsum", "multi_news"])
def test_without_folder_or_hub_both_ways_are_named(monkeypatch, name):
    hub_answers(monkeypatch, ConnectionError("offline"))
    with pytest.raises(
        ReplicationError, match=rf"holds {FILES[name]} with --data-dir or REPLICATION_DATA, or go online"
    ):
        load(name, 1)


def test_samsum_from_the_hub_is_the_same(monkeypatch, folder):
    local = get("samsum", 5, folder).examples
    hub_answers(monkeypatch, samsum_rows())
    loaded = load("samsum", 5)
    assert loaded.examples == local
    assert loaded.provenance["revision"] == "abc123"


def test_multi_news_from_the_hub_is_the_same(monkeypatch, folder, tmp_path):
    local = get("multi_news", 5, folder).examples
    with zipfile.ZipFile(tmp_path / "data.zip", "w") as archive:
        archive.writestr("data/multi_news.jsonl", jsonl(news_rows()))
    hub_answers(monkeypatch, file=str(tmp_path / "data.zip"))
    assert load("multi_news", 5, words=3, passages=4).examples == local


def test_nq_from_the_hub_has_gold_documents_without_titles(monkeypatch):
    table = [
        {"example_id": k, "question": f"where is {k}", "answers": [f"Kest{k}"], "text": f"Tower {k} is in Kest{k}."}
        for k in range(ROWS)
    ]
    hub_answers(monkeypatch, table)
    example = load("nq", 1, passages=4).examples[0]
    assert len(set(example.passages)) == 4
    assert example.holders == example.supports


@pytest.mark.skipif(not DATA, reason="REPLICATION_DATA is not set")
def test_the_real_files():
    musique = load("musique", 150, data_dir=DATA).examples
    assert sum(e.answerable for e in musique) == 103
    assert all(e.holders for e in load("nq", 50, passages=10, data_dir=DATA).examples)
    assert all("Summary: " in p.text for e in load("samsum", 50, data_dir=DATA).examples for p in e.passages)
    news = load("multi_news", 100, data_dir=DATA).examples
    assert all(len(p.text.split()) <= 300 and "NEWLINE_CHAR" not in p.text for e in news for p in e.passages)
