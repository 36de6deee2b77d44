"""What LMCache's differences from the paper cost (S-24): its real blender, with each difference there and not there."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from experiments.common import RagConfig, by_cell, load_inputs, means, require_positive
from experiments.lmcache_figure import differences_figure
from experiments.reuse_common import compared
from replication.chunk import ChunkKV, prefill_chunk
from replication.decode import answer_logprobs
from replication.errors import ReplicationError
from replication.fuse import Prefill, fuse
from replication.lmcache_blend import LMCacheBlender, join, require_supported
from replication.lmcache_engine import require_lmcache
from replication.methods import make_method
from replication.metrics.fidelity import fidelity
from replication.model import Model
from replication.prompt import ChunkedPrompt, answer_ids
from replication.records import RunFolder
from replication.runner import check_device, model_source
from replication.selectors import Selector
from replication.stats import mean_ci
from replication.store import MemoryStore
from replication.stored import Piece, StoredKV

TITLE = "What LMCache's differences from the paper cost: separators, attention mask, look-up"
METRICS = ("kl_first", "kl_answer", "top1", "agreement", "nll")
# each with the cell that lacks just this difference, or with what it has to beat
PAIRS = (
    ("lmcache", "ours"),
    ("lmcache mask", "lmcache"),
    ("lmcache mask", "naive"),
    ("lmcache missing", "ours missing"),
)


@dataclass(frozen=True)
class Config(RagConfig):
    """ratio: LMCache's recompute ratio, of all tokens found. missing: the passage, counted from 1, that is not stored
    in the cells that say so."""

    n: int = 20
    ratio: float = 0.15
    missing: int = 2

    def __post_init__(self):
        require_positive(self, "n", "passages", "missing")
        if self.missing > self.passages:
            raise ReplicationError(f"passage {self.missing} cannot be missing among {self.passages}")
        Selector(self.ratio)


def check(config: Config) -> None:
    """ReplicationError for what would stop a run: no LMCache, or a model or device that is not there."""
    require_lmcache()
    model_source(config.model)
    check_device(config.device, config.dtype)


def run(config: Config, folder: RunFolder) -> None:
    """All cells on every example; finished examples are not repeated."""
    require_lmcache()
    inputs = load_inputs(config, folder)
    require_supported(inputs.model)
    done = folder.done(("kind", "example", "cell"))
    blender = LMCacheBlender(inputs.model, tokens=max(map(len, inputs.prompts)) + 64)
    for example, prompt in tqdm(list(zip(inputs.examples, inputs.prompts, strict=True)), "lmcache", unit="example"):
        # the look-up is written last, so an example that has it has all
        if ("lookup", example.id, "lmcache") in done:
            continue
        gold = answer_ids(example.answers[0], inputs.model.tokenizer, config.style)
        joined, reference = join(prompt, blender.separator), None
        # built once, for LMCache and for our fusion
        chunks = {segment.start: prefill_chunk(inputs.model, segment.ids) for segment in joined.chunks}
        _store(blender, chunks)
        lookup = _lookup(inputs.model, blender, prompt)
        for cell, prefill, counts in _cells(config, inputs.model, blender, joined, chunks):
            logprobs = answer_logprobs(inputs.model, prefill, gold)
            reference = logprobs if reference is None else reference
            if ("cell", example.id, cell) not in done:
                found = fidelity(reference, logprobs, gold)
                folder.append({"kind": "cell", "example": example.id, "cell": cell, **counts, **found})
        folder.append({"kind": "lookup", "example": example.id, "cell": "lmcache", **lookup})
    blender.close()


Counted = tuple[str, Prefill, dict]


def _cells(
    config: Config, model: Model, blender: LMCacheBlender, prompt: ChunkedPrompt, chunks: dict[int, ChunkKV]
) -> Iterator[Counted]:
    """Full prefill first. `chunks` are stored in LMCache, by their places in the prompt."""
    separators = {i for s in prompt.segments if s.kind == "separator" for i in range(s.start, s.stop)}
    yield "full", make_method("full").prefill(model, prompt, MemoryStore()), {}

    for cell, mask in (("lmcache", "position"), ("lmcache mask", "end")):
        theirs = blender.prefill(prompt.ids, (config.ratio,), mask)
        chosen = set(theirs.report.selected)
        yield cell, theirs, {"chosen": len(chosen), "separators": len(chosen & separators)}
    stored = StoredKV(model, prompt.ids, _pieces(chunks))
    reused = (stored.stored & ~stored.exact).nonzero()[:, 0].tolist()
    budget = len(chosen & set(reused))  # as many stored tokens as LMCache recomputes
    yield "ours", _ours(stored, budget / len(reused)), {"chosen": budget}
    yield "naive", fuse(StoredKV(model, prompt.ids, _pieces(chunks), move=False), Selector(ratio=0)), {}

    some = {start: chunk for start, chunk in chunks.items() if start != prompt.chunks[config.missing].start}
    _store(blender, some)
    there = {"stored": sum(len(chunk.ids) for chunk in some.values())}
    theirs = blender.prefill(prompt.ids, (config.ratio,))
    used = sum(len(chunk.ids) for start, chunk in some.items() if start < theirs.report.reused)
    yield "lmcache missing", theirs, there | {"used": used}
    ours = _ours(StoredKV(model, prompt.ids, _pieces(some)), config.ratio)
    yield "ours missing", ours, there | {"used": ours.report.reused}


def _store(blender: LMCacheBlender, chunks: dict[int, ChunkKV]) -> None:
    blender.clear()
    for chunk in chunks.values():
        blender.store(chunk)


def _pieces(chunks: dict[int, ChunkKV]) -> list[Piece]:
    return [Piece(chunk, start) for start, chunk in chunks.items()]


def _ours(stored: StoredKV, ratio: float) -> Prefill:
    return fuse(stored, make_method("cacheblend-lmcache", ratio).selector)


def _lookup(model: Model, blender: LMCacheBlender, prompt: ChunkedPrompt) -> dict:
    """Shares of the chunks' tokens that LMCache finds, all of which it has: joined by its own separator ids (`cut`),
    and by the ids that the separator's text has (`whole`)."""
    whole = tuple(model.tokenizer.encode(blender.text, add_special_tokens=False))
    shares = {}
    for name, separator in (("cut", blender.separator), ("whole", whole)):
        joined = join(prompt, separator)
        found = blender.found(joined.ids)
        used = sum(len(s.ids) for s in joined.chunks if s.start < found)
        shares[name] = used / sum(len(s.ids) for s in joined.chunks)
    return shares


def summarise(records: list[dict], config: Config) -> dict:
    """Fidelity of every cell, each difference's paired cost, and how much of what is stored is used."""
    cells = by_cell(records, "cell")
    lookups = list(by_cell(records, "lookup")["lmcache"].values())
    return {
        "cells": {name: means(list(found.values()), METRICS) for name, found in cells.items()},
        "compare": compared(cells, {f"{a}/{b}": (a, b) for a, b in PAIRS}),
        "budget_for_separators": mean_ci([r["separators"] / r["chosen"] for r in cells["lmcache"].values()]),
        "used": {
            name: mean_ci([r["used"] / r["stored"] for r in cells[name].values()])
            for name in ("lmcache missing", "ours missing")
        }
        | {name: mean_ci([r[name] for r in lookups]) for name in ("cut", "whole")},
        "n": config.n,
    }


def plot(folder: Path) -> None:
    differences_figure(folder)
