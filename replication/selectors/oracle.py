"""Control: the tokens whose KV truly deviates most from full prefill, over all layers. Not a method: it needs the
full prefill that a method is there to avoid; it shows what a better estimate of the KV deviation would be worth."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from replication.metrics.deviation import squared
from replication.selectors.base import SELECTORS, Selector, View


@SELECTORS.register("oracle")
@dataclass(frozen=True)
class Oracle(Selector):
    """Squared K and V deviations, each relative to the layer's mean square, summed over the layers."""

    needs_truth: ClassVar[bool] = True

    def score(self, view: View) -> torch.Tensor:
        total = torch.zeros(len(view.candidates), device=view.candidates.device)
        for index, layer in enumerate(view.truth.layers):
            for true, stored in zip((layer.keys, layer.values), view.kv.layer(index), strict=True):
                true, stored = true[0][:, view.candidates], stored[0][:, view.candidates]
                total += squared(true, stored) / true.float().square().sum(dim=(0, 2)).mean()
        return total
