"""High KV deviation: recompute the tokens whose stored KV is farthest from the fresh one (paper sec. 4.3; A-03)."""

from dataclasses import dataclass

import torch

from replication.errors import ReplicationError
from replication.metrics.deviation import delta_kv, squared
from replication.selectors.base import SELECTORS, Selector, View, count

SCORES = ("K", "V", "KV")
SCHEDULES = ("fixed", "gradual")


@SELECTORS.register("hkvd")
@dataclass(frozen=True)
class HKVD(Selector):
    """score: squared deviation of K or V, or (KV) the sum of absolute deviations of both, as the paper defines it.

    schedule: `fixed` chooses once; `gradual` chooses again after every layer among the last chosen, with ratios
    that fall linearly from r(1 + taper(1-r)) to r(1 - taper(1-r)): their mean over the layers is r (A-07).
    """

    deviation: str = "KV"
    schedule: str = "fixed"
    taper: float = 0.3

    def __post_init__(self):
        super().__post_init__()
        if self.deviation not in SCORES:
            raise ReplicationError(f"unknown deviation '{self.deviation}'; known: {', '.join(SCORES)}")
        if self.schedule not in SCHEDULES:
            raise ReplicationError(f"unknown schedule '{self.schedule}'; known: {', '.join(SCHEDULES)}")

    def keep(self, layer: int, depth: int, reused: int) -> int | None:
        if self.schedule == "fixed" or layer < self.check_layer:
            return super().keep(layer, depth, reused)
        steps = depth - 1 - self.check_layer
        lean = 1 - 2 * (layer - self.check_layer) / steps if steps else 0
        return count(self.ratio * (1 + self.taper * (1 - self.ratio) * lean), reused)

    def score(self, view: View) -> torch.Tensor:
        (fresh_k, fresh_v), (stored_k, stored_v) = view.fresh, view.stored
        if self.deviation == "K":
            return squared(fresh_k, stored_k)
        if self.deviation == "V":
            return squared(fresh_v, stored_v)
        return delta_kv(fresh_k, stored_k) + delta_kv(fresh_v, stored_v)
