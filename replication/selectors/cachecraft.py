"""The tokens that attended most to earlier chunks when a chunk was prefilled, chunk by chunk as many as its KV depends
on a prefix that is not there again (Cache-Craft, 2502.15734)."""

from dataclasses import dataclass

import torch

from replication.chunk import ChunkKV
from replication.context_impact import Attended, Ids, fix_overhead, impact, overlap
from replication.selectors.ahead import Ahead
from replication.selectors.base import SELECTORS, Preview


@SELECTORS.register("cachecraft")
@dataclass(frozen=True)
class CacheCraft(Ahead):
    """Of a chunk of n tokens, the ceil(CFO n) that paid most attention to earlier chunks (eq. 14). The factor alpha in
    CFO is the one with which the tokens of all chunks together meet the budget. A chunk that was prefilled alone has
    attended to nothing: its first tokens are taken. Where CFO is 0, tokens come after those of all other chunks."""

    def rank(self, preview: Preview) -> torch.Tensor:
        scores = torch.zeros(len(preview.kv.ids))
        for piece in preview.kv.pieces:
            before = [s.ids for s in preview.prompt.chunks if s.stop <= piece.target]
            scores[piece.target : piece.stop] = -admission(piece.chunk, before)
        return scores


def admission(chunk: ChunkKV, before: list[Ids]) -> torch.Tensor:
    """Per token [n], the alpha above which ceil(alpha CFO n) tokens include it. before: chunks that now precede it."""
    n, attended = len(chunk.ids), chunk.attended or Attended()
    place = torch.zeros(n)
    if attended.tokens:
        order = torch.tensor(attended.tokens).argsort(descending=True, stable=True)
        place[order] = torch.arange(n).float()
    else:
        place = torch.arange(n).float()
    share = fix_overhead(impact(attended, n), overlap(attended, chunk.context, before))
    # the first token of every chunk enters at 0; a trace of 1 / CFO lets those of the needier chunks do so first
    return (place + 1e-6) / (share * n) if share else 1e6 + place
