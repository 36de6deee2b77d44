"""Attention in the open, for what must see or change its weights: the logits before the softmax, as models define them.

Query heads that share a KV head are stacked as rows of it, so that keys and values are not copied.
"""

import torch


def attention_logits(
    query: torch.Tensor,
    key: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
) -> torch.Tensor:
    """Masked logits [batch, heads, rows, keys] of query [batch, heads, rows, head dim] and key [batch, KV heads, keys,
    head dim]; the arguments are those of transformers' attention functions.

    attention_mask: boolean (True is seen), additive, or None for causal. softcap: logits are bounded by a tanh before
    the mask. s_aux [heads]: a sink a head, which takes its share of the softmax but has no value; it is one more key,
    the last.
    """
    rows, keys = query.shape[2], key.shape[2]
    group = query.shape[1] // key.shape[1]
    stacked = query.unflatten(1, (-1, group)).flatten(2, 3)
    logits = stacked @ key.transpose(2, 3) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    logits = logits.unflatten(2, (group, rows)).flatten(1, 2)
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    if attention_mask is None:
        attention_mask = torch.ones(rows, keys, dtype=torch.bool, device=key.device).tril(keys - rows)
    if attention_mask.dtype == torch.bool:
        logits = logits.masked_fill(~attention_mask, float("-inf"))
    else:
        logits = logits + attention_mask
    if s_aux is None:
        return logits
    return torch.cat([logits, s_aux.to(logits.dtype).view(1, -1, 1, 1).expand(*logits.shape[:3], 1)], -1)


def weighted_values(weights: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Weights [batch, heads, rows, keys] times value [batch, KV heads, keys, head dim], as [batch, rows, heads, head
    dim]; weights beyond the keys are a sink's."""
    rows = weights.shape[2]
    group = weights.shape[1] // value.shape[1]
    stacked = weights[..., : value.shape[2]].unflatten(1, (-1, group)).flatten(2, 3)
    return (stacked @ value).unflatten(2, (group, rows)).flatten(1, 2).transpose(1, 2).contiguous()
