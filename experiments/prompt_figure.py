"""The figure of the prompt-cost experiment: break-even, lifetime, look-back and pitfalls."""

import json
from pathlib import Path

import matplotlib.pyplot as plt
import seaborn as sns

from experiments.figures import PALETTE, save, where
from experiments.prompt_scenarios import PITFALLS

TTL_STYLE = {"5m": ("5 min", PALETTE[0], "o"), "1h": ("1 h", PALETTE[1], "s")}


def prompt_figure(folder: Path) -> None:
    """Cost over that without a cache by calls and by gap, tokens read by blocks added, pitfalls before and after."""
    summary = json.loads((folder / "summary.json").read_text())
    sns.set_theme(style="whitegrid", context="paper", font_scale=1.1)
    figure = plt.figure(figsize=(13, 9), layout="constrained")
    top, bottom = figure.subfigures(2, 1, height_ratios=(1, 1.2))
    calls, gaps, back = top.subplots(1, 3)
    _by_calls(calls, summary)
    _by_gap(gaps, summary)
    _by_blocks(back, summary)
    _pitfalls(bottom.subplots(1, 1), summary)
    figure.suptitle(f"{where(folder)}: what a prompt cache saves, by the provider's rules (n = {summary['n']})")
    save(figure, folder)


def _curves(summary: dict, ttl: str) -> dict[int, list[float]]:
    """Gap in seconds -> cost over uncached after 1, 2, ... calls."""
    cells = [(*cell.split(), points) for cell, points in summary["curves"].items()]
    found = {int(gap): [point["mean"] for point in points] for name, gap, points in cells if name == ttl}
    return dict(sorted(found.items()))


def _by_calls(axis, summary: dict) -> None:
    for ttl, (label, colour, marker) in TTL_STYLE.items():
        gap, points = next(iter(_curves(summary, ttl).items()))
        axis.plot(range(1, len(points) + 1), points, color=colour, marker=marker, label=f"{label} marker")
    axis.axhline(1, color="grey", linewidth=1)
    axis.set_ylim(0)
    axis.set_xlabel(f"calls, {gap} s apart")
    axis.set_ylabel("input cost over that without a cache")
    axis.set_title("When does a marker pay?")
    axis.legend(frameon=False)


def _by_gap(axis, summary: dict) -> None:
    for ttl, (label, colour, marker) in TTL_STYLE.items():
        curves = _curves(summary, ttl)
        last = [points[-1] for points in curves.values()]
        axis.plot(list(curves), last, color=colour, marker=marker, label=f"{label} marker")
    axis.axhline(1, color="grey", linewidth=1)
    axis.set_xscale("log")
    axis.set_xticks([60, 300, 3600], ["1 min", "5 min", "1 h"])
    axis.minorticks_off()
    axis.set_ylim(0)
    axis.set_xlabel("gap between calls")
    axis.set_ylabel(f"the same after {len(next(iter(curves.values())))} calls")
    axis.set_title("How long may the gap be?")
    axis.legend(frameon=False)


def _by_blocks(axis, summary: dict) -> None:
    shares = summary["look_back"]["read"]
    axis.plot(range(1, len(shares) + 1), [100 * s for s in shares], color=PALETTE[0], marker="o", label="one marker")
    axis.axhline(100, color=PALETTE[2], linestyle="--", label="second marker on the old entry")
    axis.axvline(20, color="grey", linewidth=1)
    axis.set_ylim(0, 110)
    axis.set_xlabel("blocks added since the last call")
    axis.set_ylabel("cached tokens that are read, %")
    axis.set_title("How far back is looked?")
    axis.legend(frameon=False, loc="lower left")


def _pitfalls(axis, summary: dict) -> None:
    found = {name: summary["pitfalls"][name] for name in PITFALLS}
    for y, pitfall in enumerate(found.values()):
        for side, colour, offset in (("before", PALETTE[3], -0.2), ("after", PALETTE[0], 0.2)):
            axis.barh(y + offset, pitfall[side]["mean"], 0.38, color=colour, label=side if y == 0 else None)
        label = f"{pitfall['cost']['mean']:.1f}× (last call {pitfall['last']['mean']:.1f}×)"
        axis.text(pitfall["before"]["mean"] + 0.01, y - 0.2, label, va="center", fontsize=9)
    axis.axvline(1, color="grey", linewidth=1)
    axis.set_yticks(range(len(found)), [f"{name} ({pitfall['row']})" for name, pitfall in found.items()])
    axis.set_xlim(0, 1.5)
    axis.invert_yaxis()
    axis.set_xlabel("input cost over that without a cache (×: before over after)")
    axis.set_title("What loses the cache, and the same traffic repaired")
    axis.legend(frameon=False)
