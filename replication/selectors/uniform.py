"""Control: every s-th token, at the same budget."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from replication.selectors.base import SELECTORS, Selector, View


@SELECTORS.register("uniform")
@dataclass(frozen=True)
class Uniform(Selector):
    """n tokens at equal strides, each from the middle of its stride."""

    reads_fresh: ClassVar[bool] = False

    def pick(self, view: View, n: int) -> torch.Tensor:
        m = len(view.candidates)
        return (torch.arange(n, device=view.candidates.device) * m + m // 2) // max(n, 1)
