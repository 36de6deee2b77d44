"""How much a chunk's KV depends on what stood before it, and how much of that stands there again.

Formulas of Cache-Craft (2502.15734, eqs. 3 to 12), from the attention that was paid when the chunk was prefilled.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

Ids = tuple[int, ...]


@dataclass(frozen=True)
class Attended:
    """Attention of a chunk's n tokens when it was prefilled behind other chunks; means over layers and heads.

    spans: (start, stop) in the chunk's context of each earlier chunk. inter: per earlier chunk, what all tokens
    together paid to it. intra: what they paid to the chunk itself. tokens: per token, what it paid to all earlier ones.
    """

    spans: tuple[tuple[int, int], ...] = ()
    inter: tuple[float, ...] = ()
    intra: float = 1.0
    tokens: tuple[float, ...] = ()

    def chunks(self, context: Ids) -> list[Ids]:
        """Token ids of the earlier chunks, in their order."""
        return [context[start:stop] for start, stop in self.spans]


def impact(attended: Attended, length: int) -> float:
    """CCI (eq. 11), 0.5 to 1: sigmoid(a / b) with a the attention to earlier chunks and b that to the chunk's own
    `length` tokens, each per pair of tokens (eqs. 9, 10)."""
    spans = zip(attended.inter, attended.spans, strict=True)
    a = sum(inter / (length * (stop - start)) for inter, (start, stop) in spans)
    b = attended.intra / length**2
    return 1 / (1 + math.exp(-a / b))


def overlap(attended: Attended, context: Ids, before: Sequence[Ids]) -> float:
    """Adjusted prefix overlap beta' (eq. 8), 0 to 1: the share of the attention to earlier chunks that went to chunks
    which stand before the chunk again (beta, eq. 6), times one less the order penalty (gamma, eq. 7).

    before: token ids of the chunks that stand before it now. 0 where it had attended to no chunk.
    """
    old = attended.chunks(context)
    total = sum(attended.inter)
    if not total:
        return 0.0
    beta = sum(inter for chunk, inter in zip(old, attended.inter, strict=True) if chunk in before) / total
    return beta * (1 - order_penalty(old, before))


def order_penalty(old: Sequence[Ids], new: Sequence[Ids]) -> float:
    """gamma (eq. 7), 0 to 1: Kendall's tau distance, the share of pairs of common chunks whose order is reversed."""
    places = [list(new).index(chunk) for chunk in dict.fromkeys(old) if chunk in new]
    pairs = list(combinations(places, 2))
    return sum(a > b for a, b in pairs) / len(pairs) if pairs else 0.0


def fix_overhead(impact: float, overlap: float, alpha: float = 1.0) -> float:
    """CFO (eq. 12): the share of a chunk's tokens to recompute, at most 1."""
    return min(1.0, alpha * impact * (1 - overlap))
