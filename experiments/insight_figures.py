"""Figures of the paper's insights: attention deviation, KV deviation, ranks of layers, and which tokens are picked."""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import seaborn as sns
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.ticker import MaxNLocator

from experiments.figures import PALETTE, STYLE, around, read_summary, save, where

CHOICES = {
    "cacheblend-paper": "highest KV deviation in layer 1 (CacheBlend)",
    "oracle": "highest true KV deviation (oracle)",
}
MULTIPLES = (0.125, 0.25, 0.5, 1, 2, 4, 8)
SHOWN_RATIOS = (0, 1, 5, 10, 20, 30, 50, 100)
KINDS = ("punctuation", "function word", "other", "capitalised", "number")


def attention_deviation_figure(folder: Path) -> None:
    """What is left of attention deviation, KL and loss of NLL, against the recompute ratio, for each choice."""
    summary = read_summary(folder)
    sns.set_theme(style="whitegrid", context="paper", font_scale=1.15)
    figure, axes = plt.subplots(1, 3, figsize=(15, 5.2), layout="constrained")
    figure.get_layout_engine().set(wspace=0.04)
    panels = (
        ("delta_attn", "attention deviation, mean over layers\n(L2 norm; mean, 95 % interval)"),
        ("kl_first", "KL to full prefill at first answer token, nats\n(mean, 95 % interval)"),
        ("nll", "NLL of the gold answer, nats per token\n(mean, 95 % interval)"),
    )
    for axis, (metric, label) in zip(axes, panels, strict=True):
        for method in summary["fall"]:
            _curve(axis, summary["cells"], method, metric)
        axis.set_xscale("function", functions=(np.sqrt, np.square))
        axis.set_xticks(SHOWN_RATIOS, [str(r) for r in SHOWN_RATIOS])
        axis.set_ylabel(label)
    for axis in axes[:2]:
        axis.set_ylim(bottom=0)
    axes[1].set_xlabel("recomputed share of the reused tokens, % (square-root scale)")
    bare = summary["cells"]["no-context"]["nll"]["mean"]
    axes[2].set_title(f"without any passage: {bare:.2f} nats", fontsize=10, color="grey")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    figure.suptitle(f"{where(folder)}: what recomputing repairs (n = {summary['n']})")
    save(figure, folder)


def _curve(axis, cells: dict, method: str, metric: str) -> None:
    label, colour, marker = STYLE[method]
    found = {float(c.partition("@")[2]): cells[c][metric] for c in cells if c.partition("@")[0] == method}
    points = {0.0: cells["full-reuse"][metric], **found}
    ratios = sorted(points)
    axis.errorbar(
        ratios,
        [points[r]["mean"] for r in ratios],
        yerr=np.hstack([around(points[r], "mean") for r in ratios]),
        label=CHOICES.get(method, label),
        color=colour,
        marker=marker,
        markersize=6,
        elinewidth=0.8,
    )


def kv_deviation_figure(folder: Path) -> None:
    """Distribution of the deviation of K and V in each layer, and rank correlations of all pairs of layers."""
    summary = read_summary(folder)
    sns.set_theme(style="whitegrid", context="paper", font_scale=1.1)
    figure, axes = plt.subplots(2, 2, figsize=(12, 10.5), layout="constrained")
    for column, name in enumerate(("K", "V")):
        found = summary[name]
        _distribution(axes[0, column], found, name, summary["levels"])
        _ranks(axes[1, column], found, name)
    depth = len(summary["K"]["layers"])
    figure.colorbar(
        ScalarMappable(Normalize(1, depth), "viridis"), ax=axes[0], label="layer", ticks=MaxNLocator(8, integer=True)
    )
    image = axes[1, 1].images[0]
    figure.colorbar(image, ax=axes[1], label="Spearman correlation of the tokens' deviation")
    figure.suptitle(f"{where(folder)}: KV deviation of reused tokens (n = {summary['n']})")
    save(figure, folder)


def _distribution(axis, found: dict, name: str, levels: list[float]) -> None:
    depth = len(found["layers"])
    for layer, quantiles in enumerate(found["quantiles"], start=1):
        colour = plt.get_cmap("viridis")((layer - 1) / max(1, depth - 1))
        axis.plot(quantiles, [100 * level for level in levels], color=colour, linewidth=1)
    axis.axhline(85, color="black", linestyle=":", linewidth=1)
    axis.set_xscale("log")
    axis.set_xticks(MULTIPLES, [f"{m:g}×" for m in MULTIPLES])
    axis.minorticks_off()
    axis.set_xlabel(f"deviation of {name} over the layer's mean")
    axis.set_ylabel("tokens below, % (above the dotted line: top 15 %)")
    share, ratio = found["top_share"]["15"]["mean"], found["top_over_rest"]["mean"]
    axis.set_title(f"{name}: top 15 % hold {100 * share:.0f} % of it, {ratio:.1f}× the rest's mean")


def _ranks(axis, found: dict, name: str) -> None:
    matrix = np.array(found["matrix"])
    depth = len(matrix)
    axis.imshow(matrix, cmap="viridis", vmin=0, vmax=1, origin="lower", extent=(0.5, depth + 0.5) * 2)
    axis.grid(False)
    axis.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    axis.yaxis.set_major_locator(MaxNLocator(8, integer=True))
    axis.set_xlabel("layer")
    axis.set_ylabel("layer")
    neighbours, check = found["neighbours"]["mean"], found["check_layer"]["mean"]
    axis.set_title(f"{name}: neighbours {neighbours:.2f}, layer 1 with later ones {check:.2f}")


def picked_tokens_figure(folder: Path) -> None:
    """How much likelier than average each kind of token is to be picked, in layer 1 and by the oracle."""
    summary = read_summary(folder)
    sns.set_theme(style="whitegrid", context="paper", font_scale=1.1)
    figure, axes = plt.subplots(1, 3, figsize=(15, 5), layout="constrained", width_ratios=(1.2, 1, 1))
    bars = (("KV", "deviation in layer 1 (CacheBlend)", PALETTE[0]), ("oracle", "true deviation (oracle)", PALETTE[7]))
    orders = {
        "place": (sorted(summary["KV"]["place"], key=lambda p: int(p.split("-")[0].split()[0])), "place in its chunk"),
        "class": ([k for k in KINDS if k in summary["KV"]["class"]], "class of token"),
        "chunk": (sorted(summary["KV"]["chunk"], key=int), "chunk, in the prompt's order"),
    }
    for axis, (feature, (kinds, label)) in zip(axes, orders.items(), strict=True):
        for offset, (name, legend, colour) in zip((-0.2, 0.2), bars, strict=True):
            for x, kind in enumerate(kinds):
                lift = summary[name][feature][kind]
                axis.bar(x + offset, lift["mean"], 0.38, color=colour, label=legend if x == 0 else None)
                axis.errorbar(x + offset, lift["mean"], yerr=around(lift, "mean"), color="black", capsize=2)
        axis.axhline(1, color="black", linewidth=0.8)
        axis.set_xticks(range(len(kinds)), kinds, rotation=30 if feature != "chunk" else 0)
        axis.set_xlabel(label)
    axes[0].set_ylabel("share picked, over the share of all tokens\n(1: no preference; mean, 95 % interval)")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
    figure.suptitle(f"{where(folder)}: which tokens deviate most (n = {summary['n']})")
    save(figure, folder)
