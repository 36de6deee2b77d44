"""Attention that weighs some keys, the contexts, with a temperature and a scale (APE, 2502.05431).

Softmax over all keys is a merge of one over the contexts and one over the rest, weighted by their sums exp(lse). APE
divides the context logits by a temperature T and multiplies their lse by S T before the merge.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import sdpa_mask

from replication.attention_logits import attention_logits, weighted_values
from replication.layers import attending_by

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


def _attend(module, query, key, value, attention_mask, scaling=None, softcap=None, s_aux=None, **kwargs):
    contexts, temperature, scale = _settings[-1]
    logits = attention_logits(query.float(), key.float(), attention_mask, scaling, softcap, s_aux)
    inside = torch.zeros(logits.shape[-1], dtype=torch.bool, device=key.device)
    inside[: len(contexts)] = contexts[: key.shape[2]]  # what is decoded later is no context, and a sink is none
    weights = tempered_weights(logits, inside, temperature, scale).to(value.dtype)
    return weighted_values(weights, value), None


AttentionInterface.register(_NAME, _attend)
AttentionMaskInterface.register(_NAME, sdpa_mask)


@contextmanager
def tempered_attention(lm: PreTrainedModel, contexts: torch.Tensor, temperature: float, scale: float) -> Iterator[None]:
    """Within the context, the model attends so to the keys of the prompt's tokens that `contexts` [tokens] marks."""
    _settings.append((contexts, temperature, scale))
    try:
        with attending_by(lm, _NAME):
            yield
    finally:
        _settings.pop()
