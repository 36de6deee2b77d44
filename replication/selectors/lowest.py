"""Control: the tokens that deviate least. If HKVD works for its stated reason, this must not."""

from dataclasses import dataclass

import torch

from replication.selectors.base import SELECTORS, View
from replication.selectors.hkvd import HKVD


@SELECTORS.register("lowest")
@dataclass(frozen=True)
class Lowest(HKVD):
    """HKVD with its order reversed."""

    def score(self, view: View) -> torch.Tensor:
        return -super().score(view)
