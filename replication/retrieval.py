"""The passages nearest to a question, as the paper's RAG set-up retrieves them (sec. 7.1).

The paper takes the chunks of least L2 distance between sentence embeddings. These have length 1 here, where that order
is the order by dot product.
"""

from collections.abc import Sequence

from replication.caches.embedding import Embedder
from replication.caches.index import ExactIndex
from replication.data.example import Passage
from replication.errors import ReplicationError


def nearest(embedder: Embedder, questions: Sequence[str], passages: Sequence[Passage], k: int) -> list[list[int]]:
    """Indices of the k passages nearest to each question, nearest first.

    Of a passage longer than the embedder's limit only the beginning counts, as with sentence-transformers itself.
    Raises ReplicationError when there are fewer than k passages.
    """
    if not 1 <= k <= len(passages):
        raise ReplicationError(f"cannot retrieve {k} of {len(passages)} passages")
    index = ExactIndex(embedder.dimension)
    index.add(embedder.encode([f"{p.title}\n{p.text}".strip() for p in passages], cut=True))
    return index.search(embedder.encode(list(questions), cut=True), k)[1].tolist()
