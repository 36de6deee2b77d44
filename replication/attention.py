"""Watching attention: how much of it goes from each segment of a prompt to each other one, to chunk heads, and from the
last tokens to the context."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

from replication.attention_logits import attention_logits, weighted_values
from replication.layers import attending_by
from replication.model import Model
from replication.prompt import ChunkedPrompt

_NAME = "watched"
_watchers: list[Callable[[torch.Tensor], None]] = []


def _attend(module, query, key, value, attention_mask, scaling=None, softcap=None, s_aux=None, **kwargs):
    logits = attention_logits(query, key, attention_mask, scaling, softcap, s_aux)
    weights = logits.softmax(-1, dtype=torch.float32)
    _watchers[-1](weights[0, ..., : key.shape[2]])
    return weighted_values(weights.to(value.dtype), value), None


AttentionInterface.register(_NAME, _attend)
AttentionMaskInterface.register(_NAME, sdpa_mask)


@contextmanager
def watched(model: Model, watch: Callable[[torch.Tensor], None]) -> Iterator[None]:
    """Within the context, every layer hands its attention weights [heads, queries, keys] to `watch`."""
    _watchers.append(watch)
    try:
        with attending_by(model.lm, _NAME):
            yield
    finally:
        _watchers.pop()


class AttentionFlow:
    """Means over layers and heads, collected while `watched`; segments are the chunks and the question.

    between: [segments, segments], share of a query segment's attention that goes to each key segment.
    to_heads: [segments], attention that a segment's first token gets from the segment's own other tokens.
    from_question: [segments], attention that a segment's first token gets from the question.
    """

    def __init__(self, prompt: ChunkedPrompt):
        self.spans = [slice(s.start, s.stop) for s in (*prompt.chunks, prompt.segments[-1])]
        count = len(self.spans)
        self.layers = 0
        self._between = torch.zeros(count, count)
        self._to_heads = torch.zeros(count)
        self._from_question = torch.zeros(count)

    def __call__(self, weights: torch.Tensor) -> None:
        mean = weights.float().mean(0).cpu()
        self.layers += 1
        for a, rows in enumerate(self.spans):
            self._to_heads[a] += mean[rows, rows.start][1:].mean() if rows.stop - rows.start > 1 else 0.0
            self._from_question[a] += mean[self.spans[-1], rows.start].mean()
            for b, columns in enumerate(self.spans):
                self._between[a, b] += mean[rows, columns].sum(-1).mean()

    def result(self) -> dict[str, list]:
        return {
            "between": (self._between / self.layers).tolist(),
            "to_heads": (self._to_heads / self.layers).tolist(),
            "from_question": (self._from_question / self.layers).tolist(),
        }


class ForwardAttention:
    """Forward attention matrices (paper table 1; A-03), collected while `watched`: what the last `last` tokens of a
    prompt of `tokens` tokens pay to its first `context` tokens, per layer [heads, last, context].

    A layer may compute its rows in parts, each over the keys up to its last row.
    """

    def __init__(self, tokens: int, context: int, last: int):
        self.tokens, self.context, self.last = tokens, context, last
        self.layers: list[torch.Tensor] = []
        self._parts: list[torch.Tensor] = []

    def __call__(self, weights: torch.Tensor) -> None:
        missing = self.tokens - weights.shape[-1]
        self._parts.append(torch.nn.functional.pad(weights[:, -self.last :], (0, missing)))
        if not missing:
            self.layers.append(torch.cat(self._parts, 1)[:, -self.last :, : self.context])
            self._parts = []
