"""Figures of the ablations: schedules and check layers, and one difference at a time."""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import seaborn as sns

from experiments.figures import PALETTE, around, read_summary, save, where

KL = "KL to full prefill at first answer token, nats\n(mean, 95 % interval)"
GROUPS = ("baseline", "score", "write-back", "mask", "suffix", "authors", "BOS")


def schedule_figure(folder: Path) -> None:
    """Gradual filtering against a fixed set by budget; the fixed set by check layer, with what it costs."""
    summary = read_summary(folder)
    cells = summary["cells"]
    sns.set_theme(style="whitegrid", context="paper", font_scale=1.15)
    figure, (budgets, layers) = plt.subplots(1, 2, figsize=(13, 5.2), layout="constrained", width_ratios=(1, 1.3))
    for offset, (schedule, label, colour) in enumerate(
        (("fixed", "one fixed set", PALETTE[1]), ("gradual", "gradual filtering", PALETTE[0]))
    ):
        ratios = sorted(summary["gradual_over_fixed"], key=float)
        found = [cells[f"{schedule} from 1@{r}"]["kl_first"] for r in ratios]
        places = np.arange(len(ratios)) + 0.1 * (2 * offset - 1)
        errors = np.hstack([around(f, "mean") for f in found])
        budgets.errorbar(places, [f["mean"] for f in found], errors, color=colour, marker="o", label=label, capsize=2)
    budgets.set_xticks(range(len(ratios)), [f"{r} %" for r in ratios])
    budgets.set_xlabel("recomputed share of the reused tokens, mean over layers")
    budgets.set_ylabel(KL)
    budgets.set_ylim(bottom=0)
    budgets.legend(frameon=False)
    _check_layers(layers, summary)
    figure.suptitle(f"{where(folder)}: when tokens are chosen (n = {summary['n']})")
    save(figure, folder)


def _check_layers(axis, summary: dict) -> None:
    numbers, percent = summary["check_layers"], summary["percent"]
    found = {n: summary["cells"][f"fixed from {n}@{percent}"] for n in numbers}
    estimates = [found[n]["kl_first"] for n in numbers]
    errors = np.hstack([around(e, "mean") for e in estimates])
    axis.errorbar(numbers, [e["mean"] for e in estimates], errors, color=PALETTE[0], marker="o", capsize=2)
    axis.set_xticks(numbers)
    axis.set_ylabel(KL)
    axis.set_ylim(bottom=0)
    axis.set_xlabel(f"check layer (those before it are recomputed whole; from it on {percent} %)")
    cost = axis.twinx()
    cost.plot(numbers, [100 * found[n]["operations"]["mean"] for n in numbers], color=PALETTE[7], marker="s")
    cost.set_ylabel("operations, % of full prefill (grey squares)", color="dimgrey")
    cost.set_ylim(0, 100)
    cost.grid(False)


def ablations_figure(folder: Path) -> None:
    """KL of every variant, the baseline's as a line."""
    summary = read_summary(folder)
    cells, over = summary["cells"], summary["over_baseline"]
    sns.set_theme(style="whitegrid", context="paper", font_scale=1.1)
    figure, axis = plt.subplots(figsize=(11, 6), layout="constrained")
    base = cells["baseline"]["kl_first"]
    names = sorted(cells, key=lambda name: GROUPS.index(name.partition(":")[0]))
    for y, name in enumerate(names):
        value = cells[name]["kl_first"]
        axis.barh(y, value["mean"], color=PALETTE[GROUPS.index(name.partition(":")[0])], height=0.7)
        axis.errorbar(value["mean"], y, xerr=around(value, "mean"), color="black", capsize=2)
        if name in over:
            ratio = over[name]["kl_first_ratio"]
            text = f"{ratio['mean']:.2f}× [{ratio['low']:.2f}, {ratio['high']:.2f}]"
            axis.text(1.01, y, text, transform=axis.get_yaxis_transform(), va="center", fontsize=9)
    axis.axvline(base["mean"], color="black", linewidth=0.8)
    axis.set_yticks(range(len(names)), names)
    axis.invert_yaxis()
    axis.set_xlabel("KL to full prefill at first answer token, nats (mean, 95 % interval)")
    axis.set_title("KL over the baseline's [95 %]", loc="right", fontsize=9)
    figure.suptitle(f"{where(folder)}: one difference at a time (n = {summary['n']})")
    save(figure, folder)
