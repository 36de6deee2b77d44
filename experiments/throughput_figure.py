"""The figure of `throughput`: TTFT under load, throughput at equal TTFT, and batches."""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import seaborn as sns

from experiments.figures import PALETTE, STYLE, around, read_summary, save, where

LABELS = {
    "full": "full prefill",
    "prefix": "prefix cache",
    "full-reuse": "full reuse",
    "cacheblend-paper": "CacheBlend",
}


def throughput_figure(folder: Path) -> None:
    summary = read_summary(folder)
    sns.set_theme(style="whitegrid", context="paper", font_scale=1.1)
    figure, axes = plt.subplots(2, 2, figsize=(12, 8.4), layout="constrained")
    _load(axes[0][0], summary)
    _throughput(axes[0][1], summary)
    _batch_times(axes[1][0], summary["batches"]["sizes"])
    _batch_speedups(axes[1][1], summary["batches"]["sizes"])
    figure.suptitle(f"{where(folder)}: many requests")
    save(figure, folder)


def _load(axis, summary: dict) -> None:
    """Mean TTFT against the arrival rate: simulated lines, live points."""
    for name, curve in summary["curves"].items():
        _, colour, marker = STYLE[name]
        rates = [float(load) * summary["capacity"] for load in curve]
        bars = np.hstack([around(c, "mean") for c in curve.values()])
        means = [c["mean"] for c in curve.values()]
        axis.errorbar(rates, means, yerr=bars, label=LABELS[name], color=colour, marker=marker, markersize=4)
        if name in summary["live"]:
            found = summary["live"][name]
            star = {"color": colour, "markersize": 16, "markeredgecolor": "black", "linestyle": "none"}
            axis.plot(found["rate"], found["ttft"], "*", **star)
    axis.plot([], [], "*", color="white", markeredgecolor="black", markersize=14, label="live run")
    axis.axhline(summary["limit"], color="black", linestyle=":", linewidth=1)
    axis.set_ylim(0, 2.5 * summary["limit"])
    axis.set_xlabel("requests per second")
    axis.set_ylabel("mean TTFT, waiting included, s (95 % of resamples)")
    axis.legend(frameon=False, fontsize=9, loc="upper center", bbox_to_anchor=(0.46, 1))
    axis.set_title("TTFT under load (one server)")


def _throughput(axis, summary: dict) -> None:
    """Requests per second at the TTFT of the dotted line."""
    for y, (name, found) in enumerate(summary["throughput"].items()):
        colour = STYLE[name][1]
        axis.barh(y, found["mean"], color=colour)
        axis.errorbar(found["mean"], y, xerr=around(found, "mean"), color="black", capsize=3)
        times = found["mean"] / summary["throughput"]["full"]["mean"]
        axis.annotate(f" {times:.1f}×", (found["high"], y), va="center")
    axis.set_yticks(range(len(summary["throughput"])), [LABELS[name] for name in summary["throughput"]])
    axis.invert_yaxis()
    axis.set_xlim(0, 1.2 * max(t["high"] for t in summary["throughput"].values()))
    axis.set_xlabel("requests per second (95 % of resamples)")
    axis.set_title(f"Throughput at a mean TTFT of {summary['limit']:.1f} s")


def _batch_times(axis, sizes: dict) -> None:
    lines = (
        ("full", "full prefill, one batch", 7, "o"),
        ("blends", "blends, one by one", 0, "o"),
        ("decode", "decoding", 1, "s"),
    )
    _by_batch_size(axis, sizes, lines)
    axis.set_ylabel("s for the whole batch (median, quartiles)")
    axis.legend(frameon=False)
    axis.set_title("A batch of prompts of equal length")


def _batch_speedups(axis, sizes: dict) -> None:
    lines = (
        ("prefill_speedup", "until all have a first token", 0, "o"),
        ("ttft_speedup", "mean TTFT", 4, "^"),
        ("request_speedup", "whole batch, decoding included", 1, "s"),
    )
    _by_batch_size(axis, sizes, lines)
    axis.axhline(1, color="grey", linewidth=0.8)
    axis.set_ylim(0, 1.3 * axis.get_ylim()[1])  # room for the legend
    axis.set_ylabel("speed-up of blends (median, quartiles)")
    axis.legend(frameon=False, fontsize=9, loc="upper left")
    axis.set_title("Blends against batched full prefill")


def _by_batch_size(axis, sizes: dict, lines: tuple[tuple[str, str, int, str], ...]) -> None:
    """A line for each (key, label, colour, marker)."""
    places = [int(size) for size in sizes]
    for key, label, colour, marker in lines:
        found = [cell[key] for cell in sizes.values()]
        bars = np.hstack([around(f, "median") for f in found])
        axis.errorbar(
            places, [f["median"] for f in found], yerr=bars, label=label, color=PALETTE[colour], marker=marker
        )
    axis.set_xticks(places)
    axis.set_ylim(0)
    axis.set_xlabel("batch size")
