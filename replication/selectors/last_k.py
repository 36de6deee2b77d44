"""The last tokens before every seam, as many as the budget allows (KVBoost's `selective` recompute)."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from replication.selectors.base import SELECTORS, Selector, View


@SELECTORS.register("last-k")
@dataclass(frozen=True)
class LastK(Selector):
    """Chunks are cut evenly: every chunk gets its last token before any gets its last but one. The last chunk of the
    prompt, behind which no chunk is seamed, comes after all others."""

    reads_fresh: ClassVar[bool] = False

    def score(self, view: View) -> torch.Tensor:
        tokens = len(view.kv.ids)
        to_seam = torch.zeros(tokens, device=view.candidates.device)
        last = max(piece.stop for piece in view.kv.pieces)
        for piece in view.kv.pieces:
            distance = torch.arange(len(piece.chunk.ids), 0, -1, device=to_seam.device)
            to_seam[piece.target : piece.stop] = (distance + tokens * (piece.stop == last)).float()
        return -to_seam[view.candidates]
