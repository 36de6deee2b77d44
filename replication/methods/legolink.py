"""LegoLink, position-independent caching of EPIC (2410.15332): the attention sink that every chunk grew is undone.

legolink-k recomputes the first k tokens of every chunk but the first, in all layers, with exact causal attention.
legolink-0 recomputes nothing: chunks are prefilled behind a dummy BOS, which takes the sink and is dropped.

As the original, but: k is set by the recompute ratio, so that budgets compare (the original fixes it, at 1 to 64); a
BOS that the tokenizer wants before every chunk is dropped, where the original keeps it, because full prefill has none
there. For such a tokenizer legolink-0 equals `full-reuse`; for one that wants none the dummy is the model's BOS token.
"""

from replication.methods.base import METHODS, Chunks, Entry, Method
from replication.selectors.base import Selector
from replication.selectors.first_k import FirstK

METHODS["legolink-k"] = Entry(
    lambda ratio: Method("legolink-k", Chunks(), FirstK(ratio, check_layer=0, write_back=False)),
    "LegoLink-k of EPIC: the first tokens of every chunk, recomputed in all layers",
)
METHODS["legolink-0"] = Entry(
    lambda ratio: Method("legolink-0", Chunks(dummy_bos=True), Selector(ratio=0)),
    "LegoLink-0 of EPIC: chunks prefilled behind a dummy BOS, nothing recomputed",
    takes_ratio=False,
)
