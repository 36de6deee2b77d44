"""Figures of the caches that store answers: thresholds, nearest-neighbour search, exact repeats."""

from pathlib import Path

import matplotlib.pyplot as plt
import seaborn as sns
from matplotlib.patches import Patch

from experiments.figures import PALETTE, around, read_summary, save, where
from experiments.semantic_common import LOOSE, PUBLISHED

CHECKS = {"plain": ("threshold alone", 3), "polarity": ("negations and numbers", 1), "content": ("content words", 2)}
SERVED = {"right": 0, "wrong": 3}
INDEX_COLOURS = (0, 1, 2, 4, 5, 8)


def threshold_figure(folder: Path) -> None:
    """Right and wrong answers by threshold; hits by kind of question; wrong against right answers for every check; and
    what a cache of a language model's answers serves."""
    summary = read_summary(folder)
    sns.set_theme(style="whitegrid", context="paper", font_scale=1.1)
    figure, axes = plt.subplots(2, 2, figsize=(13, 11.5), layout="constrained")
    _curves(axes[0, 0], summary["curves"]["plain"])
    _categories(axes[0, 1], summary["by_category"])
    _trade(axes[1, 0], summary)
    _served(axes[1, 1], summary["real"])
    pairs = summary["n"]
    figure.suptitle(f"{where(folder)}: semantic cache ({pairs['same']} pairs with one answer of {pairs['pairs']})")
    save(figure, folder)


def index_figure(folder: Path) -> None:
    """Latency of one search, neighbours and hits that the graph finds, and the time to build, by entries."""
    summary = read_summary(folder)
    sizes = sorted(summary["sizes"], key=int)
    places = [summary["sizes"][size] for size in sizes]
    sns.set_theme(style="whitegrid", context="paper", font_scale=1.1)
    figure, ((latency, recall), (build, hits)) = plt.subplots(2, 2, figsize=(12, 8.6), layout="constrained")
    names = sorted(places[0].keys() - {"build", "real"}, key=_effort)
    for name, colour in zip(names, INDEX_COLOURS, strict=False):
        label = "exact" if name == "exact" else f"graph, efSearch {_effort(name)}"
        _line(latency, sizes, [place[name]["search"] for place in places], 1000, "median", label, colour)
        if name != "exact":
            _line(recall, sizes, [place[name]["recall"] for place in places], 100, "mean", label, colour)
            _line(hits, sizes, [place[name]["hits_kept"] for place in places], 100, "mean", label, colour)
    for name, colour in (("exact", INDEX_COLOURS[0]), ("graph", INDEX_COLOURS[1])):
        seconds = [place["build"][name] for place in places]
        build.plot([int(size) for size in sizes], seconds, label=name, color=PALETTE[colour], marker="o")
    latency.axhline(1, color="black", linewidth=0.8, linestyle=":")
    for axis in (latency, build):
        axis.set_yscale("log")
        axis.yaxis.set_major_formatter("{x:g}")
    latency.set_ylabel("one search without the embedding, ms\n(median, quartiles)")
    recall.set_ylabel("nearest neighbours found, %\n(95 % interval)")
    hits.set_ylabel("hits of exact search that the graph also finds, %\n(95 % interval)")
    build.set_ylabel("adding all entries on one thread, s")
    for axis in (latency, recall, build, hits):
        axis.set_xscale("log")
        axis.set_xticks([int(size) for size in sizes], [f"{int(size):,}" for size in sizes])
        axis.minorticks_off()
        axis.set_xlabel("entries")
        axis.legend(frameon=False)
    real = max(place["real"] for place in places)
    figure.suptitle(f"{where(folder)}: finding the nearest question ({real:,} real ones, the rest mixtures of three)")
    save(figure, folder)


