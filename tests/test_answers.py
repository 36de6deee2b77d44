"""Answer metrics against values worked out by hand."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replication.errors import ReplicationError
from replication.metrics.answers import exact_match, first_line, normalise, rank_correct, rouge_l, token_f1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("  The  Quick, brown Fox. ", "quick brown fox"),
        ("An apple a day", "apple day"),
        ("theatre", "theatre"),
        ("U.S.A.", "usa"),
        ("the", ""),
    ],
)
def test_normalise(text, expected):
    assert normalise(text) == expected


@pytest.mark.parametrize(
    ("prediction", "golds", "expected"),
    [
        ("the Tolvok Bridge", ["Tolvok bridge."], 1.0),
        ("Tolvok", ["Tolvok Bridge"], 2 / 3),
        ("in Tolvok in 1920", ["1920"], 2 / 5),
        ("in in", ["in"], 2 / 3),  # a repeated word counts once
        ("Brel", ["Tolvok"], 0.0),
        ("Brel", ["Tolvok", "Brel city"], 2 / 3),  # the best of the gold answers
        ("", ["Tolvok"], 0.0),
        ("the", ["a"], 1.0),
    ],
)
def test_token_f1(prediction, golds, expected):
    assert token_f1(prediction, golds) == pytest.approx(expected)


def test_token_f1_on_other_units():
    assert token_f1("abc", ["abd"], split=list) == pytest.approx(2 / 3)
    assert token_f1("", ["the"], split=list) == 1.0


@pytest.mark.parametrize(
    ("prediction", "references", "expected"),
    [
        ("the cat sat", ["the cat sat"], 1.0),
        ("Cats running", ["a cat runs"], 2 * 1.0 * (2 / 3) / (1.0 + 2 / 3)),  # stems: cat run, a cat run
        ("sat the cat", ["the cat sat"], 2 / 3),  # longest common subsequence: the cat
        ("dog", ["the cat sat", "a dog"], 2 / 3),  # the best of the references
        ("", ["the cat"], 0.0),
    ],
)
def test_rouge_l(prediction, references, expected):
    assert rouge_l(prediction, references) == pytest.approx(expected)


def test_exact_match():
    assert exact_match("The Tolvok!", ["Brel", "tolvok"]) == 1.0
    assert exact_match("Tolvok city", ["Brel", "tolvok"]) == 0.0


@settings(max_examples=50, deadline=None)
@given(st.text(), st.lists(st.text(), min_size=1, max_size=3))
def test_exact_match_means_full_f1(prediction, golds):
    assert 0.0 <= token_f1(prediction, golds) <= 1.0
    assert exact_match(prediction, golds) <= token_f1(prediction, golds)


@pytest.mark.parametrize(
    ("text", "expected"), [("\n Tolvok \nQuestion: x", "Tolvok"), ("Tolvok\r\nx", "Tolvok"), (" \n ", "")]
)
def test_first_line(text, expected):
    assert first_line(text) == expected


def test_rank_correct_is_strict():
    assert rank_correct(-1.0, [-1.5, -2.0])
    assert not rank_correct(-1.0, [-1.0, -2.0])
    assert not rank_correct(math.nan, [-2.0])


@pytest.mark.parametrize(
    "call",
    [lambda: token_f1("x", []), lambda: exact_match("x", []), lambda: rouge_l("x", []), lambda: rank_correct(-1.0, [])],
)
def test_nothing_to_compare_with(call):
    with pytest.raises(ReplicationError, match="empty"):
        call()
