"""The tokens that the question attends to most, when it is prefilled over the reused KV (ProphetKV, 2602.02579)."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from replication.attention import ForwardAttention, watched
from replication.errors import ReplicationError
from replication.selectors.ahead import Ahead
from replication.selectors.base import SELECTORS, Preview
from replication.stored import StoredKV

LAYERS = ("all", "last")


@SELECTORS.register("query-attention")
@dataclass(frozen=True)
class QueryAttention(Ahead):
    """Mean attention over the question's tokens, the heads, and all layers, or the last one's heads alone."""

    layers: str = "all"

    scouts: ClassVar[bool] = True

    def __post_init__(self):
        super().__post_init__()
        if self.layers not in LAYERS:
            raise ReplicationError(f"unknown layers '{self.layers}'; known: {', '.join(LAYERS)}")

    def rank(self, preview: Preview) -> torch.Tensor:
        layers = question_attention(preview, preview.kv)
        used = layers if self.layers == "all" else layers[-1:]
        return torch.stack([weights.float().mean((0, 1)) for weights in used]).mean(0)


def question_attention(preview: Preview, kv: StoredKV) -> list[torch.Tensor]:
    """Attention [heads, question, tokens] of the question over `kv`, layer by layer."""
    tokens = len(kv.ids)
    seen = ForwardAttention(tokens, tokens, len(preview.prompt.segments[-1].ids))
    with watched(kv.model, seen):
        preview.scout(kv)
    return seen.layers
