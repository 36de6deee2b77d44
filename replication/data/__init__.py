"""Data sets by name: load("synthetic", n=100). Importing this package registers every set."""

from replication.data import hotpotqa, multi_news, musique, nq, samsum, synthetic  # noqa: F401  (fills DATASETS)
from replication.data.example import DATASETS, Dataset, Loaded, Passage, RagExample, examples_sha256, load

__all__ = ["DATASETS", "Dataset", "Loaded", "Passage", "RagExample", "examples_sha256", "load"]
