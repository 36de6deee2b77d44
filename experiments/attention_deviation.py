"""What recomputing a share of the tokens repairs: attention deviation and loss against the recompute ratio.

A-03, A-04 (insight 1, fig. 6), A-08. The heat map of A-02, with no attention between chunks under full reuse, is in
`naive_concatenation`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from tqdm import tqdm

from experiments.cells import NO_CONTEXT, paired
from experiments.common import Inputs, RagConfig, by_cell, load_inputs, means, require_positive
from experiments.insight_figures import attention_deviation_figure
from experiments.reuse_common import compared, full_prefill, require_questions, reused, watched_fuse
from replication.decode import answer_logprobs
from replication.errors import ReplicationError
from replication.measure import cell
from replication.methods import make_method
from replication.metrics.deviation import delta_attn
from replication.metrics.fidelity import fidelity
from replication.prompt import answer_ids, without_passages
from replication.records import RunFolder
from replication.selectors import Selector
from replication.stats import mean_ci, paired_difference, ratio_of_means
from replication.stored import StoredKV

TITLE = "Attention deviation and loss against the recompute ratio"
METRICS = ("delta_attn", "kl_first", "kl_answer", "top1", "agreement", "nll")
HKVD = "cacheblend-paper"
REUSE = "full-reuse"
# the loss that is still called none: nats at the first answer token, nats per answer token
LIMITS = {"kl": 0.1, "nll": 0.1}


@dataclass(frozen=True)
class Config(RagConfig):
    """methods: whose choice of tokens is recomputed at all `ratios`, HKVD first. last: how many last tokens of the
    prompt the forward attention matrix has."""

    n: int = 16
    methods: tuple[str, ...] = (HKVD, "oracle", "first-k", "random")
    ratios: tuple[float, ...] = (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0)
    last: int = 8

    def __post_init__(self):
        require_positive(self, "n", "passages", "last")
        if self.methods[:1] != (HKVD,):
            raise ReplicationError(f"methods must begin with {HKVD}, which the others are compared with")
        rising = list(self.ratios) == sorted({0.0, *self.ratios})[1:]
        if not rising or len(self.ratios) < 2 or self.ratios[-1] != 1:
            raise ReplicationError("ratios must rise from above 0 to 1.0, which is full prefill")
        for chosen in self.cells():
            make_method(*chosen)

    def cells(self) -> list[tuple[str, float]]:
        return [(REUSE, 0.0), *((name, ratio) for name in self.methods for ratio in self.ratios)]


def run(config: Config, folder: RunFolder) -> None:
    """All cells on every example; finished ones are not repeated."""
    inputs = load_inputs(config, folder)
    require_questions(inputs.prompts, config.last)
    done = folder.done(("kind", "example", "cell"))
    for index in tqdm(range(len(inputs.examples)), desc="attention deviation", unit="example"):
        example = inputs.examples[index].id
        todo = [c for c in config.cells() if ("cell", example, cell(*c)) not in done]
        bare = ("cell", example, NO_CONTEXT) not in done
        for record in _measure(config, inputs, index, todo, bare) if todo or bare else ():
            folder.append({"kind": "cell", "example": example, **record})


def _measure(config: Config, inputs: Inputs, index: int, cells, bare: bool) -> Iterator[dict]:
    model, example, prompt = inputs.model, inputs.examples[index], inputs.prompts[index]
    gold = answer_ids(example.answers[0], model.tokenizer, config.style)
    nothing = StoredKV(model, prompt.ids, [])
    full, true = watched_fuse(nothing, Selector(ratio=0), prompt, config.last)
    reference = answer_logprobs(model, full, gold)
    if bare:
        alone = full_prefill(model, without_passages(example.question, model.tokenizer, config.style))
        yield {"cell": NO_CONTEXT, **fidelity(reference, answer_logprobs(model, alone, gold), gold)}
    stored = reused(model, prompt)
    for name, ratio in cells:
        selector = make_method(name, ratio).selector
        prefill, found = watched_fuse(stored, selector, prompt, config.last, full.cache)
        deviations = [delta_attn(a, b) for a, b in zip(found, true, strict=True)]
        yield {
            "cell": cell(name, ratio),
            "delta_attn": float(np.mean(deviations)),
            "delta_attn_worst": max(deviations),
            **fidelity(reference, answer_logprobs(model, prefill, gold), gold),
        }


def summarise(records: list[dict], config: Config) -> dict:
    """Per cell: means, and what is left of full reuse's attention deviation; how steep its fall is; HKVD against the
    other choices at every ratio; the smallest ratio without loss; the worst deviation where all is recomputed."""
    found = by_cell(records, "cell")
    attention = {name: [r["delta_attn"] for r in rows.values()] for name, rows in found.items() if name != NO_CONTEXT}
    whole = [r for name in config.methods for r in found[cell(name, 1.0)].values()]
    pairs = [(cell(HKVD, r), cell(name, r)) for r in config.ratios[:-1] for name in config.methods[1:]]
    rivals = {f"{ours}/{theirs}": (ours, theirs) for ours, theirs in pairs}
    return {
        "cells": {name: means(list(rows.values()), METRICS) for name, rows in found.items()},
        "left": {name: ratio_of_means(values, attention[REUSE]) for name, values in attention.items()},
        "fall": {name: _fall(attention, name, config) for name in config.methods},
        "against": compared(found, rivals, ("delta_attn", "kl_first", "nll")),
        "suffices": _suffices(found, config),
        "exact": max(r["delta_attn_worst"] for r in whole),
        "n": config.n,
    }


def _fall(attention: dict, name: str, config: Config) -> dict:
    """By how much of full reuse's deviation each further percent of the tokens lowers it, from ratio to ratio; and
    the first such step less the steepest later one of the same example. (The first step has more to it than its tokens:
    from then on layers 0 and 1 are recomputed whole. That is the same for all choices.)"""
    ratios = (0.0, *config.ratios)
    curve = np.array([attention[REUSE], *(attention[cell(name, r)] for r in config.ratios)])
    widths = 100 * np.diff(ratios)[:, None]
    slopes = -np.diff(curve, axis=0) / widths / curve[0]
    steps = {f"{100 * a:g} to {100 * b:g}": mean_ci(s) for (a, b), s in zip(pairwise(ratios), slopes, strict=True)}
    return {"first_minus_steepest_later": mean_ci(slopes[0] - slopes[1:].max(axis=0)), "steps": steps}


def _suffices(found: dict, config: Config) -> dict:
    """The smallest ratio from which on HKVD's loss has its interval below the limit. NLL says nothing, and is null,
    where the passages do not make the gold answer likelier."""
    whole = cell(HKVD, 1.0)
    gain = paired_difference(*paired(found, NO_CONTEXT, whole, "nll"))
    loss = {
        r: {
            "kl": mean_ci([row["kl_first"] for row in found[cell(HKVD, r)].values()]),
            "nll": paired_difference(*paired(found, cell(HKVD, r), whole, "nll")),
        }
        for r in config.ratios
    }
    smallest = {metric: _from_where(loss, metric) for metric in LIMITS}
    open_gate = (gain["low"] or 0) > 0
    return {
        "kl": smallest["kl"],
        "nll": smallest["nll"] if open_gate else None,
        "no_context_minus_full_nll": gain,
        "loss": {f"{100 * r:g}": estimates for r, estimates in loss.items()},
    }


def _from_where(loss: dict, metric: str) -> float:
    smallest = 1.0
    for ratio in sorted(loss, reverse=True):
        estimate = loss[ratio][metric]
        if (estimate["mean"] if estimate["high"] is None else estimate["high"]) > LIMITS[metric]:
            break
        smallest = ratio
    return smallest


def plot(folder: Path) -> None:
    attention_deviation_figure(folder)
