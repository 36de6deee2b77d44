"""The figure of `lmcache_differences`: what each difference leaves, and how much of what is stored is used."""

from pathlib import Path

import matplotlib.pyplot as plt
import seaborn as sns

from experiments.figures import PALETTE, around, read_summary, save, where

LABELS = {
    "naive": ("naive concatenation", 3),
    "lmcache mask": ("LMCache: zeroed separators, FlashAttention's mask", 1),
    "lmcache": ("LMCache with an exact mask", 1),
    "ours": ("ours: the same rule, fresh separators too", 0),
    "lmcache missing": ("LMCache, exact mask, a passage not stored", 1),
    "ours missing": ("ours, a passage not stored", 0),
}
USED = {
    "cut": ("LMCache, all stored", 1),
    "lmcache missing": ("LMCache, a passage not stored", 1),
    "ours missing": ("ours, a passage not stored", 0),
    "whole": ("LMCache, all stored, joined\nby the separator's own text", 1),
}


def differences_figure(folder: Path) -> None:
    """Left: KL to full prefill; right: share of the stored tokens that the look-up lets a request use."""
    summary = read_summary(folder)
    sns.set_theme(style="whitegrid", context="paper", font_scale=1.1)
    figure, (left, right) = plt.subplots(1, 2, figsize=(13, 4.2), width_ratios=(1.4, 1), layout="constrained")
    _bars(left, {name: (*LABELS[name], summary["cells"][name]["kl_first"], 1, ".2f") for name in LABELS})
    left.set_xlabel("KL(full ‖ method) at first answer token, nats (mean, 95 % interval)")
    left.set_title("What each difference costs")
    _bars(right, {name: (*USED[name], summary["used"][name], 100, ".0f") for name in USED})
    right.set_xlabel("stored tokens that the request can use, %")
    right.set_xlim(0, 118)
    right.set_title("What the look-up finds")
    figure.suptitle(f"{where(folder)}: LMCache's blender and its differences from the paper (n = {summary['n']})")
    save(figure, folder)


def _bars(axis, rows: dict) -> None:
    for y, (_, colour, value, scale, digits) in enumerate(rows.values()):
        ends = scale * around(value, "mean")
        axis.barh(y, scale * value["mean"], color=PALETTE[colour])
        axis.errorbar(scale * value["mean"], y, xerr=ends, color="black", capsize=2)
        axis.annotate(
            f"{scale * value['mean']:{digits}}",
            (scale * value["mean"] + ends[1, 0], y),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            fontsize=9,
        )
    axis.set_yticks(range(len(rows)), [row[0] for row in rows.values()])
    axis.invert_yaxis()
    axis.grid(visible=False, axis="y")
    axis.margins(x=0.12)
