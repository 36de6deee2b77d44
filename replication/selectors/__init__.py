"""Selectors, one file each; importing the package registers them."""

from replication.selectors import first_k, hkvd, lowest, oracle, random, uniform
from replication.selectors.base import SELECTORS, Selector

__all__ = ["SELECTORS", "Selector", "first_k", "hkvd", "lowest", "oracle", "random", "uniform"]
