"""The figures: one palette, direct labels, every unit named."""

import io
import json
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import seaborn as sns
from matplotlib.colors import LogNorm
from PIL import Image

from replication.atomic import write_atomic

PALETTE = sns.color_palette("colorblind")
STYLE = {  # method -> (label, colour, marker)
    "full": ("full prefill", PALETTE[7], "o"),
    "prefix": ("prefix cache, other order", PALETTE[7], "s"),
    "prefix-same-order": ("prefix cache, same order", PALETTE[7], "D"),
    "naive": ("naive concatenation", PALETTE[3], "X"),
    "full-reuse": ("positions repaired", PALETTE[1], "P"),
    "shared-prefix": ("built behind shared prefix", PALETTE[4], "^"),
    "shared-prefix-blend": ("shared prefix + HKVD", PALETTE[4], "v"),
    "cacheblend-paper": ("CacheBlend (paper)", PALETTE[0], "o"),
    "cacheblend-author": ("CacheBlend (authors' code)", PALETTE[9], "o"),
    "cacheblend-lmcache": ("CacheBlend (LMCache)", PALETTE[0], "d"),
    "first-k": ("first k of each chunk", PALETTE[2], "s"),
    "random": ("random", PALETTE[5], "o"),
    "uniform": ("uniform stride", PALETTE[8], "o"),
    "lowest": ("lowest deviation", PALETTE[6], "v"),
    "oracle": ("oracle", "black", "*"),
    "map-reduce": ("MapReduce", "black", "<"),
    "map-rerank": ("MapRerank", PALETTE[8], ">"),
}
CURVES = ("cacheblend-paper", "first-k", "random")
FACTORS = {
    "position": "wrong positions",
    "sink": "built alone: own sink,\nno shared prefix",
    "cross": "no cross-chunk\nattention",
}


def quality_figure(folder: Path) -> None:
    """KL and gold NLL against speed-up; curves run over recompute ratios, single points are at the answer ratio."""
    summary = read_summary(folder)
    cells = summary["cells"]
    sns.set_theme(style="whitegrid", context="paper", font_scale=1.15)
    figure, axes = plt.subplots(1, 2, figsize=(12, 5.4), sharex=True)
    for axis, metric in zip(axes, ("kl_first", "nll"), strict=True):
        for name, (label, colour, marker) in STYLE.items():
            ratios = sorted(_ratio(c) for c in cells if c.partition("@")[0] == name and "speedup" in cells[c])
            shown = ratios if name in CURVES else [r for r in ratios if r in (0, 15)]
            points = [cells[_name(name, r)] for r in shown]
            if points:
                _errorbar(axis, points, metric, label, colour, marker, line=name in CURVES)
            if name == "cacheblend-paper" and axis is axes[0]:
                for ratio, point in zip(shown, points, strict=True):
                    place = (point["speedup"]["median"], point[metric]["mean"])
                    axis.annotate(f"{ratio:g} %", place, xytext=(3, -12), textcoords="offset points", fontsize=8)
        axis.set_xlabel("TTFT speed-up over transformers' full prefill (median, quartiles)")
        axis.set_xscale("log")
        axis.set_xticks([1, 2, 4, 8, 16], ["1×", "2×", "4×", "8×", "16×"])
        axis.minorticks_off()
    axes[0].set_ylabel("KL(full ‖ method) at first answer token, nats\n(mean, 95 % interval; lower is better)")
    axes[1].set_ylabel("NLL of the gold answer, nats per token\n(mean, 95 % interval; lower is better)")
    bare = f"without any passage: {cells['no-context']['nll']['mean']:.2f} nats"
    axes[1].text(0.02, 0.97, bare, transform=axes[1].transAxes, va="top", fontsize=9, color="grey")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="lower center", ncols=5, frameon=False, fontsize=9)
    figure.suptitle(f"{where(folder)}: fidelity against time to first token (n = {summary['n']})")
    figure.tight_layout(rect=(0, 0.13, 1, 1))
    save(figure, folder)


def factorial_figure(folder: Path) -> None:
    """KL by what is repaired, each fault's Shapley share, and attention under full prefill and under reuse."""
    summary = read_summary(folder)
    sns.set_theme(style="whitegrid", context="paper", font_scale=1.1)
    figure = plt.figure(figsize=(13, 9), layout="constrained")
    top, bottom = figure.subfigures(2, 1, height_ratios=(1, 1.05))
    repairs, shares = top.subplots(1, 2, width_ratios=(1.6, 1))
    _repairs(repairs, summary)
    _shares(shares, summary)
    *maps, sinks = bottom.subplots(1, 3, width_ratios=(1, 1, 0.8))
    _maps(bottom, maps, summary["attention"])
    _sinks(sinks, summary["attention"])
    figure.suptitle(f"{where(folder)}: why naive concatenation fails (n = {summary['n']})")
    save(figure, folder)


