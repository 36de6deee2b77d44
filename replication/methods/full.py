"""Full prefill: nothing is reused. The reference of every quality and the baseline of every speed-up."""

from replication.methods.base import METHODS, Entry, Method, Nothing
from replication.selectors.base import Selector

METHODS["full"] = Entry(
    lambda ratio: Method("full", Nothing(), Selector(ratio=0)), "full prefill, nothing reused", takes_ratio=False
)
