"""The semantic cache: neighbours, threshold, persistence and kill -9, wrong answers that only a gate stops."""

import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from embedders import DIMENSION, WordEmbedder
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModel, AutoTokenizer

from replication.caches.embedding import embedder_directory, load_embedder
from replication.caches.gates import LikelihoodJudge, same_content, same_polarity
from replication.caches.index import INDEXES, ExactIndex, GraphIndex, recall, unit
from replication.caches.semantic import LookUp, SemanticCache
from replication.errors import ReplicationError


@pytest.fixture(scope="module")
def minilm():
    return load_embedder()


# index

vectors = st.integers(1, 60).flatmap(
    lambda n: st.integers(0, 2**32 - 1).map(lambda s: unit(np.random.default_rng(s).normal(size=(n, DIMENSION))))
)


@settings(max_examples=30, deadline=None)
@given(vectors, st.integers(1, 5), st.integers(0, 9))
def test_the_exact_index_returns_the_true_neighbours(stored, k, seed):
    queries = unit(np.random.default_rng(seed).normal(size=(4, DIMENSION)))
    exact = ExactIndex(DIMENSION)
    for row in stored:
        exact.add(row[None])
    scores, rows = exact.search(queries, k)
    cosines = queries @ stored.T
    found = min(k, len(stored))
    assert (rows[:, found:] == -1).all()
    np.testing.assert_allclose(scores[:, :found], -np.sort(-cosines, axis=1)[:, :found], atol=1e-5)
    np.testing.assert_allclose(np.take_along_axis(cosines, rows[:, :found], 1), scores[:, :found], atol=1e-5)


@settings(max_examples=20, deadline=None)
@given(vectors)
def test_the_graph_finds_the_neighbours_of_few_rows_and_true_scores(stored):
    exact, graph = ExactIndex(DIMENSION), GraphIndex(DIMENSION)
    exact.add(stored)
    graph.add(stored)
    scores, rows = graph.search(stored)
    np.testing.assert_allclose(scores[:, 0], (stored * stored[rows[:, 0]]).sum(1), atol=1e-5)
    assert recall(exact.search(stored)[1], rows) == 1.0


@pytest.mark.parametrize("name", INDEXES)
@settings(max_examples=30, deadline=None)
@given(vectors, st.sets(st.integers(0, 59)))
def test_removed_rows_are_not_found_and_the_others_keep_their_numbers(name, stored, gone):
    index_, gone = INDEXES[name](DIMENSION), {row for row in gone if row < len(stored)}
    half = len(stored) // 2
    for rows, removed in ((stored[:half], [r for r in gone if r < half]), (stored[half:], [*gone, *gone])):
        index_.add(rows) if len(rows) else None
        for row in removed:
            index_.remove(row)
    left = [row for row in range(len(stored)) if row not in gone]
    scores, rows = index_.search(stored)
    assert (index_.removed, len(index_)) == (len(gone), len(stored))
    if left:
        assert set(rows[:, 0].tolist()) <= set(left)
        np.testing.assert_allclose(scores[:, 0], (stored @ stored[left].T).max(1), atol=1e-5)
    else:
        assert (rows == -1).all()


def test_more_effort_gives_more_recall():
    rng = np.random.default_rng(0)
    stored, queries = unit(rng.normal(size=(3000, 64))), unit(rng.normal(size=(200, 64)))
    exact = ExactIndex(64)
    exact.add(stored)
    found = []
    for effort in (1, 256):
        graph = GraphIndex(64, links=8, effort=effort, build_effort=16)
        graph.add(stored)
        found.append(recall(exact.search(queries)[1], graph.search(queries)[1]))
    assert found[0] < 0.9 < found[1]


@pytest.mark.parametrize("name", INDEXES)
@pytest.mark.parametrize("bad", [np.ones((2, DIMENSION)), np.ones((2, 3)) / np.sqrt(3), np.ones(DIMENSION)])
def test_vectors_that_would_not_be_cosines_are_refused(name, bad):
    with pytest.raises(ReplicationError, match=r"vectors"):
        INDEXES[name](DIMENSION).add(bad)


def test_recall_counts_the_true_neighbours_among_the_found():
    assert recall(np.array([[1, 2], [3, 4]]), np.array([[2, 1], [4, 9]])) == 0.75


