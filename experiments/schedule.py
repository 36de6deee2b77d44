"""When tokens are chosen: gradual filtering against one fixed set (A-07), and the layer in which that set is chosen
(A-06 is why the paper chooses in an early one)."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from experiments.ablation_figures import schedule_figure
from experiments.common import Inputs, RagConfig, by_cell, load_inputs, means, require_positive
from experiments.reuse_common import compared, full_prefill, reused
from replication.decode import answer_logprobs
from replication.errors import ReplicationError
from replication.fuse import fuse
from replication.metrics.cost import full_report, operations
from replication.metrics.fidelity import fidelity
from replication.prompt import answer_ids
from replication.records import RunFolder
from replication.selectors.hkvd import HKVD, SCHEDULES

TITLE = "When tokens are chosen: gradual filtering against a fixed set, and the check layer"
METRICS = ("kl_first", "kl_answer", "top1", "agreement", "nll", "operations")
CHECK_LAYER = HKVD.check_layer


@dataclass(frozen=True)
class Config(RagConfig):
    """ratios: budgets at which both schedules choose in layer 1. ratio: budget of the fixed set that is chosen in layer
    0, 1, 2, and from there on in each `step`-th one."""

    n: int = 32
    ratios: tuple[float, ...] = (0.05, 0.1, 0.15, 0.2)
    ratio: float = 0.15
    step: int = 4

    def __post_init__(self):
        require_positive(self, "n", "passages", "step")
        if self.ratio not in self.ratios:
            raise ReplicationError(f"ratio {self.ratio} must be one of ratios, whose check layer is {CHECK_LAYER}")
        for ratio in self.ratios:
            HKVD(ratio)

    def cells(self, depth: int) -> dict[str, HKVD]:
        """Every selector by its name."""
        both = {name(s, CHECK_LAYER, r): HKVD(r, schedule=s) for r in self.ratios for s in SCHEDULES}
        layers = [c for c in (0, 1, *range(2, depth, self.step)) if c < depth]
        return both | {name("fixed", c, self.ratio): HKVD(self.ratio, check_layer=c) for c in layers}


def name(schedule: str, layer: int, ratio: float) -> str:
    return f"{schedule} from {layer}@{100 * ratio:g}"


def run(config: Config, folder: RunFolder) -> None:
    """All cells on every example; finished ones are not repeated."""
    inputs = load_inputs(config, folder)
    done = folder.done(("kind", "example", "cell"))
    for index in tqdm(range(len(inputs.examples)), desc="schedules", unit="example"):
        example = inputs.examples[index].id
        cells = config.cells(len(inputs.model.layers))
        todo = {n: s for n, s in cells.items() if ("cell", example, n) not in done}
        for record in _measure(config, inputs, index, todo) if todo else ():
            folder.append({"kind": "cell", "example": example, **record})


def _measure(config: Config, inputs: Inputs, index: int, selectors: dict[str, HKVD]) -> Iterator[dict]:
    model, prompt = inputs.model, inputs.prompts[index]
    gold = answer_ids(inputs.examples[index].answers[0], model.tokenizer, config.style)
    reference = answer_logprobs(model, full_prefill(model, prompt), gold)
    whole = operations(model, full_report(model, len(prompt)))
    stored = reused(model, prompt)
    for label, selector in selectors.items():
        prefill = fuse(stored, selector)
        cost = operations(model, prefill.report) / whole
        found = fidelity(reference, answer_logprobs(model, prefill, gold), gold)
        yield {"cell": label, "layer": selector.check_layer, "operations": cost, **found}


def summarise(records: list[dict], config: Config) -> dict:
    """Per cell: means, operations as a share of full prefill's. Gradual over fixed at each budget; other check layers
    over layer 1."""
    found = by_cell(records, "cell")
    fixed = name("fixed", CHECK_LAYER, config.ratio)
    layers = sorted({r["layer"] for rows in found.values() for r in rows.values()} - {CHECK_LAYER})
    schedules = {
        f"{100 * r:g}": (name("gradual", CHECK_LAYER, r), name("fixed", CHECK_LAYER, r)) for r in config.ratios
    }
    return {
        "cells": {label: means(list(rows.values()), METRICS) for label, rows in found.items()},
        "gradual_over_fixed": compared(found, schedules, ("kl_first", "nll", "operations")),
        "check_layers": sorted({CHECK_LAYER, *layers}),
        "percent": f"{100 * config.ratio:g}",
        "over_layer_1": compared(found, {str(c): (name("fixed", c, config.ratio), fixed) for c in layers}),
        "n": config.n,
    }


def plot(folder: Path) -> None:
    schedule_figure(folder)
