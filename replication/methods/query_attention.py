"""Tokens chosen by the question's attention, in two passes: the question is prefilled over the reused KV, then the
tokens that it attended to most are recomputed in all layers, and the question with them.

query-attention: ProphetKV (2602.02579); mean over the question's tokens, heads and layers.
query-attention-last: the online step of FusionRAG (2601.12904); the last layer alone. Its offline step, which prefills
every chunk behind its nearest neighbours, is left out, and attention is summed after the softmax.

As the originals, but: on the CPU the first pass cannot hide behind loading; its time is in the TTFT, its operations in
the ceiling.
"""

from replication.methods.base import METHODS, Chunks, Entry, Method
from replication.selectors.query_attention import QueryAttention

METHODS["query-attention"] = Entry(
    lambda ratio: Method("query-attention", Chunks(), QueryAttention(ratio)),
    "ProphetKV: the tokens that the question attends to most over the reused KV, mean over the layers",
)
METHODS["query-attention-last"] = Entry(
    lambda ratio: Method("query-attention-last", Chunks(), QueryAttention(ratio, layers="last")),
    "FusionRAG's online step: the tokens that the question attends to most in the last layer",
)