def ttft_figure(folder: Path) -> None:
    """TTFT speed-up of every method with the operation-count ceiling, one panel per dtype and length."""
    summary = read_summary(folder)["places"]
    sns.set_theme(style="whitegrid", context="paper", font_scale=1.1)
    figure, axes = plt.subplots(
        1, len(summary), figsize=(2 + 4 * len(summary), 5.4), sharey=True, squeeze=False, layout="constrained"
    )
    for axis, (place, found) in zip(axes[0], summary.items(), strict=True):
        names = [c for method in STYLE for c in found["cells"] if c.partition("@")[0] == method]
        for y, name in enumerate(names):
            entry, (_, colour, _) = found["cells"][name], STYLE[name.partition("@")[0]]
            speed = entry["speedup"]
            axis.barh(y, speed["median"], color=colour, height=0.65)
            axis.errorbar(speed["median"], y, xerr=around(speed, "median"), color="black", capsize=2)
            axis.plot(entry["ceiling"], y, marker="|", markersize=16, color="black", markeredgewidth=2)
            beyond = max(speed["high"], entry["ceiling"]) * 1.06
            axis.text(beyond, y, f"{speed['median']:.1f}×", va="center", fontsize=9)
        axis.set_yticks(range(len(names)), [_label(n) for n in names])
        axis.set_xscale("log")
        axis.set_xticks([1, 2, 4, 8, 16, 32, 64], ["1×", "2×", "4×", "8×", "16×", "32×", "64×"])
        axis.set_xlim(0.5, 130)
        axis.minorticks_off()
        dtype, length = place.split()
        axis.set_title(f"{dtype}, {int(length):,} tokens")
    axes[0][0].invert_yaxis()
    figure.supxlabel("TTFT speed-up over transformers' full prefill\n(median, quartiles; | operation-count ceiling)")
    figure.suptitle(f"{folder.parts[-3]}: time to first token")
    save(figure, folder)


def memory_figure(folder: Path) -> None:
    """Peak of one blend in units of the prompt's KV, of which stored chunks and result are two."""
    places = read_summary(folder)["places"]
    sns.set_theme(style="whitegrid", context="paper", font_scale=1.1)
    figure, axis = plt.subplots(figsize=(6.4, 1.9 + 0.4 * len(places)), layout="constrained")
    for y, place in enumerate(places.values()):
        if place["peak_in_kv"] is not None:
            axis.barh(y, place["peak_in_kv"], color=PALETTE[0], height=0.6)
            axis.text(0.05, y, f"{place['peak_in_kv']:.2f}", va="center", color="white")
    axis.set_yticks(range(len(places)), [f"{d}, {int(n):,} tokens" for d, n in (name.split() for name in places)])
    axis.invert_yaxis()
    axis.axvline(2, color="black", linestyle=":", label="stored chunks and the filled cache")
    axis.axvline(3, color="black", label="bound")
    axis.set_xlim(0, max(4, axis.get_xlim()[1]))
    axis.set_xlabel("peak memory of a blend over the loaded model, × the prompt's KV")
    axis.set_title(f"{folder.parts[-3]}: memory of a blend")
    axis.grid(axis="y", visible=False)
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    save(figure, folder)


def _repairs(axis, summary: dict) -> None:
    shown = {
        "naive concatenation": "stored own absent",
        "positions repaired": "repaired own absent",
        "shared prefix": "stored shared absent",
        "cross-chunk attention": "stored own recomputed",
        "positions + first token dropped": "repaired dropped absent",
        "positions + shared prefix": "repaired shared absent",
        "positions + cross-chunk attention": "repaired own recomputed",
        "all three (full prefill)": "repaired shared recomputed",
    }
    values = [summary["cells"][cell]["kl_first"] for cell in shown.values()]
    colours = [PALETTE[3], *[PALETTE[1]] * 3, *[PALETTE[0]] * 3, PALETTE[7]]
    axis.barh(range(len(values)), [v["mean"] for v in values], color=colours)
    for y, value in enumerate(values):
        axis.errorbar(value["mean"], y, xerr=around(value, "mean"), color="black", capsize=2)
    axis.set_yticks(range(len(values)), list(shown))
    axis.invert_yaxis()
    axis.set_xlabel("KL to full prefill at first answer token, nats (95 % interval)")
    axis.set_title("What each repair leaves")


