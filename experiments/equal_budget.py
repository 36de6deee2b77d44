"""Every method and control of the registry at one recompute budget, each compared with CacheBlend (A-10).

Methods that take no ratio stand beside them with the budget that is their own, often none.
"""

from dataclasses import dataclass
from pathlib import Path

import matplotlib.pyplot as plt
import seaborn as sns
from matplotlib.ticker import LogLocator, NullLocator

from experiments.cells import GATE, Cell, gate, is_open, record_quality, reported
from experiments.common import RagConfig, by_cell, load_inputs, means, require_positive
from experiments.figures import PALETTE, around, read_summary, save, where
from experiments.reuse_common import compared
from replication.measure import cell, cells_at
from replication.methods import METHODS, make_method
from replication.records import RunFolder

TITLE = "Every method and control at one recompute budget, compared in pairs"
OURS = "cacheblend-paper"
EXACT = ("full", "prefix", "prefix-same-order")


@dataclass(frozen=True)
class Config(RagConfig):
    """ratio: share of the reused tokens that is recomputed by the methods that take one."""

    n: int = 32
    ratio: float = 0.15

    def __post_init__(self):
        require_positive(self, "n", "passages")
        make_method(OURS, self.ratio)

    def cells(self) -> list[Cell]:
        return cells_at([name for name in METHODS if name not in EXACT], self.ratio)


def run(config: Config, folder: RunFolder) -> None:
    """The gate, then every method on every example; answers only behind an open gate."""
    inputs = load_inputs(config, folder)
    record_quality(folder, inputs, config.style, GATE, GATE, "gate")
    cells = config.cells()
    answered = cells if is_open(folder.records, config.style.task.metrics) else ()
    record_quality(folder, inputs, config.style, cells, answered, "methods")


def summarise(records: list[dict], config: Config) -> dict:
    """Per cell: means with intervals; CacheBlend over every other one, in pairs, p Holm-adjusted over all of them."""
    quality = by_cell(records, "quality")
    passed = gate(quality, config.style.task.metrics)
    metrics = (*reported(passed), "ceiling")
    ours = cell(OURS, config.ratio)
    others = [name for name in (cell(*c) for c in config.cells()) if name != ours]
    return {
        "n": config.n,
        "ours": ours,
        "gate": passed,
        "cells": {name: means(list(rows.values()), metrics) for name, rows in quality.items()},
        "against": compared(quality, {name: (ours, name) for name in others}),
    }


def plot(folder: Path) -> None:
    """KL of every method, best first; coloured by whether CacheBlend's differs from it."""
    summary = read_summary(folder)
    ours, against = summary["ours"], summary["against"]
    cells = {name: summary["cells"][name] for name in (ours, *against)}
    sns.set_theme(style="whitegrid", context="paper", font_scale=1.1)
    figure, axis = plt.subplots(figsize=(11, 0.3 * len(cells) + 1.5), layout="constrained")
    names = sorted(cells, key=lambda name: cells[name]["kl_first"]["mean"])
    for y, name in enumerate(names):
        value = cells[name]["kl_first"]
        colour, text = (PALETTE[0], "") if name == ours else _verdict(against[name])
        axis.errorbar(value["mean"], y, xerr=around(value, "mean"), color=colour, marker="o", capsize=3)
        axis.text(1.01, y, text, transform=axis.get_yaxis_transform(), va="center", fontsize=9, color=colour)
    axis.set_yticks(range(len(names)), names)
    axis.get_yticklabels()[names.index(ours)].set_fontweight("bold")
    axis.invert_yaxis()
    axis.set_xscale("log")
    axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 5)))
    axis.xaxis.set_major_formatter("{x:g}")
    axis.xaxis.set_minor_locator(NullLocator())
    axis.set_xlabel("KL to full prefill at first answer token, nats (mean, 95 % interval; @15: 15 % recomputed)")
    axis.set_title("CacheBlend's KL over this one's [95 %], p (Holm)", loc="right", fontsize=9)
    figure.suptitle(f"{where(folder)}: every method (n = {summary['n']})")
    save(figure, folder)


def _verdict(comparison: dict) -> tuple:
    """Colour and text of a method by how CacheBlend compares with it."""
    ratio = comparison["kl_first_ratio"]
    p = ratio["p_holm"]
    text = f"{ratio['mean']:.2f}× [{ratio['low']:.2f}, {ratio['high']:.2f}]  p = {p:.2g}"
    if p >= 0.05:
        return PALETTE[7], f"{text}  no difference shown"
    return (PALETTE[2], f"{text}  CacheBlend closer") if ratio["mean"] < 1 else (PALETTE[1], f"{text}  this one closer")
