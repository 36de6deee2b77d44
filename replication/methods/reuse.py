"""Full reuse: chunks prefilled alone are concatenated and nothing is recomputed (S-20)."""

from replication.methods.base import METHODS, Chunks, Entry, Method
from replication.selectors.base import Selector

METHODS["naive"] = Entry(
    lambda ratio: Method("naive", Chunks(move=False), Selector(ratio=0)),
    "naive concatenation: every chunk keeps the positions it was stored with",
    takes_ratio=False,
)
METHODS["full-reuse"] = Entry(
    lambda ratio: Method("full-reuse", Chunks(), Selector(ratio=0)),
    "full reuse with positions repaired by key rotation",
    takes_ratio=False,
)
