"""Full reuse: chunks prefilled alone are concatenated and nothing is recomputed (S-20)."""

from replication.methods.base import METHODS, Chunks, Entry, Method
from replication.selectors.base import Selector
from replication.selectors.hkvd import HKVD

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
METHODS["shared-prefix"] = Entry(
    lambda ratio: Method("shared-prefix", Chunks(behind_prefix=True), Selector(ratio=0)),
    "full reuse of chunks that were prefilled behind the prompt's prefix, positions repaired",
    takes_ratio=False,
)
METHODS["shared-prefix-blend"] = Entry(
    lambda ratio: Method("shared-prefix-blend", Chunks(behind_prefix=True), HKVD(ratio)),
    "shared-prefix, and the tokens of highest KV deviation recomputed",
)