@pytest.mark.slow
def test_a_look_up_among_100_000_takes_under_a_millisecond():
    """Without the embedding (S-41); random vectors, which are the hardest to search."""
    rng = np.random.default_rng(0)
    graph = GraphIndex(384)
    graph.add(unit(rng.normal(size=(100_000, 384))))
    seconds = []
    for query in unit(rng.normal(size=(200, 384))):
        begun = time.perf_counter()
        graph.search(query[None])
        seconds.append(time.perf_counter() - begun)
    assert np.median(seconds) < 1e-3


# embedder


def test_embeddings_have_length_one_so_cosine_is_the_dot_product(minilm):
    a, b = minilm.encode(["How do I reset my password?", "Refund policy for annual plans"])
    cosine = a @ b / np.linalg.norm(a) / np.linalg.norm(b)
    assert a.dtype == np.float32
    assert float(a @ b) == pytest.approx(float(cosine), abs=1e-6)


def test_embeddings_are_the_models_mean_over_its_tokens(minilm):
    """The reference in plain transformers: texts of other lengths in the same batch change nothing."""
    tokenizer, model = (auto.from_pretrained(embedder_directory()) for auto in (AutoTokenizer, AutoModel))
    texts = ["Is the API rate limited?", "word " * 100]
    with torch.no_grad():
        states = [model(**tokenizer(text, return_tensors="pt", truncation=False)).last_hidden_state for text in texts]
    expected = unit(np.stack([state[0].mean(0).numpy() for state in states]))
    np.testing.assert_allclose(minilm.encode(texts), expected, atol=1e-5)


def test_a_text_that_would_be_cut_is_refused(minilm):
    assert minilm.encode(["word " * 250]).shape == (1, 384)
    with pytest.raises(ReplicationError, match="302 tokens exceeds the 256"):
        minilm.encode(["short", "word " * 300])


def test_all_that_is_read_counts(minilm):
    a, b = minilm.encode(["word " * 240 + "cat", "word " * 240 + "dog"])
    assert not np.array_equal(a, b)


@pytest.mark.parametrize("name", ["all-minilm", "/nowhere"])
def test_an_embedder_that_is_not_there_is_named(name):
    with pytest.raises(ReplicationError, match="no embedding model"):
        load_embedder(name)


# cache


def cache_of(*questions: str, **arguments) -> SemanticCache:
    cache = SemanticCache(WordEmbedder(), **arguments)
    for question in questions:
        cache.store(cache.look_up(question), f"answer to {question}")
    return cache


def test_each_question_gets_its_own_answer_not_the_first(minilm):
    """User reports 38: 'always the first item', 'always hits'."""
    cache = SemanticCache(minilm, threshold=0.8)
    for question in ("How do I reset my password?", "Where is my parcel?", "What is the refund policy?"):
        cache.store(cache.look_up(question), question.upper())
    assert cache.look_up("Where's my parcel?").answer == "WHERE IS MY PARCEL?"
    assert cache.look_up("How can I reset my password?").answer == "HOW DO I RESET MY PASSWORD?"
    miss = cache.look_up("Who wrote Faust?")
    assert (miss.answer, miss.refused) == (None, False)
    assert miss.score < 0.5


def test_an_empty_cache_misses():
    looked = cache_of(threshold=-1).look_up("a")
    assert (looked.answer, looked.nearest, looked.score) == (None, None, None)


@pytest.mark.parametrize("name", INDEXES)
def test_the_embedding_of_a_miss_is_handed_back_for_storing(name):
    """S-40: one embedding a request, hit or miss, and none for storing."""
    embedder = WordEmbedder()
    cache = SemanticCache(embedder, index=name)
    for question in ("a b", "c d", "a b", "e f"):
        looked = cache.look_up(question)
        if looked.answer is None:
            cache.store(looked, question)
    assert embedder.embedded == ["a b", "c d", "a b", "e f"]
    assert len(cache) == 3


def test_nothing_checks_an_answer_before_it_serves_all_neighbours(minilm):
    """S-42: one wrong answer is served to every paraphrase."""
    cache = SemanticCache(minilm, threshold=0.8)
    cache.store(cache.look_up("How do I reset my password?"), "WRONG")
    for question in ("How can I reset my password?", "How do I reset my password", "how to reset my password"):
        assert cache.look_up(question).answer == "WRONG"


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.text("abc ", min_size=1, max_size=5).filter(str.strip), min_size=2, max_size=8),
    st.floats(-1, 1),
    st.floats(-1, 1),
)
def test_a_higher_threshold_never_hits_more(questions, a, b):
    """User reports 38: a threshold that was documented the wrong way round."""
    low, high = sorted((a, b))
    *stored, asked = questions
    strict, loose = cache_of(*stored, threshold=high), cache_of(*stored, threshold=low)
    if strict.look_up(asked).answer is not None:
        assert loose.look_up(asked).answer is not None


