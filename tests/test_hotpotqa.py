"""HotpotQA from a file and from a stand-in for the hub, on invented rows."""

import hashlib
import json
import re

import pytest
from hub import hub_answers

from replication.data import load
from replication.errors import ReplicationError

FILE = "hotpotqa_distractor_300.jsonl"


def hotpot_row(k, answer=None):
    """An invented row whose second supporting passage states the answer."""
    answer = answer or f"Drevik {k}"
    context = [[f"Town {k}.{j}", [f"Town {k}.{j} lies in Plim.", f" It has {j} gates."]] for j in range(8)]
    context += [
        [f"Aldo {k} (painter)", [f"Aldo {k} was born in Kest {k}."]],
        [f"Kest {k}", [f"Its mayor is {answer}."]],
    ]
    return {
        "_id": f"row{k}",
        "question": f"Who is the mayor of the town where Aldo {k} was born?",
        "answer": answer,
        "type": "bridge",
        "level": "easy",
        "supporting_facts": [[f"Aldo {k} (painter)", 0], [f"Kest {k}", 0]],
        "context": context,
    }


def to_hub(row):
    """The same row in the hub's columns."""
    (names, numbers), (titles, sentences) = (zip(*row[key], strict=True) for key in ("supporting_facts", "context"))
    facts = {"title": list(names), "sent_id": list(numbers)}
    context = {"title": list(titles), "sentences": list(sentences)}
    return {"id": row["_id"], **row, "supporting_facts": facts, "context": context}


@pytest.fixture
def rows():
    small = hotpot_row(20)
    small["context"] = small["context"][-3:]
    return [hotpot_row(k) for k in range(12)] + [hotpot_row(12, "Yes"), hotpot_row(13, "Aldo 13"), small]


@pytest.fixture
def folder(rows, tmp_path):
    (tmp_path / FILE).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def test_hotpotqa_local(folder):
    loaded = load("hotpotqa", 13, data_dir=folder)
    assert loaded.provenance["source"] == FILE
    assert loaded.provenance["file_sha256"] == hashlib.sha256((folder / FILE).read_bytes()).hexdigest()
    assert loaded.provenance["dropped"] == {"yes/no answer": 1, "too few passages": 1}
    assert loaded.provenance["params"] == {"n": 13, "seed": 0, "passages": 6}
    assert str(folder) not in json.dumps(loaded.provenance)
    for example in loaded.examples:
        (gold,) = example.answers
        assert len(set(example.passages)) == 6
        assert {example.passages[k].title.split()[0] for k in example.supports} == {"Aldo", "Kest"}
        supports = [example.passages[k] for k in example.supports]
        assert any(gold in p.title or gold in p.text for p in supports)
        assert len(set(example.distractors)) == 4
        assert all(gold not in d and d not in gold and "(" not in d for d in example.distractors)


def test_hotpotqa_text_is_joined_sentences(folder):
    (example,) = load("hotpotqa", 1, data_dir=folder).examples
    town = next(p for p in example.passages if p.title.startswith("Town"))
    assert re.fullmatch(r"Town \S+ lies in Plim\. It has \d gates\.", town.text)


def test_hotpotqa_distractors_are_topped_up(folder):
    example = load("hotpotqa", 1, passages=2, data_dir=folder).examples[0]
    assert len(example.distractors) == 4


def test_hotpotqa_longer_run_extends_shorter(folder):
    assert load("hotpotqa", 9, data_dir=folder).examples[:4] == load("hotpotqa", 4, data_dir=folder).examples


def test_hotpotqa_folder_from_environment(folder, monkeypatch):
    monkeypatch.setenv("REPLICATION_DATA", str(folder))
    assert load("hotpotqa", 2) == load("hotpotqa", 2, data_dir=folder)


def test_hotpotqa_hub_equals_local(rows, folder, monkeypatch):
    hub_answers(monkeypatch, [to_hub(row) for row in rows])
    loaded = load("hotpotqa", 5)
    assert loaded.examples == load("hotpotqa", 5, data_dir=folder).examples
    assert loaded.provenance["source"] == "hotpotqa/hotpot_qa"
    assert loaded.provenance["revision"] == "abc123"


def test_hotpotqa_without_hub_names_both_ways(monkeypatch):
    hub_answers(monkeypatch, ConnectionError("offline"))
    with pytest.raises(ReplicationError, match=r"--data-dir or REPLICATION_DATA, or go online"):
        load("hotpotqa", 1)


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        '{"_id": "x"}',
        *(
            json.dumps(hotpot_row(1) | change)
            for change in (
                {"context": ["Brel"]},
                {"context": [["Brel", "one string, no list"]]},
                {"context": [[7, ["a sentence"]]]},
                {"question": 7},
                {"answer": None},
            )
        ),
    ],
)
def test_hotpotqa_bad_line(folder, line):
    with (folder / FILE).open("a") as file:
        file.write(line + "\n")
    with pytest.raises(ReplicationError, match="line 16 is no HotpotQA row"):
        load("hotpotqa", 1, data_dir=folder)


def test_hotpotqa_missing_file_and_too_many(folder, tmp_path):
    with pytest.raises(ReplicationError, match="13 usable rows with 6 passages, but n is 14"):
        load("hotpotqa", 14, data_dir=folder)
    with pytest.raises(ReplicationError, match=f"cannot read {FILE}"):
        load("hotpotqa", 1, data_dir=tmp_path / "none")
