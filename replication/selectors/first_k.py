"""The first tokens of every chunk, as many as the budget allows: a control, and in all layers EPIC's LegoLink."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from replication.selectors.base import SELECTORS, Selector, View


@SELECTORS.register("first-k")
@dataclass(frozen=True)
class FirstK(Selector):
    """Chunks are cut evenly: every chunk gets its k-th token before any gets its k+1-th."""

    reads_fresh: ClassVar[bool] = False

    def score(self, view: View) -> torch.Tensor:
        offset = torch.zeros(len(view.kv.ids), device=view.candidates.device)
        for piece in view.kv.pieces:
            offset[piece.target : piece.stop] = torch.arange(len(piece.chunk.ids), device=offset.device).float()
        return -offset[view.candidates]
