"""Attention of some rows of a prompt over its keys, without the keys that come after them.

A mask tells the kernel what not to see, but it computes the masked scores all the same. Rows are sorted, so a block of
them needs only the keys up to its last row; block by block, nearly half of the work falls away.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from replication.layers import attending_by

_NAME = "sdpa_row_blocks"
_ROWS = 128

Block = tuple[slice, int]


def row_blocks(rows: torch.Tensor) -> list[Block]:
    """Blocks of sorted `rows`, each with the number of keys that its last row may see."""
    last = rows[_ROWS - 1 :: _ROWS].tolist()
    if len(rows) % _ROWS:
        last.append(int(rows[-1]))
    return [(slice(i * _ROWS, min((i + 1) * _ROWS, len(rows))), key + 1) for i, key in enumerate(last)]


def _attend(module, query, key, value, attention_mask, blocks: list[Block] | None = None, scaling=None, **kwargs):
    """Shapes as in transformers' attention functions; its SDPA without blocks or where each head has its own mask; with
    blocks, for a batch of one.

    The query heads that share a KV head are stacked as rows of it: nothing is copied for them, and kernels like rows.
    """
    if blocks is None or attention_mask.shape[1] > 1:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **kwargs)
    group = query.shape[1] // key.shape[1]
    query = query.unflatten(1, (-1, group))
    outputs = [
        scaled_dot_product_attention(
            query[:, :, :, rows].flatten(2, 3),
            key[:, :, :keys],
            value[:, :, :keys],
            attn_mask=attention_mask[:, :, rows, :keys].repeat(1, 1, group, 1),
            scale=scaling,
        ).unflatten(2, (group, -1))
        for rows, keys in blocks
    ]
    return torch.cat(outputs, dim=3).flatten(1, 2).transpose(1, 2).contiguous(), None


AttentionInterface.register(_NAME, _attend)
AttentionMaskInterface.register(_NAME, sdpa_mask)


@contextmanager
def block_attention(lm: PreTrainedModel) -> Iterator[None]:
    """Within the context, a model that uses SDPA heeds the argument `blocks` of its layers; others ignore it."""
    own = lm.config.get_text_config()._attn_implementation
    with attending_by(lm, _NAME if own == "sdpa" else own):
        yield
