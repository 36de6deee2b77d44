"""Methods, one file each; importing the package registers them.

Out of scope, because they need fine-tuned weights: TurboRAG (2410.07590; without its tuning it is `full-reuse`),
Block-Attention (2409.15355; without its tuning it is `full-reuse`), and KVLink (2502.16002; trained link tokens).
"""

from replication.methods import (
    ape,
    cacheblend,
    cachecraft,
    controls,
    full,
    legolink,
    prefix,
    promptcache,
    query_attention,
    reuse,
    seam,
)
from replication.methods.base import METHODS, Chunks, Entry, Method, PrefixChain, make_method

__all__ = [
    "METHODS",
    "Chunks",
    "Entry",
    "Method",
    "PrefixChain",
    "ape",
    "cacheblend",
    "cachecraft",
    "controls",
    "full",
    "legolink",
    "make_method",
    "prefix",
    "promptcache",
    "query_attention",
    "reuse",
    "seam",
]
