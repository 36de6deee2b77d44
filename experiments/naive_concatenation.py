"""Why naive concatenation fails (S-20): a factorial over its three faults, and where attention goes."""

import itertools
from dataclasses import dataclass
from math import factorial
from pathlib import Path

import numpy as np
from tqdm import tqdm

from experiments.common import RagConfig, by_cell, load_inputs, means, require_positive
from experiments.figures import factorial_figure
from experiments.reuse_common import compared
from replication.attention import AttentionFlow, watched
from replication.decode import answer_logprobs
from replication.masked import CROSSES, POSITIONS, SINKS, Faults, masked_prefill
from replication.measure import Request
from replication.metrics.fidelity import fidelity
from replication.prompt import answer_ids
from replication.records import RunFolder
from replication.stats import mean_ci, ratio_of_means

TITLE = "Why naive concatenation fails: positions, attention sinks, missing cross-chunk attention"
METRICS = ("kl_first", "kl_answer", "top1", "agreement", "nll")
# The faulty level of each factor; `dropped` is a remedy that is reported beside them
FAULTS = {"position": "stored", "sink": "own", "cross": "absent"}
REPAIRED = {"position": "repaired", "sink": "shared", "cross": "recomputed"}
NAIVE = "stored own absent"


@dataclass(frozen=True)
class Config(RagConfig):
    """sink_tokens: how many first tokens of a passage count as its sink. attention: examples whose attention is
    averaged."""

    n: int = 12
    sink_tokens: int = 1
    attention: int = 6

    def __post_init__(self):
        require_positive(self, "n", "passages", "sink_tokens", "attention")


def run(config: Config, folder: RunFolder) -> None:
    """All cells of the factorial on every example, then attention; finished examples are not repeated."""
    inputs = load_inputs(config, folder)
    done = folder.done(("kind", "example", "cell"))
    levels = list(itertools.product(POSITIONS, SINKS, CROSSES))
    for example, prompt in tqdm(list(zip(inputs.examples, inputs.prompts, strict=True)), "factorial", unit="example"):
        todo = [c for c in levels if ("cell", example.id, " ".join(c)) not in done]
        if not todo:
            continue
        gold = answer_ids(example.answers[0], inputs.model.tokenizer, config.style)
        reference = answer_logprobs(inputs.model, Request(inputs.model, prompt).prefill("full"), gold)
        for levels_of_cell in todo:
            prefill = masked_prefill(inputs.model, prompt, Faults(*levels_of_cell, config.sink_tokens))
            found = fidelity(reference, answer_logprobs(inputs.model, prefill, gold), gold)
            folder.append({"kind": "cell", "example": example.id, "cell": " ".join(levels_of_cell), **found})
    for example, prompt in tqdm(
        list(zip(inputs.examples, inputs.prompts, strict=True))[: config.attention], "attention", unit="example"
    ):
        for name, faults in (("full", Faults()), ("naive", Faults(**FAULTS))):
            if ("attention", example.id, name) not in done:
                flow = AttentionFlow(prompt)
                with watched(inputs.model, flow):
                    masked_prefill(inputs.model, prompt, faults)
                folder.append({"kind": "attention", "example": example.id, "cell": name, **flow.result()})


def summarise(records: list[dict], config: Config) -> dict:
    """KL of every cell, each factor's Shapley share of naive concatenation's KL, single repairs, and attention."""
    cells = by_cell(records, "cell")
    examples = list(cells[NAIVE])
    kl = {name: {e: r["kl_first"] for e, r in found.items()} for name, found in cells.items()}
    naive = [kl[NAIVE][e] for e in examples]
    parts = {factor: [_shapley(kl, e, factor) for e in examples] for factor in FAULTS}
    return {
        "cells": {name: means(list(found.values()), METRICS) for name, found in cells.items()},
        "shapley": {
            factor: {"nats": mean_ci(values), "share": ratio_of_means(values, naive)}
            for factor, values in parts.items()
        },
        "one_repair": compared(cells, {name: (cell, NAIVE) for name, cell in _single_repairs().items()}, ("kl_first",)),
        "attention": _attention(by_cell(records, "attention")),
        "n": config.n,
    }


def _single_repairs() -> dict[str, str]:
    repairs = {f: _cell(set(FAULTS) - {f}) for f in FAULTS}
    return repairs | {
        "position and sink": _cell({"cross"}),
        "position and first token dropped": "repaired dropped absent",
        "position and cross": _cell({"sink"}),
        "sink and cross": _cell({"position"}),
    }


def _cell(faulty: set[str]) -> str:
    return " ".join((FAULTS if f in faulty else REPAIRED)[f] for f in FAULTS)


def _shapley(kl: dict, example: str, factor: str) -> float:
    """Mean increase of KL when the factor's fault is added, over all orders of adding the faults."""
    others = [f for f in FAULTS if f != factor]
    total = 0.0
    for size in range(len(others) + 1):
        weight = factorial(size) * factorial(len(others) - size) / factorial(len(FAULTS))
        for subset in itertools.combinations(others, size):
            faulty = set(subset)
            total += weight * (kl[_cell(faulty | {factor})][example] - kl[_cell(faulty)][example])
    return total


def _attention(cells: dict) -> dict:
    """Means over examples and passages; segment 0 is the prefix, the last one the question."""
    summary = {}
    for name, found in cells.items():
        rows = list(found.values())
        summary[name] = {
            "between": np.mean([r["between"] for r in rows], axis=0),
            "crossing": mean_ci([_crossing(r["between"]) for r in rows]),
            "to_heads": mean_ci([float(np.mean(r["to_heads"][1:-1])) for r in rows]),
            "from_question": mean_ci([float(np.mean(r["from_question"][1:-1])) for r in rows]),
            "to_prefix_head": mean_ci([r["from_question"][0] for r in rows]),
        }
    return summary


def _crossing(between: list[list[float]]) -> float:
    """Share of their attention that the passages pay to earlier passages, mean over passages."""
    return np.tril(np.array(between)[1:-1, 1:-1], -1).sum(axis=1).mean()


def plot(folder: Path) -> None:
    factorial_figure(folder)
