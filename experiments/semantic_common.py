"""What the experiments over pairs of questions share: settings, and texts as unit vectors."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from tqdm import tqdm

from replication.caches.embedding import DEFAULT, Embedder, embedder_directory
from replication.data.pairs import load_pairs
from replication.runner import check_device

BATCH = 64


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


def embed_all(embedder: Embedder, texts: Sequence[str], what: str) -> np.ndarray:
    """Unit vectors [len(texts), dimension]; the last digits depend on the batches, which are the same on every run."""
    starts = tqdm(range(0, len(texts), BATCH), desc=what, unit="batch")
    return np.concatenate([embedder.encode(texts[at : at + BATCH]) for at in starts])
