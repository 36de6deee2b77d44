"""Operation counts, and the speed-up that they allow at most."""

from torch import nn

from replication.fuse import Report
from replication.model import Model


def operations(model: Model, report: Report) -> float:
    """Floating-point operations of a prefill: matrix products of the computed rows, their attention over earlier
    tokens, K and V of the rows that a check layer projected but did not keep, and the prefills that scouted for it."""
    config = model.config
    heads = config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    kv_weights = 2 * config.hidden_size * getattr(config, "num_key_value_heads", heads) * head_dim
    total = 2.0 * config.hidden_size * config.vocab_size
    for layer, rows, attended, tapped in zip(model.layers, report.rows, report.attended, report.tapped, strict=True):
        weights = sum(m.weight.numel() for m in layer.modules() if isinstance(m, nn.Linear))
        total += 2.0 * weights * rows + 4.0 * heads * head_dim * attended + 2.0 * kv_weights * max(0, tapped - rows)
    return total + sum(operations(model, scout) for scout in report.scouts)


def full_report(model: Model, tokens: int) -> Report:
    """The rows of a full prefill of `tokens` tokens, for counting."""
    depth = len(model.layers)
    return Report([tokens] * depth, [tokens * (tokens + 1) // 2] * depth, [0] * depth)


def ceiling(model: Model, tokens: int, report: Report) -> float:
    """Operations of full prefill over the method's: no measured speed-up can honestly exceed it."""
    return operations(model, full_report(model, tokens)) / operations(model, report)
