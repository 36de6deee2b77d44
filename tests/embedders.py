"""A small embedder: texts that share words are near."""

import hashlib
from dataclasses import dataclass, field

import numpy as np

from replication.caches.index import unit

DIMENSION = 8


@dataclass
class WordEmbedder:
    """The mean of its words' random directions; embedded: the texts that it was asked for."""

    weights: str = "words"
    dimension: int = DIMENSION
    embedded: list[str] = field(default_factory=list)

    def encode(self, texts: list[str]) -> np.ndarray:
        self.embedded += texts
        return unit(np.stack([sum(_direction(word) for word in text.split()) for text in texts]))


def _direction(word: str) -> np.ndarray:
    seed = int.from_bytes(hashlib.sha256(word.encode()).digest()[:8], "little")
    return np.random.default_rng(seed).normal(size=DIMENSION)
