"""What the experiments on reused KV share: a prompt's chunks prefilled alone and moved to their places, full prefill
beside them, and attention watched in both."""

from collections.abc import Sequence

import torch
from transformers import DynamicCache

from replication.attention import ForwardAttention, watched
from replication.errors import ReplicationError
from replication.fuse import Prefill, fuse
from replication.methods import Chunks
from replication.model import Model
from replication.prompt import ChunkedPrompt
from replication.selectors import Selector
from replication.stats import holm, paired_difference, ratio_of_means
from replication.store import MemoryStore
from replication.stored import StoredKV


def reused(model: Model, prompt: ChunkedPrompt) -> StoredKV:
    """The KV of the prompt's chunks as full reuse finds it, positions repaired; not changed by a fused prefill."""
    store, source = MemoryStore(), Chunks()
    source.learn(model, prompt, store)
    return StoredKV(model, prompt.ids, source.find(model, prompt, store))


def full_prefill(model: Model, prompt: ChunkedPrompt) -> Prefill:
    return fuse(StoredKV(model, prompt.ids, []), Selector(ratio=0))


def watched_fuse(
    stored: StoredKV, selector: Selector, prompt: ChunkedPrompt, last: int, truth: DynamicCache | None = None
) -> tuple[Prefill, list[torch.Tensor]]:
    """A fused prefill, and per layer its forward attention [heads, last, context]: from the prompt's `last` tokens to
    all that comes before the question."""
    attention = ForwardAttention(len(prompt), prompt.segments[-1].start, last)
    with watched(stored.model, attention):
        prefill = fuse(stored, selector, truth)
    return prefill, attention.layers


def require_questions(prompts: Sequence[ChunkedPrompt], last: int) -> None:
    """ReplicationError unless every question has the last `last` tokens of its prompt."""
    shortest = min(len(prompt.segments[-1].ids) for prompt in prompts)
    if last > shortest:
        raise ReplicationError(f"last is {last}, but the shortest question has {shortest} tokens: lower it")


def candidates(stored: StoredKV) -> torch.Tensor:
    """Prompt indices [m] of the reused tokens whose KV full prefill would not give just so."""
    return (stored.stored & ~stored.exact).nonzero()[:, 0]


def compared(
    cells: dict[str, dict[str, dict]], pairs: dict[str, tuple[str, str]], metrics: Sequence[str] = ("kl_first", "nll")
) -> dict[str, dict]:
    """For each named pair of cells a, b, example by example: of each metric, the mean of a over that of b, and a - b,
    both with the p of that difference, Holm-adjusted over all pairs."""
    compare = {}
    for label, (ours, theirs) in pairs.items():
        rows = [(row, cells[theirs][example]) for example, row in cells[ours].items()]
        compare[label] = {}
        for metric in metrics:
            values = [a[metric] for a, _ in rows], [b[metric] for _, b in rows]
            compare[label] |= {
                f"{metric}_ratio": ratio_of_means(*values),
                f"{metric}_difference": paired_difference(*values),
            }
    for metric in metrics:
        adjusted = holm([comparison[f"{metric}_difference"]["p"] for comparison in compare.values()])
        for comparison, p in zip(compare.values(), adjusted, strict=True):
            comparison[f"{metric}_ratio"]["p_holm"] = comparison[f"{metric}_difference"]["p_holm"] = p
    return compare
