"""Attention that weighs some keys, the contexts, with a temperature and a scale (APE, 2502.05431).

Softmax over all keys is a merge of one over the contexts and one over the rest, weighted by their sums exp(lse). APE
divides the context logits by a temperature T and multiplies their lse by S T before the merge.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import sdpa_mask

_NAME = "tempered"
_settings: list[tuple[torch.Tensor, float, float]] = []


def tempered_weights(scores: torch.Tensor, contexts: torch.Tensor, temperature: float, scale: float) -> torch.Tensor:
    """Attention weights from masked logits `scores` [..., keys]; contexts [keys] says which keys are contexts.

    The merge is one softmax: a context logit s becomes s / T + (S T - 1) lse, and their sum is exp(S T lse).
    """
    inside = (scores / temperature).masked_fill(~contexts, float("-inf"))
    lse = inside.logsumexp(-1, keepdim=True)
    # a row that sees no context has a lse of -inf, and nothing to shift
    shift = ((scale * temperature - 1) * lse).masked_fill(lse == float("-inf"), 0.0)
    return torch.where(contexts, inside + shift, scores).softmax(-1)


def _attend(module, query, key, value, attention_mask, scaling=None, dropout=0.0, **kwargs):
    """The query heads that share a KV head are stacked as rows of it, so that keys and values are not copied."""
    contexts, temperature, scale = _settings[-1]
    rows, keys = query.shape[2], key.shape[2]
    group = query.shape[1] // key.shape[1]
    stacked = query.unflatten(1, (-1, group)).flatten(2, 3)
    scores = stacked.float() @ key.float().transpose(2, 3) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    if attention_mask is None:
        attention_mask = torch.ones(1, 1, rows, keys, dtype=torch.bool, device=key.device).tril(keys - rows)
    attention_mask = attention_mask.repeat(1, 1, group, 1)
    if attention_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attention_mask, float("-inf"))
    else:
        scores = scores + attention_mask
    inside = torch.zeros(keys, dtype=torch.bool, device=key.device)
    inside[: len(contexts)] = contexts[:keys]  # what is decoded later is no context
    weights = tempered_weights(scores, inside, temperature, scale).to(value.dtype)
    return (weights @ value).unflatten(2, (group, rows)).flatten(1, 2).transpose(1, 2).contiguous(), None


AttentionInterface.register(_NAME, _attend)
AttentionMaskInterface.register(_NAME, sdpa_mask)


@contextmanager
def tempered_attention(lm: PreTrainedModel, contexts: torch.Tensor, temperature: float, scale: float) -> Iterator[None]:
    """Within the context, the model attends so to the keys of the prompt's tokens that `contexts` [tokens] marks."""
    before = lm.config._attn_implementation
    _settings.append((contexts, temperature, scale))
    lm.config._attn_implementation = _NAME
    try:
        yield
    finally:
        lm.config._attn_implementation = before
        _settings.pop()
