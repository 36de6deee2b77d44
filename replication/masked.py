"""Full prefill with single faults of naive concatenation put in, one by one (S-20).

Each factor is a change to what full prefill computes: the position ids of the passages, or which tokens see which.
With every fault it is naive concatenation; with none it is full prefill. Both ends are tested against the real thing.
"""

from dataclasses import dataclass

import torch
from transformers import DynamicCache

from replication.fuse import Prefill, Report
from replication.layers import wrapped
from replication.model import Model
from replication.prompt import ChunkedPrompt

POSITIONS = ("repaired", "stored")
SINKS = ("shared", "own", "dropped")
CROSSES = ("recomputed", "absent")


@dataclass(frozen=True)
class Faults:
    """position: passages at their places, or where they were stored. sink: passages stand behind the shared prefix;
    or each is its own beginning: its first tokens see nothing before them, and without cross-chunk attention no other
    token of it sees the prefix either; or that, and no one outside sees its first tokens. cross: whether a passage's
    other tokens see earlier passages. sink_tokens: how many first tokens. A BOS is seen by all, always."""

    position: str = "repaired"
    sink: str = "shared"
    cross: str = "recomputed"
    sink_tokens: int = 1


def position_ids(prompt: ChunkedPrompt, faults: Faults) -> torch.Tensor:
    """Position [tokens] of each token. As stored, every passage restarts where it was prefilled: right after the
    prefix when behind it; else at 0, or at 1 behind a BOS."""
    positions = torch.arange(len(prompt))
    if faults.position == "stored":
        restart = len(prompt.prefix_ids if faults.sink == "shared" else prompt.bos)
        for segment in prompt.segments:
            if segment.kind == "passage":
                positions[segment.start : segment.stop] -= segment.start - restart
    return positions


def visible(prompt: ChunkedPrompt, faults: Faults) -> torch.Tensor:
    """Which keys (columns) each token (row) may see, [tokens, tokens]; causality comes on top."""
    seen = torch.ones(len(prompt), len(prompt), dtype=torch.bool)
    passages = [s for s in prompt.chunks if s.start > 0]
    after_bos = len(prompt.bos)
    for passage in passages:
        inside = slice(passage.start, passage.stop)
        first = slice(passage.start, min(passage.start + faults.sink_tokens, passage.stop))
        rest = slice(first.stop, passage.stop)
        if faults.cross == "absent":
            for other in passages:
                if other is not passage:
                    seen[inside, other.start : other.stop] = False
        if faults.sink != "shared":
            seen[first, after_bos : passage.start] = False
            # what stands before all passages is the shared prefix: alone, a passage does not see it either
            if faults.cross == "absent":
                seen[rest, after_bos : passage.start] = False
        if faults.sink == "dropped":
            seen[passage.stop :, first] = False
    return seen


@torch.inference_mode()
def masked_prefill(model: Model, prompt: ChunkedPrompt, faults: Faults) -> Prefill:
    """Prefill the whole prompt under `faults`; the report holds nothing, since nothing is saved."""
    seen = visible(prompt, faults).to(model.device)
    causal = torch.ones_like(seen).tril()

    def run(index, forward, hidden_states, *args, **kwargs):
        own = kwargs.get("attention_mask")
        if own is not None and own.dtype != torch.bool:
            kwargs["attention_mask"] = own.masked_fill(~seen, torch.finfo(own.dtype).min)
        else:
            kwargs["attention_mask"] = (causal if own is None else own) & seen
            kwargs["attention_mask"] = kwargs["attention_mask"].reshape(1, 1, *seen.shape)
        return forward(hidden_states, *args, **kwargs)

    cache = DynamicCache()
    with wrapped(model.layers, run):
        output = model.lm(
            input_ids=model.tensor(prompt.ids),
            position_ids=position_ids(prompt, faults).to(model.device)[None],
            cache=cache,
            use_cache=True,
            logits_to_keep=1,
        )
    return Prefill(cache, output.logits[0, -1], Report())
