"""Exact prefix caching: what came before must be the same, token by token (S-10..S-19)."""

from replication.methods.base import METHODS, Entry, Method, PrefixChain
from replication.selectors.base import Selector

METHODS["prefix"] = Entry(
    lambda ratio: Method("prefix", PrefixChain(), Selector(ratio=0)),
    "exact prefix caching after a request with the passages in another order",
    takes_ratio=False,
)
METHODS["prefix-same-order"] = Entry(
    lambda ratio: Method("prefix-same-order", PrefixChain(), Selector(ratio=0)),
    "exact prefix caching at its best: the earlier request had the passages in the same order",
    takes_ratio=False,
    same_order=True,
)
