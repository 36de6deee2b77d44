"""Semantic cache (S-40): a finished answer is served to every question whose embedding is near enough.

>>> from replication.caches.embedding import load_embedder
>>> cache = SemanticCache(load_embedder(), threshold=0.9)
>>> asked = cache.look_up("Is the API rate limited?")
>>> asked.answer is None
True
>>> cache.store(asked, "Yes, to 60 requests a minute.")  # asked.vector is used, nothing is embedded again
>>> cache.look_up("Is the API not rate limited?").answer  # S-43: confidently wrong
'Yes, to 60 requests a minute.'
>>> from replication.caches.gates import same_polarity
>>> careful = SemanticCache(load_embedder(), threshold=0.9, accept=same_polarity)
>>> careful.store(asked, "Yes, to 60 requests a minute.")
>>> careful.look_up("Is the API not rate limited?").answer is None
True
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from replication.caches.index import INDEXES, Index
from replication.caches.sqlite import explained, open_database
from replication.errors import ReplicationError

Accept = Callable[[str, str], bool]

_SCHEMA = (
    "CREATE TABLE embedder (weights TEXT NOT NULL)",
    "CREATE TABLE entries"
    " (row INTEGER PRIMARY KEY, question TEXT UNIQUE NOT NULL, answer TEXT NOT NULL, vector BLOB NOT NULL)",
)


class Embeds(Protocol):
    """What a cache needs of an embedder; weights tells it from others."""

    weights: str
    dimension: int

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Unit vectors, float32 [len(texts), dimension]."""


@dataclass(frozen=True)
class LookUp:
    """What a look-up found. answer: None on a miss. vector: the question's embedding [dimension], for `store`.

    nearest, score: the nearest stored question and its cosine, also on a miss; None while the cache is empty.
    refused: whether it was near enough, and `accept` said no.
    """

    question: str
    vector: np.ndarray
    answer: str | None = None
    nearest: str | None = None
    score: float | None = None
    refused: bool = False


class SemanticCache:
    """Answers by meaning. Only the question is compared: use one cache for each model, system prompt and tenant.

    threshold: the least cosine of a hit, so a higher one is stricter. index: a name in INDEXES.
    accept(asked, stored): a last check of the nearest question before its answer is served; nothing else checks it
    (S-42). path: a SQLite file that outlives the process; the index is rebuilt on opening, and entries that another
    process adds are seen at the next opening.
    Raises ReplicationError for a bad threshold, an unknown index, or a file of another embedder.
    """

    def __init__(
        self,
        embedder: Embeds,
        threshold: float = 0.9,
        index: str = "exact",
        accept: Accept | None = None,
        path: str | Path = ":memory:",
    ):
        if not -1 <= threshold <= 1:
            raise ReplicationError(f"threshold must be a cosine, from -1 to 1, not {threshold}")
        self.threshold, self.accept, self.path = threshold, accept, path
        self._embedder = embedder
        self._index: Index = INDEXES[index](embedder.dimension)
        self._questions: list[str] = []
        self._answers: list[str] = []
        self._rows: dict[str, int] = {}
        self._lock = threading.RLock()
        self._database = open_database(path, "semantic cache", _SCHEMA)
        self._load()

    def look_up(self, question: str) -> LookUp:
        """Embeds the question, once, and finds its nearest neighbour."""
        return self.look_up_vector(question, self._embedder.encode([question])[0])

    def look_up_vector(self, question: str, vector: np.ndarray) -> LookUp:
        """The same for a question whose embedding [dimension] is at hand."""
        with self._lock:
            if not self._questions:
                return LookUp(question, vector)
            scores, rows = self._index.search(vector[None])
            row, score = int(rows[0, 0]), float(scores[0, 0])
            nearest, answer = self._questions[row], self._answers[row]
        near = score >= self.threshold
        accepted = near and (self.accept is None or self.accept(question, nearest))
        return LookUp(question, vector, answer if accepted else None, nearest, score, near and not accepted)

    def store(self, looked: LookUp, answer: str) -> None:
        """Keeps the answer of a looked-up question, in place of an earlier one; its embedding is not made again."""
        vectors = self._index.checked(looked.vector[None])
        with self._lock:
            with explained(self.path):
                self._database.execute(
                    "INSERT INTO entries (question, answer, vector) VALUES (?, ?, ?)"
                    " ON CONFLICT (question) DO UPDATE SET answer = excluded.answer",
                    (looked.question, answer, vectors.tobytes()),
                )
            known = self._rows.get(looked.question)
            if known is None:
                self._append([looked.question], [answer], vectors)
            else:
                self._answers[known] = answer

    def __len__(self) -> int:
        return len(self._questions)

    def close(self) -> None:
        self._database.close()

    def _append(self, questions: list[str], answers: list[str], vectors: np.ndarray) -> None:
        self._index.add(vectors)
        self._rows |= {question: len(self._questions) + i for i, question in enumerate(questions)}
        self._questions += questions
        self._answers += answers

    def _load(self) -> None:
        weights = self._embedder.weights
        with explained(self.path):
            self._database.execute(
                "INSERT INTO embedder SELECT ? WHERE NOT EXISTS (SELECT * FROM embedder)", (weights,)
            )
            (made_by,) = self._database.execute("SELECT weights FROM embedder").fetchone()
            if made_by != weights:
                raise ReplicationError(f"{self.path} holds vectors of another embedder: choose another file")
            entries = self._database.execute("SELECT question, answer, vector FROM entries ORDER BY row").fetchall()
        if entries:
            questions, answers, blobs = zip(*entries, strict=True)
            vectors = np.frombuffer(b"".join(blobs), np.float32).reshape(len(entries), -1)
            self._append(list(questions), list(answers), vectors)