@pytest.mark.parametrize("threshold", [1.1, -1.1, 90, float("nan")])
def test_a_threshold_that_is_no_cosine_is_refused(threshold):
    with pytest.raises(ReplicationError, match="must be a cosine"):
        SemanticCache(WordEmbedder(), threshold=threshold)


def test_an_unknown_index_is_named():
    with pytest.raises(ReplicationError, match="did you mean graph"):
        SemanticCache(WordEmbedder(), index="grph")


def test_storing_again_replaces_the_answer(tmp_path):
    cache = cache_of("a b", "c d", path=tmp_path / "s.db")
    cache.store(cache.look_up("a b"), "new")
    again = SemanticCache(WordEmbedder(), path=tmp_path / "s.db")
    for each in (cache, again):
        assert each.look_up("a b").answer == "new"
        assert each.look_up("c d").answer == "answer to c d"
        assert len(each) == 2


@pytest.mark.parametrize("name", INDEXES)
def test_what_is_read_from_the_file_is_what_was_stored(tmp_path, name):
    questions = [f"{a} {b}" for a in "abcd" for b in "efgh"]
    cache = cache_of(*questions, path=tmp_path / "s.db", index=name)
    again = SemanticCache(WordEmbedder(), path=tmp_path / "s.db", index=name)
    for question in [*questions, "a b c", "x"]:
        before, after = cache.look_up(question), again.look_up(question)
        assert (before.answer, before.nearest, before.score) == (after.answer, after.nearest, after.score)


def test_a_file_of_another_embedder_is_refused(tmp_path):
    cache_of("a", path=tmp_path / "s.db").close()
    with pytest.raises(ReplicationError, match="another embedder"):
        SemanticCache(WordEmbedder(weights="other"), path=tmp_path / "s.db")


def test_a_vector_that_does_not_fit_leaves_no_trace(tmp_path):
    cache = cache_of("a", path=tmp_path / "s.db")
    with pytest.raises(ReplicationError, match="vectors of shape"):
        cache.store(LookUp("b", np.ones(3)), "no")
    assert len(SemanticCache(WordEmbedder(), path=tmp_path / "s.db")) == 1


def test_a_file_of_another_kind_is_refused(tmp_path):
    (tmp_path / "s.db").write_bytes(b"text" * 500)
    with pytest.raises(ReplicationError, match=r"s\.db"):
        SemanticCache(WordEmbedder(), path=tmp_path / "s.db")


# bounds

VECTOR_BYTES = 4 * DIMENSION
steps = st.lists(
    st.one_of(
        st.tuples(st.just("store"), st.sampled_from("abcdef"), st.integers(0, 30)),
        st.tuples(st.just("ask"), st.sampled_from("abcdefg"), st.just(0)),
        st.tuples(st.just("wait"), st.just(""), st.integers(1, 8)),
    ),
    max_size=40,
)


class Kept:
    """What a bounded cache must hold: question -> (answer, when it expires), the least recently used first."""

    def __init__(self, ttl: int, bound: int):
        self.ttl, self.bound, self.now, self.entries = ttl, bound, 0, {}

    def store(self, question: str, answer: str) -> bool:
        self.drop_expired()
        if self.size(question, answer) > self.bound:
            return False
        self.entries.pop(question, None)
        self.entries[question] = (answer, self.now + self.ttl)
        while self.nbytes > self.bound:
            self.entries.pop(next(iter(self.entries)))
        return True

    def drop_expired(self) -> None:
        self.entries = {q: e for q, e in self.entries.items() if e[1] > self.now}

    @property
    def nbytes(self) -> int:
        return sum(self.size(question, answer) for question, (answer, _) in self.entries.items())

    @staticmethod
    def size(question: str, answer: str) -> int:
        return len(question) + len(answer) + VECTOR_BYTES


