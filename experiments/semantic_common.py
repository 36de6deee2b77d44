"""What the experiments over pairs of questions share: settings, and texts as unit vectors."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from tqdm import tqdm

from replication.caches.embedding import DEFAULT, Embedder, embedder_directory
from replication.caches.gates import same_content, same_polarity
from replication.data.pairs import LoadedPairs, load_pairs
from replication.runner import check_device

BATCH = 64
# S-44: the range of published defaults
PUBLISHED = (0.75, 0.8, 0.85, 0.9, 0.95, 0.97)
# Remedies get the most permissive published threshold, so that the check and not the threshold decides.
LOOSE = PUBLISHED[0]
GATES = {"polarity": same_polarity, "content": same_content}


@dataclass(frozen=True)
class PairConfig:
    """model: the embedding model. n: pairs, None for the whole set. data_dir: where local data sets lie (or
    REPLICATION_DATA)."""

    model: str = DEFAULT
    dataset: str = "fow-cache"
    n: int | None = None
    seed: int = 0
    dtype: str = "float32"
    device: str = "cpu"
    data_dir: str = ""


def check_pairs(config: PairConfig) -> None:
    """ReplicationError unless the embedding model, the pairs and the device are there."""
    embedder_directory(config.model)
    load_pairs(config.dataset, config.n, config.seed, config.data_dir or None)
    check_device(config.device, config.dtype)


def load_readable(config: PairConfig, embedder: Embedder) -> LoadedPairs:
    """The pairs that the embedder reads whole; the others, which no cache should hold, are dropped and counted."""
    loaded = load_pairs(config.dataset, config.n, config.seed, config.data_dir or None)
    stored, asked = (embedder.lengths([getattr(p, side) for p in loaded.pairs]) for side in ("stored", "asked"))
    kept = [p for p, *tokens in zip(loaded.pairs, stored, asked, strict=True) if max(tokens) <= embedder.limit]
    return LoadedPairs(kept, loaded.provenance | {"too_long": len(loaded.pairs) - len(kept)})


def embed_all(embedder: Embedder, texts: Sequence[str], what: str) -> np.ndarray:
    """Unit vectors [len(texts), dimension]; the last digits depend on the batches, which are the same on every run."""
    starts = tqdm(range(0, len(texts), BATCH), desc=what, unit="batch")
    return np.concatenate([embedder.encode(texts[at : at + BATCH]) for at in starts])
