"""Data sets: pinned output, stability, and what makes an example sound. The HotpotQA rows here are invented."""

import hashlib
import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replication.data import DATASETS, Dataset, Passage, RagExample, load
from replication.errors import ReplicationError

GOLDEN = {
    "synthetic": "bb17e9a3a50473662c84bddfa7248c39b75440c95616c6202b9fada7619db088",
    "synthetic-2hop": "ff51e4168f56a96357162bbf8d0ef0e9de25ce82a8e44f3400b4830124da7044",
}
SYNTHETIC = sorted(GOLDEN)
FILE = "hotpotqa_distractor_300.jsonl"


def holders(example, text):
    """Indices of the passages whose title or text holds text, in any letter case."""
    return [k for k, p in enumerate(example.passages) if text.lower() in f"{p.title}\n{p.text}".lower()]


@pytest.mark.parametrize("name", SYNTHETIC)
def test_golden(name):
    assert load(name, 20).provenance == {
        "dataset": name,
        "source": "generated",
        "params": {"n": 20, "seed": 0, "passages": 6, "sentences": 5},
        "examples_sha256": GOLDEN[name],
    }


@pytest.mark.parametrize("name", SYNTHETIC)
def test_longer_run_extends_shorter(name):
    assert load(name, 9, seed=3).examples[:4] == load(name, 4, seed=3).examples
    assert load(name, 4, seed=3).examples != load(name, 4, seed=4).examples


@pytest.mark.parametrize("name", SYNTHETIC)
def test_number_of_passages_does_not_change_the_question(name):
    few, many = load(name, 8, passages=2).examples, load(name, 8, passages=9).examples
    assert [(e.question, e.answers) for e in few] == [(e.question, e.answers) for e in many]


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(SYNTHETIC),
    st.integers(0, 10**6),
    st.integers(min_value=2, max_value=12),
    st.integers(min_value=2, max_value=15),
)
def test_synthetic_is_sound(name, seed, passages, sentences):
    (example,) = load(name, 1, seed=seed, passages=passages, sentences=sentences).examples
    (gold,) = example.answers
    assert len(example.passages) == passages
    assert all(len(re.findall(r"\.(?: |$)", p.text)) == sentences for p in example.passages)
    assert holders(example, gold) == [example.supports[-1]]
    assert gold in example.passages[example.supports[-1]].text
    assert 1 <= len(gold.split()) <= 3
    assert len(set(example.distractors)) == 4
    assert all(gold not in d and d not in gold for d in example.distractors)
    assert sum(bool(holders(example, d)) for d in example.distractors) == min(4, passages - 1)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.integers(min_value=2, max_value=12))
def test_two_hop_needs_both_passages(seed, passages):
    (example,) = load("synthetic-2hop", 1, seed=seed, passages=passages).examples
    first, second = (example.passages[k] for k in example.supports)
    assert first.title in example.question
    assert second.title not in example.question
    assert second.title in first.text
    assert second.title in second.text
    # Every institution is named by one other, so being named twice does not mark the bridge.
    assert all(len(holders(example, p.title)) == 2 for p in example.passages)


def test_supports_move_around():
    assert {e.supports[0] for e in load("synthetic", 60).examples} == set(range(6))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: load("synthetik", 1), "unknown data set 'synthetik'; did you mean synthetic"),
        (lambda: load("synthetic", 0), "n must be at least 1"),
        (lambda: load("synthetic", 1, passages=0), "at least 1 passage an example, got 0"),
        (lambda: load("synthetic-2hop", 1, passages=1), "at least 2 passages an example, got 1"),
        (lambda: load("synthetic", 1, sentences=0), "at least 1 sentences a passage, got 0"),
        (lambda: load("synthetic-2hop", 1, sentences=1), "at least 2 sentences a passage, got 1"),
        (lambda: load("synthetic", 1, tokens=9), "no parameter tokens; it takes n, seed, passages, sentences"),
        (lambda: load("synthetic", 1, passages=601), "no unused invented value is left"),
    ],
)
def test_bad_parameters(call, message):
    with pytest.raises(ReplicationError, match=message):
        call()


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"question": " "}, "question"),
        ({"passages": (Passage("Brel", ""),)}, "passage"),
        ({"passages": ()}, "passage"),
        ({"answers": ()}, "answer"),
    ],
)
def test_empty_part_is_refused(monkeypatch, change, part):
    sound = {"passages": (Passage("Brel", "Brel is a town."),), "question": "What is Brel?", "answers": ("a town",)}
    example = RagExample("x-1", **(sound | change), distractors=(), supports=(0,))
    monkeypatch.setitem(DATASETS, "broken", Dataset(lambda n, seed, passages=1: ([example], {}), supports=1))
    with pytest.raises(ReplicationError, match=f"example x-1 has an empty {part}"):
        load("broken", 1)


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
        assert set(holders(example, gold)) & set(example.supports)
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


@pytest.fixture
def hub(monkeypatch):
    """Replaces the hub's two calls: hub(table) answers with a table, hub(error) raises."""
    monkeypatch.delenv("REPLICATION_DATA", raising=False)

    def answer(table):
        class Api:
            def dataset_info(self, path):
                if isinstance(table, Exception):
                    raise table
                return type("Info", (), {"sha": "abc123"})

        monkeypatch.setattr("huggingface_hub.HfApi", Api)
        monkeypatch.setattr("datasets.load_dataset", lambda **request: table)

    return answer


def test_hotpotqa_hub_equals_local(rows, folder, hub):
    hub([to_hub(row) for row in rows])
    loaded = load("hotpotqa", 5)
    assert loaded.examples == load("hotpotqa", 5, data_dir=folder).examples
    assert loaded.provenance["source"] == "hotpotqa/hotpot_qa"
    assert loaded.provenance["revision"] == "abc123"


def test_hotpotqa_without_hub_names_both_ways(hub):
    hub(ConnectionError("offline"))
    with pytest.raises(ReplicationError, match=r"--data-dir or REPLICATION_DATA, or go online"):
        load("hotpotqa", 1)


@pytest.mark.parametrize("line", ["{", "[]", '{"_id": "x"}', json.dumps(hotpot_row(1) | {"context": ["Brel"]})])
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
