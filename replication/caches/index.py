"""Nearest neighbours of a unit vector by dot product: exactly by brute force, or nearly by a graph (S-41).

>>> rng = np.random.default_rng(0)
>>> vectors = unit(rng.normal(size=(1000, 32)))
>>> exact, graph = ExactIndex(32), GraphIndex(32)
>>> exact.add(vectors), graph.add(vectors)
(None, None)
>>> scores, rows = exact.search(vectors[:5], k=2)
>>> rows[:, 0].tolist(), rows.shape
([0, 1, 2, 3, 4], (5, 2))
>>> recall(rows, graph.search(vectors[:5], k=2)[1]) > 0.5
True
"""

from abc import ABC, abstractmethod

import faiss
import numpy as np

from replication.errors import ReplicationError
from replication.registry import Registry

INDEXES = Registry("index")


class Index(ABC):
    """Rows of unit vectors, float32 [n, dimension]; row i is the i-th that was added, also after others are removed."""

    def __init__(self, dimension: int):
        self.dimension = dimension
        self.removed = 0
        self._faiss = self._build()
        self._gone = np.zeros(0, np.uint8)  # a bit a row, the lowest first, as faiss reads it

    @abstractmethod
    def _build(self) -> faiss.Index:
        """An empty faiss index by inner product."""

    def add(self, vectors: np.ndarray) -> None:
        """Appends rows."""
        self._faiss.add(self.checked(vectors))

    def remove(self, row: int) -> None:
        """Leaves a row out of every search from now on. It keeps its place in memory and in the graph."""
        if row >= 8 * len(self._gone):
            self._gone = np.pad(self._gone, (0, -(-len(self) // 8) - len(self._gone)))
        byte, bit = row >> 3, 1 << (row & 7)
        self.removed += not self._gone[byte] & bit
        self._gone[byte] |= bit

    def search(self, queries: np.ndarray, k: int = 1) -> tuple[np.ndarray, np.ndarray]:
        """scores, rows: [len(queries), k], best first; row -1 where fewer than k were found."""
        left = faiss.IDSelectorNot(faiss.IDSelectorBitmap(self._gone)) if self.removed else None
        return self._faiss.search(self.checked(queries), k, params=left and self._parameters(left))

    def _parameters(self, rows: faiss.IDSelector) -> faiss.SearchParameters:
        """Of a search among `rows` alone."""
        return faiss.SearchParameters(sel=rows)

    def __len__(self) -> int:
        """Rows, removed ones included."""
        return self._faiss.ntotal

    def checked(self, vectors: np.ndarray) -> np.ndarray:
        """The vectors as the index takes them; ReplicationError unless they are of length 1 and its dimension."""
        vectors = np.ascontiguousarray(vectors, dtype=np.float32)
        if vectors.ndim != 2 or vectors.shape[1] != self.dimension:
            raise ReplicationError(f"vectors of shape {vectors.shape} do not fit an index of [n, {self.dimension}]")
        if not np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-3):
            raise ReplicationError("the index takes vectors of length 1, or a dot product is no cosine: normalise them")
        return vectors


@INDEXES.register("exact")
class ExactIndex(Index):
    """Compares with every row: the true neighbours, in time that grows with the rows."""

    def _build(self) -> faiss.Index:
        return faiss.IndexFlatIP(self.dimension)


@INDEXES.register("graph")
class GraphIndex(Index):
    """HNSW (Malkov and Yashunin 2018): walks a graph of near rows, which can miss the nearest; grows without training.

    links: edges of a row a level, twice as many on the lowest. effort, build_effort: candidates kept while searching
    and while adding (efSearch, efConstruction): more of them, better recall, slower. effort can be set at any time.
    """

    LINKS = 32

    def __init__(self, dimension: int, links: int = LINKS, effort: int = 64, build_effort: int = 40):
        self.links, self.build_effort = links, build_effort
        super().__init__(dimension)
        self.effort = effort

    def _build(self) -> faiss.Index:
        index = faiss.IndexHNSWFlat(self.dimension, self.links, faiss.METRIC_INNER_PRODUCT)
        index.hnsw.efConstruction = self.build_effort
        return index

    @property
    def effort(self) -> int:
        return self._faiss.hnsw.efSearch

    @effort.setter
    def effort(self, effort: int) -> None:
        self._faiss.hnsw.efSearch = effort

    def _parameters(self, rows: faiss.IDSelector) -> faiss.SearchParameters:
        return faiss.SearchParametersHNSW(sel=rows, efSearch=self.effort)

    def add(self, vectors: np.ndarray) -> None:
        """As Index.add; on one thread, so that the same rows give the same graph."""
        threads = faiss.omp_get_max_threads()
        faiss.omp_set_num_threads(1)
        try:
            super().add(vectors)
        finally:
            faiss.omp_set_num_threads(threads)


def unit(vectors: np.ndarray) -> np.ndarray:
    """The vectors [n, dimension] scaled to length 1, float32."""
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def recall(true_rows: np.ndarray, found_rows: np.ndarray) -> float:
    """Share of the true neighbours [m, k] among the found ones [m, k]."""
    return float(np.mean([np.isin(true, found).mean() for true, found in zip(true_rows, found_rows, strict=True)]))
