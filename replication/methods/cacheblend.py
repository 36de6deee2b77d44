"""CacheBlend in its three variants: the paper's text, the authors' code, and LMCache."""

from replication.methods.base import METHODS, Chunks, Entry, Method
from replication.selectors.hkvd import HKVD

METHODS["cacheblend-paper"] = Entry(
    lambda ratio: Method("cacheblend-paper", Chunks(), HKVD(ratio, deviation="KV", schedule="gradual")),
    "CacheBlend as the paper describes it: K and V deviation, gradual filtering over the layers (sec. 4.3)",
)
METHODS["cacheblend-author"] = Entry(
    lambda ratio: Method("cacheblend-author", Chunks(), HKVD(ratio, deviation="V")),
    "CacheBlend as the authors' code does it: squared V deviation in layer 1, one fixed set",
)
METHODS["cacheblend-lmcache"] = Entry(
    lambda ratio: Method("cacheblend-lmcache", Chunks(), HKVD(ratio, deviation="K", write_back=False)),
    "CacheBlend as LMCache does it: squared K deviation in layer 1, only chosen rows written back",
)