@pytest.mark.parametrize("name", INDEXES)
@settings(max_examples=40, deadline=None)
@given(steps, st.lists(st.booleans(), min_size=40, max_size=40), st.integers(1, 4))
def test_no_expired_or_dropped_entry_is_found_by_any_cache_on_the_file(name, steps, turns, room):
    """Two caches take turns on one file; a third, opened at the end, agrees with them."""
    kept = Kept(ttl=10, bound=room * (VECTOR_BYTES + 20))
    bounds = {"ttl_seconds": kept.ttl, "max_bytes": kept.bound, "clock": lambda: kept.now}
    words = dict(zip("abcdefg", WordEmbedder().encode(list("abcdefg")), strict=True))

    def check(looked: LookUp) -> None:
        kept.drop_expired()
        answer, _ = kept.entries.get(looked.question, (None, 0))
        assert looked.answer == answer
        if kept.entries:
            best = max(kept.entries, key=lambda word: words[word] @ words[looked.question])
            assert looked.nearest == best
            assert looked.score == pytest.approx(float(words[best] @ words[looked.question]), abs=1e-5)
        else:
            assert (looked.nearest, looked.score) == (None, None)
        if answer is not None:
            kept.entries[looked.question] = kept.entries.pop(looked.question)

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "s.db")
        caches = [SemanticCache(WordEmbedder(), 0.9999, name, path=path, **bounds) for _ in range(2)]
        for number, ((step, word, size), turn) in enumerate(zip(steps, turns, strict=False)):
            if step == "wait":
                kept.now += size
            elif step == "ask":
                check(caches[turn].look_up(word))
            else:
                answer = str(number).ljust(size)
                assert caches[turn].store(LookUp(word, words[word]), answer) == kept.store(word, answer)
                assert caches[turn].nbytes <= kept.bound
        caches.append(SemanticCache(WordEmbedder(), 0.9999, name, path=path, **bounds))
        for cache in caches:
            for word in words:
                check(cache.look_up(word))
            cache.close()


@pytest.mark.parametrize("name", INDEXES)
def test_dropped_entries_do_not_pile_up_in_the_index(name):
    cache = SemanticCache(WordEmbedder(), index=name, max_bytes=10 * (VECTOR_BYTES + 20))
    for number in range(300):
        cache.store(cache.look_up(f"word{number}"), "yes")
    assert 10 <= len(cache) <= 20
    assert len(cache._index) <= 2 * len(cache) + 1
    assert cache.look_up("word299").answer == "yes"
    assert cache.look_up("word0").nearest != "word0"


def test_a_graph_whose_way_leads_through_dropped_entries_alone_is_built_anew():
    """Around the question lie more dropped entries than the search keeps candidates."""
    rng, now = np.random.default_rng(0), [0.0]
    (centre,) = unit(rng.normal(size=(1, DIMENSION)))
    cache = SemanticCache(WordEmbedder(), -1, "graph", ttl_seconds=10, clock=lambda: now[0])
    for number, vector in enumerate(unit(centre + 0.01 * rng.normal(size=(400, DIMENSION)))):
        cache.store(LookUp(f"near {number}", vector), "old")
    now[0] = 5.0
    far = unit(-centre + 0.01 * rng.normal(size=(450, DIMENSION)))
    for number, vector in enumerate(far):
        cache.store(LookUp(f"far {number}", vector), "new")
    now[0] = 10.0
    looked = cache.look_up_vector("asked", centre)
    assert looked.answer == "new"
    assert looked.score == pytest.approx(float((far @ centre).max()), abs=1e-5)


def test_an_entry_that_expires_while_it_is_checked_is_not_served():
    now = [0.0]

    def slow(asked, stored) -> bool:
        now[0] += 10
        return True

    cache = cache_of("a b", ttl_seconds=10, accept=slow, clock=lambda: now[0])
    assert cache.look_up("a b").answer is None


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        ({"ttl_seconds": 0}, "semantic cache must be above 0"),
        ({"ttl_seconds": float("nan")}, "semantic cache must be above 0"),
        ({"max_bytes": 0}, "semantic cache must be above 0"),
        ({"max_bytes": VECTOR_BYTES}, "keeps nothing: an embedding takes 32"),
    ],
)
def test_bounds_that_keep_nothing_are_refused(bounds, message):
    with pytest.raises(ReplicationError, match=message):
        SemanticCache(WordEmbedder(), **bounds)


_WRITER = """
import sys
from embedders import WordEmbedder
from replication.caches.semantic import SemanticCache
cache = SemanticCache(WordEmbedder(), 0.9999, path=sys.argv[1], max_bytes=int(sys.argv[2]))
for number in range(10**9):
    cache.store(cache.look_up(f"question {number}"), f"answer {number} " * 500)
    print(number, flush=True)
"""


