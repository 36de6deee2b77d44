"""One difference at a time between the paper, the authors' code and LMCache: what each is worth (A-03, A-09).

The baseline chooses once, in layer 1, by the paper's deviation of K and V, writes fresh KV of all tokens back there,
lets recomputed tokens see earlier ones only, and computes the whole question afresh.
"""

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tqdm import tqdm

from experiments.ablation_figures import ablations_figure
from experiments.ablation_variants import BASELINE, attention_scores, prompts, variants
from experiments.common import Inputs, RagConfig, by_cell, load_inputs, means, require_positive
from experiments.reuse_common import compared, full_prefill, require_questions, reused
from replication.bottom_right import bottom_right_mask
from replication.decode import answer_logprobs
from replication.fuse import fuse
from replication.metrics.fidelity import fidelity
from replication.prompt import answer_ids
from replication.records import RunFolder
from replication.selectors.hkvd import HKVD

TITLE = "Ablations: score, write-back, mask, suffix, BOS"
METRICS = ("kl_first", "kl_answer", "top1", "agreement", "nll")


@dataclass(frozen=True)
class Config(RagConfig):
    """ratio: share of the reused tokens that is recomputed. last: from how many last tokens of the prompt the attention
    score looks."""

    n: int = 32
    ratio: float = 0.15
    last: int = 8

    def __post_init__(self):
        require_positive(self, "n", "passages", "last")
        HKVD(self.ratio)


def run(config: Config, folder: RunFolder) -> None:
    """All variants on every example; finished examples are not repeated."""
    inputs = load_inputs(config, folder)
    require_questions(inputs.prompts, config.last)
    done = folder.done(("kind", "example", "cell"))
    for index in tqdm(range(len(inputs.examples)), desc="ablations", unit="example"):
        example = inputs.examples[index].id
        names = variants(config.ratio, None, inputs.model, inputs.prompts[index])
        todo = [name for name in names if ("cell", example, name) not in done]
        for record in _measure(config, inputs, index, todo) if todo else ():
            folder.append({"kind": "cell", "example": example, **record})


def _measure(config: Config, inputs: Inputs, index: int, todo: list[str]) -> Iterator[dict]:
    model, example = inputs.model, inputs.examples[index]
    gold = answer_ids(example.answers[0], model.tokenizer, config.style)
    stored = cache(lambda prompt: reused(model, prompt))
    reference = cache(lambda prompt: answer_logprobs(model, full_prefill(model, prompt), gold))
    attention = attention_scores(stored(inputs.prompts[index]), inputs.prompts[index], config.last)
    chosen = variants(config.ratio, attention, model, inputs.prompts[index])
    for name, variant in ((name, chosen[name]) for name in todo):
        prompt, whole = prompts(variant, example, config.style, model)
        kv, first = stored(prompt), variant.selector.check_layer
        with nullcontext() if variant.causal else bottom_right_mask(model, len(prompt), first):
            prefill = fuse(kv, variant.selector)
        yield {
            "cell": name,
            "selected": len(prefill.report.selected),
            **fidelity(reference(whole), answer_logprobs(model, prefill, gold), gold),
        }


def summarise(records: list[dict], config: Config) -> dict:
    """Per variant: means, and example by example over the baseline. Those with another BOS have another full prefill as
    their reference."""
    found = by_cell(records, "cell")
    return {
        "cells": {name: means(list(rows.values()), METRICS) for name, rows in found.items()},
        "over_baseline": compared(found, {name: (name, BASELINE) for name in found if name != BASELINE}),
        "n": config.n,
    }


def plot(folder: Path) -> None:
    ablations_figure(folder)
