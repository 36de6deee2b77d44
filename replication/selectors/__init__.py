"""Selectors, one file each; importing the package registers them."""

from replication.selectors import (
    cachecraft,
    first_k,
    hkvd,
    last_k,
    lowest,
    oracle,
    oracle_attention,
    query_attention,
    random,
    uniform,
)
from replication.selectors.base import SELECTORS, Selector

__all__ = [
    "SELECTORS",
    "Selector",
    "cachecraft",
    "first_k",
    "hkvd",
    "last_k",
    "lowest",
    "oracle",
    "oracle_attention",
    "query_attention",
    "random",
    "uniform",
]
