"""Seam recompute, as KVBoost's `selective` mode does it (PyPI `kvboost`): the last tokens before every seam.

As the original, but: their number is set by the recompute ratio, so that budgets compare (the original fixes it, at 16
a seam); all seams are recomputed in one pass, where the original goes from seam to seam; and keys are moved to the
prompt's positions, where the original leaves them as stored.
"""

from replication.methods.base import METHODS, Chunks, Entry, Method
from replication.selectors.last_k import LastK

METHODS["seam-last-k"] = Entry(
    lambda ratio: Method("seam-last-k", Chunks(), LastK(ratio, check_layer=0, write_back=False)),
    "KVBoost's selective recompute: the last tokens before every seam between chunks, in all layers",
)
