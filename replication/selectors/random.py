"""Control: tokens drawn at random at the same budget."""

import hashlib
from dataclasses import dataclass
from typing import ClassVar

import torch

from replication.selectors.base import SELECTORS, Selector, View


@SELECTORS.register("random")
@dataclass(frozen=True)
class Random(Selector):
    """The draw depends on `seed` and the prompt's token ids only, so that a rerun repeats it."""

    seed: int = 0

    reads_fresh: ClassVar[bool] = False

    def score(self, view: View) -> torch.Tensor:
        digest = hashlib.sha256(f"{self.seed} {view.kv.ids}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
        return torch.rand(len(view.candidates), generator=generator).to(view.candidates.device)
