"""Semantic cache (S-40): a finished answer is served to every question whose embedding is near enough.

>>> from replication.caches.embedding import load_embedder
>>> cache = SemanticCache(load_embedder(), threshold=0.9)
>>> asked = cache.look_up("Is the API rate limited?")
>>> asked.answer is None
True
>>> cache.store(asked, "Yes, to 60 requests a minute.")  # asked.vector is used, nothing is embedded again
True
>>> cache.look_up("Is the API not rate limited?").answer  # S-43: confidently wrong
'Yes, to 60 requests a minute.'
>>> from replication.caches.gates import same_polarity
>>> careful = SemanticCache(load_embedder(), threshold=0.9, accept=same_polarity)
>>> careful.store(asked, "Yes, to 60 requests a minute.")
True
>>> careful.look_up("Is the API not rate limited?").answer is None
True
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from replication.caches.bounded import BoundedEntries
from replication.caches.index import INDEXES, Index
from replication.caches.sqlite import explained, transaction
from replication.errors import ReplicationError

Accept = Callable[[str, str], bool]


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
    (S-42). path: a SQLite file that outlives the process and that processes may share: it holds the entries, and the
    index follows it. ttl_seconds, max_bytes, clock: as of BoundedEntries; the bytes are those of question, answer and
    embedding. Dropped entries stay in the index, unseen, until they are more than half of it; then it is built anew.
    Raises ReplicationError for a bad threshold or bound, an unknown index, or a file of another embedder.
    """

    def __init__(
        self,
        embedder: Embeds,
        threshold: float = 0.9,
        index: str = "exact",
        accept: Accept | None = None,
        path: str | Path = ":memory:",
        ttl_seconds: float | None = None,
        max_bytes: int | None = None,
        clock: Callable[[], float] = time.time,
    ):
        if not -1 <= threshold <= 1:
            raise ReplicationError(f"threshold must be a cosine, from -1 to 1, not {threshold}")
        if max_bytes is not None and 0 < max_bytes <= 4 * embedder.dimension:
            raise ReplicationError(
                f"max_bytes of {max_bytes} keeps nothing: an embedding takes {4 * embedder.dimension}"
            )
        self.threshold, self.accept = threshold, accept
        self._embedder = embedder
        self._make_index = INDEXES[index]
        self._lock = threading.RLock()
        columns = ["answer TEXT NOT NULL", "vector BLOB NOT NULL"]
        self._entries = BoundedEntries(path, "semantic cache", columns, ttl_seconds, max_bytes, clock)
        self._claim_file()
        self._build()

    def look_up(self, question: str) -> LookUp:
        """Embeds the question, once, and finds its nearest neighbour."""
        return self.look_up_vector(question, self._embedder.encode([question])[0])

    def look_up_vector(self, question: str, vector: np.ndarray) -> LookUp:
        """The same for a question whose embedding [dimension] is at hand."""
        nearest, score = self._nearest(vector)
        if nearest is None or score < self.threshold:
            return LookUp(question, vector, None, nearest, score)
        if self.accept is not None and not self.accept(question, nearest):
            return LookUp(question, vector, None, nearest, score, refused=True)
        found = self._entries.get(nearest)  # may be gone by now
        return LookUp(question, vector, found and found[0], nearest, score)

    def store(self, looked: LookUp, answer: str) -> bool:
        """Keeps the answer of a looked-up question, in place of an earlier one; its embedding is not made again.

        False, and nothing is stored, if the entry alone exceeds max_bytes.
        """
        vector = self._index.checked(looked.vector[None]).tobytes()
        nbytes = len(looked.question.encode()) + len(answer.encode()) + len(vector)
        stored = self._entries.put(looked.question, nbytes, answer, vector)
        with self._lock:
            self._follow()
        return stored

    @property
    def nbytes(self) -> int:
        """Bytes of all entries."""
        return self._entries.nbytes

    def __len__(self) -> int:
        """Entries, also those that are too old but not yet dropped."""
        return len(self._entries)

    def close(self) -> None:
        self._entries.close()

    def _nearest(self, vector: np.ndarray) -> tuple[str | None, float | None]:
        """The nearest question that is still an entry, and its cosine."""
        count = 1
        with self._lock:
            self._follow()
            while len(self._index):
                scores, places = self._index.search(vector[None], count)
                for score, place in zip(scores[0], places[0], strict=True):
                    question = self._entries.key(self._rows[place]) if place >= 0 else None
                    if question is not None:
                        return question, float(score)
                    if place >= 0:
                        self._index.remove(place)
                if places[0, -1] < 0:
                    self._build()  # all are gone, or a graph has no way left around those that are
                count = min(2 * count, len(self._index))
        return None, None

    def _follow(self) -> None:
        """Brings the index to what the file holds: new entries of any process; dropped ones once they are many."""
        if len(self._index) > 2 * len(self._entries):
            self._build()
        while rows := self._entries.newer(self._rows[-1] if self._rows else 0, "vector"):
            numbers, vectors = zip(*rows, strict=True)
            self._index.add(np.frombuffer(b"".join(vectors), np.float32).reshape(len(rows), -1))
            self._rows += numbers

    def _build(self) -> None:
        self._index: Index = self._make_index(self._embedder.dimension)
        self._rows: list[int] = []
        self._follow()

    def _claim_file(self) -> None:
        """Vectors of two embedders do not compare, so a file belongs to the first."""
        weights = self._embedder.weights
        database, path = self._entries.database, self._entries.path
        with explained(path), transaction(database):
            database.execute("CREATE TABLE IF NOT EXISTS embedder (weights TEXT NOT NULL)")
            database.execute("INSERT INTO embedder SELECT ? WHERE NOT EXISTS (SELECT * FROM embedder)", (weights,))
            (made_by,) = database.execute("SELECT weights FROM embedder").fetchone()
        if made_by != weights:
            raise ReplicationError(f"{path} holds vectors of another embedder: choose another file")