def _shares(axis, summary: dict) -> None:
    for y, factor in enumerate(FACTORS):
        share = summary["shapley"][factor]["share"]
        axis.barh(y, 100 * share["mean"], color=PALETTE[y])
        axis.errorbar(100 * share["mean"], y, xerr=100 * around(share, "mean"), color="black", capsize=2)
    axis.axvline(0, color="black", linewidth=0.8)
    axis.set_yticks(range(len(FACTORS)), list(FACTORS.values()))
    axis.invert_yaxis()
    axis.set_xlabel("Shapley share of naive's KL, %")
    axis.set_title("Which fault costs how much")


def _maps(figure, axes, attention: dict) -> None:
    count = len(attention["full"]["between"])
    labels = ["prefix", *[str(i) for i in range(1, count - 1)], "question"]
    for axis, (name, title) in zip(axes, (("full", "full prefill"), ("naive", "naive concatenation")), strict=True):
        shares = 100 * np.array(attention[name]["between"])
        image = axis.imshow(np.where(shares > 0, shares, np.nan), cmap="viridis", norm=LogNorm(0.1, 100))
        axis.set_xticks(range(count), labels, rotation=45, ha="right", rotation_mode="anchor")
        axis.set_yticks(range(count), labels if name == "full" else [""] * count)
        axis.set_xlabel("attended chunk")
        axis.set_title(f"Attention, {title}")
        axis.grid(False)
    axes[0].set_ylabel("attending chunk")
    figure.colorbar(
        image, ax=axes, label="share of attention, % (white: none)", shrink=0.8, ticks=(0.1, 1, 10, 100), format="%g"
    )


def _sinks(axis, attention: dict) -> None:
    bars = (("to_heads", "from its own\npassage"), ("from_question", "from the\nquestion"))
    for offset, (name, legend, colour) in enumerate((("full", "full prefill", 7), ("naive", "naive", 3))):
        for x, (key, _) in enumerate(bars):
            value = attention[name][key]
            place = x + 0.4 * offset - 0.2
            axis.bar(place, 100 * value["mean"], 0.38, color=PALETTE[colour], label=legend if x == 0 else None)
            axis.errorbar(place, 100 * value["mean"], yerr=100 * around(value, "mean"), color="black", capsize=2)
    axis.set_xticks(range(len(bars)), [label for _, label in bars])
    axis.set_ylabel("attention to a passage's first token, %")
    axis.set_title("Do passages have their own sinks?")
    axis.legend(frameon=False)


def _errorbar(axis, points: list[dict], metric: str, label: str, colour, marker: str, line: bool) -> None:
    axis.errorbar(
        [p["speedup"]["median"] for p in points],
        [p[metric]["mean"] for p in points],
        xerr=np.hstack([around(p["speedup"], "median") for p in points]),
        yerr=np.hstack([around(p[metric], "mean") for p in points]),
        label=label,
        color=colour,
        marker=marker,
        markersize=7,
        linestyle="-" if line else "none",
        elinewidth=0.8,
    )


def around(estimate: dict, centre: str) -> np.ndarray:
    """Lengths [2, 1] of the error bar below and above the centre; zero where there is no interval."""
    middle = estimate[centre]
    low, high = (middle if estimate[k] is None else estimate[k] for k in ("low", "high"))
    return np.array([[max(0.0, middle - low)], [max(0.0, high - middle)]])


def _label(cell: str) -> str:
    name, _, ratio = cell.partition("@")
    return STYLE[name][0] + (f", {ratio} %" if ratio else "")


def _name(method: str, percent: float) -> str:
    return f"{method}@{percent:g}" if percent else method


def _ratio(cell: str) -> float:
    return float(cell.partition("@")[2] or 0)


def where(folder: Path) -> str:
    return f"{folder.parts[-3]} on {folder.parts[-1]}"


def read_summary(folder: Path) -> dict:
    return json.loads((folder / "summary.json").read_text())


def save(figure, folder: Path) -> None:
    figure.savefig(folder / "figure.pdf", bbox_inches="tight")
    # last and atomic: its presence says that the run is complete
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=160, bbox_inches="tight")
    write_atomic(folder / "figure.png", in_few_colours(image))
    plt.close(figure)


def in_few_colours(image: io.BytesIO) -> bytes:
    """A PNG with a palette of 256 colours: a third of the bytes, and on a figure no difference to be seen."""
    small = io.BytesIO()
    with Image.open(image) as whole:
        whole.convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE, kmeans=3, dither=Image.Dither.NONE).save(
            small, "png", optimize=True
        )
    return small.getvalue()
