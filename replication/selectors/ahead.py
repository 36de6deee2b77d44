"""Choosing before the first layer: the chosen tokens, and no others, are recomputed in all layers."""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from replication.selectors.base import Preview, Selector, View


@dataclass(frozen=True)
class Ahead(Selector):
    """A selector that scores every token of a prompt by what it finds in a preview. scores: [tokens], once prepared."""

    check_layer: int = 0
    write_back: bool = False
    scores: torch.Tensor | None = None

    reads_fresh: ClassVar[bool] = False

    def rank(self, preview: Preview) -> torch.Tensor:
        """One number per token [tokens]; the highest of those that may be recomputed are."""
        raise NotImplementedError

    def prepared(self, preview: Preview) -> Selector:
        """Nothing is looked at where there is nothing to choose."""
        kv = preview.kv
        if not self.ratio or not bool((kv.stored & ~kv.exact).any()):
            return self
        return replace(self, scores=self.rank(preview))

    def score(self, view: View) -> torch.Tensor:
        if self.scores is None:
            raise TypeError(f"{type(self).__name__} chooses before the first layer: call `prepared` first")
        return self.scores.to(view.candidates.device)[view.candidates]
