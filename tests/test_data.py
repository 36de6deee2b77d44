"""Data sets: pinned output, stability, and what makes an example sound."""

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


def broken(monkeypatch, count: int = 1, **change) -> None:
    """Registers the data set `broken`: `count` times the same example, with these parts changed."""
    sound = {"passages": (Passage("Brel", "Brel is a town."),), "question": "What is Brel?", "answers": ("a town",)}
    example = RagExample("x-1", **(sound | change), distractors=(), supports=(0,))
    monkeypatch.setitem(DATASETS, "broken", Dataset(lambda n, seed, passages=1: ([example] * count, {}), supports=1))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"question": " "}, "has an empty question"),
        ({"question": 7}, "its question is no text"),
        ({"passages": (Passage("Brel", ""),)}, "has an empty passage"),
        ({"passages": ()}, "has an empty passage"),
        ({"answers": ()}, "has an empty answer"),
        ({"answers": ("a town", None)}, "its answer is no text"),
    ],
)
def test_a_broken_part_is_refused(monkeypatch, change, message):
    broken(monkeypatch, **change)
    with pytest.raises(ReplicationError, match=f"example x-1:? {message}"):
        load("broken", 1)


def test_repeated_ids_are_refused(monkeypatch):
    broken(monkeypatch, count=2)
    with pytest.raises(ReplicationError, match="two examples of data set 'broken' have the id x-1"):
        load("broken", 2)
