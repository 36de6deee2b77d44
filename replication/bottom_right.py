"""The mask that the authors' code gives recomputed rows, put into fused prefill: a fault, to be measured.

The rows are scattered over the prompt, but their causal mask is aligned to the bottom right corner, as if they were its
last ones: row i of n sees the first T - n + i + 1 of T keys, those of later tokens among them.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from replication.errors import ReplicationError
from replication.layers import wrapped
from replication.model import Model


@contextmanager
def bottom_right_mask(model: Model, tokens: int, first_layer: int) -> Iterator[None]:
    """Within the context, a fused prefill of `tokens` tokens has the authors' mask from `first_layer`, its check layer,
    on. A sliding window limits what rows see before them, as ever; ReplicationError if a layer gets its rows in parts.
    """

    def run(index, forward, hidden_states, *args, **kwargs):
        # fused prefill gives blocks to a layer that runs on some rows only
        if index >= first_layer and kwargs.get("blocks") is not None:
            mask = kwargs["attention_mask"]
            if mask.shape[-1] < tokens:
                raise ReplicationError(
                    "the authors' mask needs all recomputed rows at once: lower the ratio or use shorter prompts"
                )
            kwargs |= {"attention_mask": _widened(mask), "blocks": None}
        return forward(hidden_states, *args, **kwargs)

    with wrapped(model.layers, run):
        yield


def _widened(mask: torch.Tensor) -> torch.Tensor:
    """An additive causal mask [1, 1, rows, keys] with the keys after each row up to the bottom right diagonal."""
    rows, tokens = mask.shape[-2:]
    keys = torch.arange(tokens, device=mask.device)
    diagonal = torch.arange(tokens - rows, tokens, device=mask.device)[:, None]
    own = torch.where(mask == 0, keys, -1).amax(-1, keepdim=True)
    return mask.masked_fill((keys > own) & (keys <= diagonal), 0.0)
