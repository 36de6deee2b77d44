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

_NAME = "sdpa_row_blocks"
_ROWS = 64

Block = tuple[slice, int]


def row_blocks(rows: torch.Tensor) -> list[Block]:
    """Blocks of sorted `rows`, each with the number of keys that its last row may see."""
    last = rows[_ROWS - 1 :: _ROWS].tolist()
    if len(rows) % _ROWS:
        last.append(int(rows[-1]))
    return [(slice(i * _ROWS, min((i + 1) * _ROWS, len(rows))), key + 1) for i, key in enumerate(last)]


def _attend(module, query, key, value, attention_mask, blocks: list[Block] | None = None, scaling=None, **kwargs):
    """Shapes as in transformers' attention functions; without blocks, its SDPA; with them, for a batch of one.

    KV heads stand in the place of the batch, so that each is shared by its query heads without being copied.
    """
    if blocks is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **kwargs)
    query = query[0].unflatten(0, (key.shape[1], -1))
    key, value = (t[0][:, None].expand(-1, query.shape[1], -1, -1) for t in (key, value))
    outputs = [
        scaled_dot_product_attention(
            query[:, :, rows],
            key[:, :, :keys],
            value[:, :, :keys],
            attn_mask=attention_mask[:, :, rows, :keys],
            scale=scaling,
        )
        for rows, keys in blocks
    ]
    return torch.cat(outputs, dim=2).flatten(0, 1).transpose(0, 1)[None].contiguous(), None


AttentionInterface.register(_NAME, _attend)
AttentionMaskInterface.register(_NAME, sdpa_mask)


@contextmanager
def block_attention(lm: PreTrainedModel) -> Iterator[None]:
    """Within the context, a model that uses SDPA heeds the argument `blocks` of its layers; others ignore it."""
    before = lm.config._attn_implementation
    if before == "sdpa":
        lm.config._attn_implementation = _NAME
    try:
        yield
    finally:
        lm.config._attn_implementation = before
