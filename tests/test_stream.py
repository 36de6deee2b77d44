"""The request stream: pinned output, stability, and what each kind of request is."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replication.data.stream import KINDS, Request, Traffic, stream, stream_sha256
from replication.data.synthetic import ATTRIBUTES
from replication.data.wordings import WORDINGS
from replication.errors import ReplicationError

GOLDEN = "85862e9ed45e602558f12f011fa7b66abc6fc9b7741e1d4d2b5d38cef4d572ca"
BUSY = Traffic(tenants=2, documents=5, passages=3, repeats=0.25, paraphrases=0.2, traps=0.2, chats=0.25)
seeds = settings(max_examples=15, deadline=None)


def with_past(requests: list[Request]):
    """Each request with its tenant's earlier ones."""
    return [(r, [p for p in requests[:i] if p.tenant == r.tenant]) for i, r in enumerate(requests)]


def test_golden():
    assert stream_sha256(stream(50)) == GOLDEN


def test_a_longer_stream_extends_a_shorter_one_and_a_seed_makes_another():
    assert stream(40, seed=3)[:15] == stream(15, seed=3)
    assert stream(5, seed=3) != stream(5, seed=4)


def test_every_kind_and_every_trap_comes():
    requests = stream(150, traffic=BUSY)
    assert {r.kind for r in requests} == set(KINDS)
    assert {r.near for r in requests if r.kind == "trap"} == {"negation", "entity", "attribute"}


@seeds
@given(st.integers(0, 10**6))
def test_kinds_are_what_they_say(seed):
    for request, past in with_past(stream(60, seed, BUSY)):
        singles = [p for p in past if p.follows is None]
        bytes_before = {(p.passages, p.question) for p in singles}
        questions, meanings = {p.question for p in singles}, {p.meaning for p in past}
        assert (request.near is not None) == (request.kind == "trap")
        assert request.seen == (set(request.passages) <= {p for r in past for p in r.passages})
        if request.kind == "chat":
            (before,) = (p for p in past if p.id == request.follows)
            assert request.questions[:-1] == before.questions
            assert request.passages == before.passages
            assert len(set(request.attributes)) == len(request.questions) <= BUSY.turns
        else:
            assert (request.kind == "repeat") == ((request.passages, request.question) in bytes_before)
            assert (request.kind in ("repeat", "again")) == (request.question in questions)
            assert (request.kind in ("new", "trap")) == (request.meaning not in meanings)


@seeds
@given(st.integers(0, 10**6))
def test_the_answer_is_in_one_passage_alone(seed):
    for request in stream(30, seed, BUSY):
        assert len(set(request.passages)) == BUSY.passages
        assert bool(request.answers) != request.negated
        for answer in request.answers:
            (holder,) = (p for p in request.passages if answer.lower() in p.text.lower())
            assert holder.title == request.document


@seeds
@given(st.integers(0, 10**6))
def test_equal_meanings_have_equal_answers_and_no_two_questions_of_a_tenant_mean_two_things(seed):
    answers, meanings = {}, {}
    for request in stream(80, seed, BUSY):
        assert answers.setdefault((request.tenant, request.meaning), request.answers) == request.answers
        key = (request.tenant, request.questions)
        assert meanings.setdefault(key, request.meaning) == request.meaning


def test_tenants_share_the_documents_that_they_are_meant_to():
    def documents(shared: float) -> list[set]:
        requests = stream(300, traffic=Traffic(tenants=2, documents=6, shared=shared, zipf=0))
        return [{p for r in requests if r.tenant == t for p in r.passages} for t in ("tenant-0", "tenant-1")]

    assert [len(a & b) for a, b in map(documents, (0.0, 0.5, 1.0))] == [0, 3, 6]


def test_popular_documents_are_asked_about_more_often():
    def top(zipf: float) -> float:
        traffic = Traffic(tenants=1, zipf=zipf, repeats=0, paraphrases=0, traps=0, chats=0)
        asked = [r.document for r in stream(300, traffic=traffic)]
        return max(map(asked.count, set(asked))) / len(asked)

    harmonic = sum(1 / rank for rank in range(1, 13))
    assert top(0) == pytest.approx(1 / 12, abs=0.06)
    assert top(1) == pytest.approx(1 / harmonic, abs=0.08)


def test_every_attribute_has_its_wordings():
    assert len(WORDINGS) == len(ATTRIBUTES)
    for number, (wording, attribute) in enumerate(zip(WORDINGS, ATTRIBUTES, strict=True)):
        asked = {attribute.question, wording.negated, *wording.same}
        assert len(asked) == 4
        assert all("{e}" in text for text in asked)
        assert "{e}" not in wording.further
        assert wording.near != number


@pytest.mark.parametrize(
    "settings",
    [
        {"tenants": 0},
        {"passages": 0},
        {"turns": 0},
        {"documents": 3},
        {"documents": 1, "passages": 1},
        {"sentences": 5},
        {"repeats": -0.1},
        {"repeats": 0.5, "chats": 0.5},
        {"shared": 1.1},
        {"zipf": -1},
    ],
)
def test_bad_traffic_is_refused(settings):
    with pytest.raises(ReplicationError):
        Traffic(**settings)


def test_an_empty_stream_is_refused():
    with pytest.raises(ReplicationError, match="at least 1 request"):
        stream(0)
