"""Methods, one file each; importing the package registers them."""

from replication.methods import cacheblend, controls, full, prefix, reuse
from replication.methods.base import METHODS, Chunks, Entry, Method, PrefixChain, make_method

__all__ = [
    "METHODS",
    "Chunks",
    "Entry",
    "Method",
    "PrefixChain",
    "cacheblend",
    "controls",
    "full",
    "make_method",
    "prefix",
    "reuse",
]
