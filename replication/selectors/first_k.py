"""Control and method: the first tokens of every chunk, as many as the budget allows (EPIC's LegoLink, 2410.15332)."""

from dataclasses import dataclass

import torch

from replication.selectors.base import SELECTORS, Selector, View


@SELECTORS.register("first-k")
@dataclass(frozen=True)
class FirstK(Selector):
    """Chunks are cut evenly: every chunk gets its k-th token before any gets its k+1-th."""

    def score(self, view: View) -> torch.Tensor:
        offset = torch.zeros(len(view.kv.ids), device=view.candidates.device)
        for piece in view.kv.pieces:
            offset[piece.target : piece.stop] = torch.arange(len(piece.chunk.ids), device=offset.device).float()
        return -offset[view.candidates]
