"""Control: the tokens to which the question's attention truly differs most from full prefill's, over all layers. Not a
method: it needs the full prefill that a method is there to avoid."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from replication.chunk import cut
from replication.selectors.ahead import Ahead
from replication.selectors.base import SELECTORS, Preview
from replication.selectors.query_attention import question_attention
from replication.stored import Piece, StoredKV


@SELECTORS.register("oracle-attention")
@dataclass(frozen=True)
class OracleAttention(Ahead):
    """A token's share of the squared L2 norm by which the forward attention matrix (A-03, question x tokens) deviates,
    summed over heads and layers. It is what the token gets wrongly, not what recomputing it alone would repair."""

    needs_truth: ClassVar[bool] = True

    def rank(self, preview: Preview) -> torch.Tensor:
        kv, asked = preview.kv, preview.prompt.segments[-1].start
        true = Piece(cut(preview.truth, (), kv.ids[:asked]), 0)
        pairs = zip(
            question_attention(preview, StoredKV(kv.model, kv.ids, [true])),
            question_attention(preview, kv),
            strict=True,
        )
        return torch.stack([(a.float() - b.float()).square().sum((0, 1)) for a, b in pairs]).sum(0)
