"""Data sets by name: load("synthetic", n=100). Importing this package registers every set."""

from replication.data import hotpotqa, synthetic  # noqa: F401  (importing them fills DATASETS)
from replication.data.example import DATASETS, Dataset, Loaded, Passage, RagExample, examples_sha256, load

__all__ = ["DATASETS", "Dataset", "Loaded", "Passage", "RagExample", "examples_sha256", "load"]
