"""Figures of the caches that store answers: thresholds, nearest-neighbour search, exact repeats."""

from pathlib import Path

import matplotlib.pyplot as plt
import seaborn as sns

from experiments.figures import PALETTE, around, read_summary, save, where

PUBLISHED = (0.75, 0.97)
CHECKS = {"plain": ("threshold alone", 3), "polarity": ("negations and numbers", 1), "content": ("content words", 2)}
INDEX_COLOURS = (0, 1, 2, 4, 5, 8)


def threshold_figure(folder: Path) -> None:
    """Right and wrong answers by threshold; hits by kind of question; wrong against right answers for every check."""
    summary = read_summary(folder)
    sns.set_theme(style="whitegrid", context="paper", font_scale=1.1)
    figure, axes = plt.subplots(1, 3, figsize=(16, 6), layout="constrained")
    _curves(axes[0], summary["curves"]["plain"])
    _categories(axes[1], summary["by_category"])
    _trade(axes[2], summary)
    pairs = summary["n"]
    figure.suptitle(f"{where(folder)}: semantic cache ({pairs['same']} pairs with one answer of {pairs['pairs']})")
    save(figure, folder)


def index_figure(folder: Path) -> None:
    """Latency of one search and share of nearest neighbours found, by entries."""
    summary = read_summary(folder)
    sizes = sorted(summary["sizes"], key=int)
    names = [name for name in summary["sizes"][sizes[0]] if name != "build_seconds"]
    sns.set_theme(style="whitegrid", context="paper", font_scale=1.1)
    figure, (latency, recall) = plt.subplots(1, 2, figsize=(12, 4.8), layout="constrained")
    for name, colour in zip(sorted(names, key=_effort), INDEX_COLOURS, strict=False):
        found = [summary["sizes"][size][name] for size in sizes]
        label = "exact" if name == "exact" else f"graph, efSearch {_effort(name)}"
        _line(latency, sizes, [f["search"] for f in found], 1000, "median", label, colour)
        if name != "exact":
            _line(recall, sizes, [f["recall"] for f in found], 100, "mean", label, colour)
    latency.axhline(1, color="black", linewidth=0.8, linestyle=":")
    latency.set_yscale("log")
    latency.set_ylabel("one search without the embedding, ms\n(median, quartiles)")
    recall.set_ylabel("nearest neighbours found, %\n(95 % interval)")
    for axis in (latency, recall):
        axis.set_xscale("log")
        axis.set_xlabel("entries")
        axis.legend(frameon=False)
    figure.suptitle(f"{where(folder)}: finding the nearest question")
    save(figure, folder)


def repeat_figure(folder: Path) -> None:
    """Share of requests that repeat an earlier one byte by byte, of all and by group."""
    summary = read_summary(folder)
    groups = {"all requests": summary["all"], **summary["groups"]}
    sns.set_theme(style="whitegrid", context="paper", font_scale=1.1)
    figure, axis = plt.subplots(figsize=(9, 1.5 + 0.5 * len(groups)), layout="constrained")
    for y, rates in enumerate(groups.values()):
        rate = rates["repeats"]
        axis.barh(y, 100 * rate["mean"], color=PALETTE[0 if y else 7], height=0.65)
        axis.errorbar(100 * rate["mean"], y, xerr=100 * around(rate, "mean"), color="black", capsize=2)
    axis.set_yticks(range(len(groups)), [f"{name} (n = {r['repeats']['n']:,})" for name, r in groups.items()])
    axis.invert_yaxis()
    axis.set_xlim(left=0)
    axis.set_xlabel("requests that repeat an earlier one byte by byte, % (95 % interval)")
    figure.suptitle(f"Exact response cache on {folder.parts[-1]}")
    save(figure, folder)


def _curves(axis, curve: dict) -> None:
    thresholds = [float(t) for t in curve]
    for key, label, colour in (("served", "one answer is right for both", 0), ("wrong", "a hit is wrong", 3)):
        rates = [point[key] for point in curve.values()]
        axis.plot(thresholds, [100 * r["mean"] for r in rates], color=PALETTE[colour], label=label)
        low, high = ([100 * r[bound] for r in rates] for bound in ("low", "high"))
        axis.fill_between(thresholds, low, high, color=PALETTE[colour], alpha=0.2)
    axis.axvspan(*PUBLISHED, color="grey", alpha=0.12, label="published defaults")
    axis.set_xlabel("threshold (cosine)")
    axis.set_ylabel("pairs that hit, % (95 % interval)")
    axis.set_title("By threshold")
    _legend(axis)


def _categories(axis, by_category: dict) -> None:
    thresholds = [float(t) for t in by_category]
    for number, name in enumerate(next(iter(by_category.values()))):
        found = [at[name] for at in by_category.values()]
        style = {"linestyle": "-" if found[0]["same"] else "--", "marker": "o" if found[0]["same"] else "X"}
        shares = [100 * f["hits"]["mean"] for f in found]
        axis.plot(thresholds, shares, color=PALETTE[number], label=name.replace("_", " "), **style)
    axis.set_xlabel("threshold (cosine)")
    axis.set_ylabel("pairs that hit, %")
    axis.set_title("By kind of pair (dashed: a hit is wrong)")
    _legend(axis)


def _trade(axis, summary: dict) -> None:
    for name, (label, colour) in CHECKS.items():
        _path(axis, summary["curves"][name].values(), label, PALETTE[colour])
    if summary["judge_curve"]:
        _path(axis, summary["judge_curve"], "language model as judge", PALETTE[0], linestyle="--")
    axis.set_xlabel("pairs with one answer that hit, %")
    axis.set_ylabel("other pairs that hit (wrong answers), %")
    axis.set_title("A check before serving (right and low is better)")
    _legend(axis)


def _legend(axis) -> None:
    axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2, frameon=False)


def _path(axis, points, label: str, colour, linestyle: str = "-") -> None:
    right, wrong = zip(*((100 * p["served"]["mean"], 100 * p["wrong"]["mean"]) for p in points), strict=True)
    axis.plot(right, wrong, color=colour, label=label, linestyle=linestyle)


def _line(axis, sizes: list[str], values: list[dict], scale: float, centre: str, label: str, colour: int) -> None:
    axis.errorbar(
        [int(size) for size in sizes],
        [scale * value[centre] for value in values],
        yerr=[[scale * around(value, centre)[side, 0] for value in values] for side in (0, 1)],
        label=label,
        color=PALETTE[colour],
        marker="o",
        capsize=2,
    )


def _effort(name: str) -> int:
    return int(name.partition("@")[2] or 0)