@pytest.mark.parametrize("max_bytes", [2**40, 100_000], ids=["roomy", "bounded"])
def test_a_killed_writer_loses_at_most_the_entry_it_was_writing(tmp_path, max_bytes):
    path = tmp_path / "s.db"
    environment = {"PYTHONPATH": ":".join(sys.path)}
    command = [sys.executable, "-c", _WRITER, path, str(max_bytes)]
    writer = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True)
    told = [writer.stdout.readline()]
    time.sleep(0.2)
    writer.send_signal(signal.SIGKILL)
    told += writer.stdout.readlines()
    writer.wait()
    last = max(int(line) for line in told if line.endswith("\n"))
    file = sqlite3.connect(path)
    assert file.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    held = {question: nbytes for question, nbytes in file.execute("SELECT key, bytes FROM entries ORDER BY row")}
    cache = SemanticCache(WordEmbedder(), 0.9999, path=path, max_bytes=max_bytes)
    assert (len(cache), cache.nbytes) == (len(held), sum(held.values()))
    assert cache.nbytes <= max_bytes
    # the last ones that were told are there, or all of them if there is room
    assert list(held)[-1] in (f"question {last}", f"question {last + 1}")
    first = int(next(iter(held)).split()[1])
    assert (first == 0) == (sum(len(f"answer {n} ") * 500 for n in range(last + 2)) <= max_bytes)
    for number in range(0, last + 1, 1 if first else 7):
        answer = cache.look_up(f"question {number}").answer
        assert answer == (f"answer {number} " * 500 if number >= first else None)


# gates


@pytest.mark.parametrize(
    ("asked", "stored", "polarity", "content"),
    [
        ("How can I reset my password?", "How do I reset my password?", True, True),
        ("Is the API not rate limited?", "Is the API rate limited?", False, False),
        ("Why isn't it open?", "Why is it open?", False, False),
        ("Why isn’t it open?", "Why is it not open?", True, True),
        ("Can't I pay?", "Cannot I pay?", True, True),
        ("Track order 48231", "Track order 48213", False, False),
        ("Fly with two bags", "Fly with 2 bags", True, True),
        ("Pay 1,000 now", "Pay 1000 now", True, True),
        ("A table for two", "A table for three", False, False),
        ("Refund policy for monthly plans", "Refund policy for annual plans", True, False),
        ("Is this plan good?", "Is that plan good?", True, True),
        ("Reset the passwords", "Reset the password", True, True),
    ],
)
def test_words_that_flip_or_narrow_a_question(asked, stored, polarity, content):
    for first, second in ((asked, stored), (stored, asked)):
        assert same_polarity(first, second) == polarity
        assert same_content(first, second) == content


@given(st.text(max_size=30))
def test_a_question_passes_its_own_gates(text):
    assert same_polarity(text, text)
    assert same_content(text, text)
    assert same_content(text.upper(), text.upper())


def test_a_refused_hit_is_a_miss_that_says_so(minilm):
    """User report 37: reversed questions score over any usual threshold."""
    cache = SemanticCache(minilm, threshold=0.8, accept=same_polarity)
    cache.store(cache.look_up("Is the API rate limited?"), "Yes.")
    refused = cache.look_up("Is the API not rate limited?")
    assert (refused.answer, refused.refused) == (None, True)
    assert refused.score > 0.9
    assert cache.look_up("Is the API rate-limited?").answer == "Yes."


def test_the_gate_is_asked_only_about_what_is_near():
    asked = []
    cache = cache_of("a b", "c d", threshold=0.99, accept=lambda *pair: asked.append(pair) or True)
    cache.look_up("a b")
    cache.look_up("x y z")
    assert asked == [("a b", "a b")]


def test_the_judge_knows_a_paraphrase_from_another_question(smollm2):
    judge = LikelihoodJudge(smollm2)
    same = judge.log_odds("How can I reset my password?", "How do I reset my password?")
    other = judge.log_odds("Who wrote Faust?", "How do I reset my password?")
    assert same > other
    between = (same + other) / 2
    assert LikelihoodJudge(smollm2, between)("How can I reset my password?", "How do I reset my password?")
    assert not LikelihoodJudge(smollm2, between)("Who wrote Faust?", "How do I reset my password?")


def test_a_look_up_can_be_made_of_an_embedding_at_hand():
    cache = SemanticCache(WordEmbedder())
    (vector,) = WordEmbedder().encode(["a b"])
    cache.store(LookUp("a b", vector), "yes")
    assert cache.look_up_vector("a b", vector).answer == "yes"