def repeat_figure(folder: Path) -> None:
    """Share of requests that repeat an earlier one byte by byte, of all and by group."""
    summary = read_summary(folder)
    groups = {"all requests": summary["all"]}
    if len(summary["groups"]) > 1:
        groups |= summary["groups"]
    sns.set_theme(style="whitegrid", context="paper", font_scale=1.1)
    figure, axis = plt.subplots(figsize=(9, 1.5 + 0.5 * len(groups)), layout="constrained")
    for y, rates in enumerate(groups.values()):
        rate = rates["repeats"]
        axis.barh(y, 100 * rate["mean"], color=PALETTE[0 if y else 7], height=0.65)
        axis.errorbar(100 * rate["mean"], y, xerr=100 * around(rate, "mean"), color="black", capsize=2)
    labels = [f"{_plain(name)} (n = {rates['repeats']['n']:,})" for name, rates in groups.items()]
    axis.set_yticks(range(len(groups)), labels)
    axis.set_ylim(len(groups) - 0.4, -0.6)
    axis.set_xlim(left=0)
    axis.set_xlabel("requests that repeat an earlier one byte by byte, % (95 % interval)")
    figure.suptitle(f"Exact response cache on {folder.parts[-1]}")
    save(figure, folder)


def _plain(name: str) -> str:
    return name.replace("_", " ")


def _curves(axis, curve: dict) -> None:
    thresholds = [float(t) for t in curve]
    for key, label, colour in (("served", "one answer is right for both", 0), ("wrong", "a hit is wrong", 3)):
        rates = [point[key] for point in curve.values()]
        axis.plot(thresholds, [100 * r["mean"] for r in rates], color=PALETTE[colour], label=label)
        low, high = ([100 * r[bound] for r in rates] for bound in ("low", "high"))
        axis.fill_between(thresholds, low, high, color=PALETTE[colour], alpha=0.2)
    axis.axvspan(PUBLISHED[0], PUBLISHED[-1], color="grey", alpha=0.12, label="published defaults")
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
        axis.plot(thresholds, shares, color=PALETTE[number], label=_plain(name), **style)
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


def _served(axis, real: dict) -> None:
    """By how much the model prefers its own answer to the served one, by kind of pair; how often the two differ."""
    kinds = sorted(real["by_category"].items(), key=lambda item: item[1]["label"])
    for y, (_, found) in enumerate(kinds):
        preference, differs = found["preference"], found["differs"]
        axis.barh(y, preference["mean"], color=PALETTE[SERVED[found["label"]]], height=0.65)
        axis.errorbar(preference["mean"], y, xerr=around(preference, "mean"), color="black", capsize=2)
        end = max(preference["mean"], preference["high"] or 0)
        axis.annotate(f"{100 * differs['mean']:.0f} % differ", (end, y), xytext=(6, -3), textcoords="offset points")
    axis.set_yticks(range(len(kinds)), [f"{_plain(name)}\n(n = {found['differs']['n']})" for name, found in kinds])
    axis.invert_yaxis()
    axis.margins(x=0.25)
    axis.set_xlabel(
        "how much likelier the model finds its own answer than the served one,\n"
        "nats per token (mean, 95 % interval; beside: hits with another text)"
    )
    wrong = real["thresholds"][f"{LOOSE:g}"]["wrong_of_hits"]["mean"]
    share = "none has a label" if wrong is None else f"{100 * wrong:.0f} % are wrong"
    axis.set_title(f"Hits on the model's own answers at {LOOSE:g}: {share}")
    handles = [Patch(color=PALETTE[colour], label=f"{label} by the pair's label") for label, colour in SERVED.items()]
    axis.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2, frameon=False)


def _legend(axis) -> None:
    axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2, frameon=False)


def _path(axis, points, label: str, colour, linestyle: str = "-") -> None:
    right, wrong = zip(*((100 * p["served"]["mean"], 100 * p["wrong"]["mean"]) for p in points), strict=True)
    axis.plot(right, wrong, color=colour, label=label, linestyle=linestyle)


def _line(axis, sizes: list[str], values: list[dict], scale: float, centre: str, label: str, colour: int) -> None:
    axis.errorbar(
        [int(size) * 1.03**colour for size in sizes],  # side by side, or one interval would hide another
        [scale * value[centre] for value in values],
        yerr=[[scale * around(value, centre)[side, 0] for value in values] for side in (0, 1)],
        label=label,
        color=PALETTE[colour],
        marker="o",
        capsize=2,
    )


def _effort(name: str) -> int:
    return int(name.partition("@")[2] or 0)
