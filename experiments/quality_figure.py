"""The quality experiment's figure: fidelity and answers over the values of its sweep."""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import seaborn as sns

from experiments.figures import PALETTE, STYLE, around, read_summary, save, where
from experiments.quality_summary import LIMITS, MARGIN
from experiments.sweeps import SWEEPS

NAMES = {"f1": "F1 of the answer", "rouge_l": "Rouge-L of the summary"}
KL = "KL to full prefill at first answer token, nats"
LOSS = "NLL of the gold answer minus full prefill's,\nnats per token"
TITLES = (
    "Distance from full prefill (lower is better)",
    "Likelihood lost (lower is better)",
    "Answers (higher is better)",
)


def sweep_figure(folder: Path) -> None:
    """Every method over the values: KL, loss of gold likelihood, the answer metric, and what each value needs."""
    summary = in_order(read_summary(folder))
    sns.set_theme(style="whitegrid", context="paper", font_scale=1.1)
    figure, axes = plt.subplots(2, 2, figsize=(11.5, 8.6), layout="constrained")
    series = _series(summary)
    for axis, read, label in zip(axes.flat, (_kl, _nll_loss, _first(summary["metric"])), (KL, LOSS, ""), strict=False):
        for name, points in series.items():
            _draw(axis, name, [(x, read(place, cell)) for x, place, cell in points])
        if label:
            _scale_without_naive(axis, [(name, read(p, c)) for name, points in series.items() for _, p, c in points])
        axis.set_ylabel(label or f"{NAMES[summary['metric']]} (0 to 1)")
        axis.set_xlabel(SWEEPS[summary["sweep"]].axis)
    limit = f"likelihood loss of {LIMITS['nll']} nats"
    axes[0][1].axhline(LIMITS["nll"], color="grey", linestyle=":", linewidth=1.2, label=limit)
    _answers(axes[1][0], summary)
    fourth = _fourth(axes[1][1], summary)
    for axis, title in zip(axes.flat, (*TITLES, fourth), strict=True):
        axis.set_title(title)
    for axis in axes.flat[:3]:
        _ticks(axis, summary)
    axes[1][0].set_xlim(axes[0][0].get_xlim())  # room for values whose answers are not reported
    handles = {}
    for axis in axes.flat:
        handles |= dict(zip(*reversed(axis.get_legend_handles_labels()), strict=True))
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=4, frameon=False)
    figure.suptitle(f"{where(folder)} (n = {summary['n']}; mean, 95 % interval)")
    save(figure, folder)


def in_order(summary: dict) -> dict:
    """The summary with values and ratios rising, where JSON has them in the order of their text (100 before 15)."""
    ranks = {"cells": _method_and_percent, "places": float}
    return summary | {
        part: {name: summary[part][name] for name in sorted(summary[part], key=rank)}
        for part, rank in ranks.items()
        if part in summary
    }


def _method_and_percent(cell: str) -> tuple[str, float]:
    method, _, percent = cell.partition("@")
    return method, float(percent or 0)


def _series(summary: dict) -> dict[str, list[tuple]]:
    """Method -> (x, place, cell) of every point: over ratios, or at one ratio over the values of the prompt."""
    places = summary.get("places") or {"": summary}
    cells = next(iter(places.values()))["cells"]
    if "places" in summary:
        percents = ("", f"{100 * summary['ratio']:g}")
        chosen = {c.partition("@")[0]: c for c in cells if c.partition("@")[2] in percents}
        return {m: [(float(x), p, c) for x, p in places.items()] for m, c in chosen.items() if m != "no-context"}
    found: dict[str, list[tuple]] = {}
    for cell in cells:
        method, _, percent = cell.partition("@")
        if method != "no-context":
            found.setdefault(method, []).append((float(percent) / 100 if percent else None, summary, cell))
    return found


def _kl(place: dict, cell: str) -> dict | None:
    return place["cells"][cell].get("kl_first") if cell != "full" else None


def _nll_loss(place: dict, cell: str) -> dict | None:
    return place["nll_loss"].get(cell)


def _first(metric: str):
    return lambda place, cell: place["cells"][cell].get(metric)


def _draw(axis, name: str, points: list[tuple]) -> None:
    """A line over the values; a method without a ratio is a level in the ratio sweep."""
    label, colour, marker = STYLE.get(name, (name, PALETTE[6], "x"))
    points = [(x, estimate) for x, estimate in points if estimate]
    if not points:
        return
    if points[0][0] is None:
        estimate = points[0][1]
        axis.axhline(estimate["mean"], color=colour, linestyle="--", linewidth=1.4, label=label)
        return
    axis.errorbar(
        [x for x, _ in points],
        [e["mean"] for _, e in points],
        yerr=np.hstack([around(e, "mean") for _, e in points]),
        label=label,
        color=colour,
        marker=marker,
        markersize=6,
        elinewidth=0.8,
    )


def _scale_without_naive(axis, estimates: list[tuple[str, dict | None]]) -> None:
    """Where naive concatenation lies far above all others, the axis shows those, and its mean stands at the edge."""
    naive = max((e["mean"] for name, e in estimates if e and name == "naive"), default=0)
    top = 1.5 * max((e["high"] for name, e in estimates if e and name != "naive"), default=0)
    if naive > top > 0:
        label, colour, _ = STYLE["naive"]
        axis.set_ylim(top=top)
        place = {"transform": axis.transAxes, "ha": "right", "va": "top", "backgroundcolor": "white"}
        axis.text(0.98, 0.96, f"{label}: {naive:.2f}", color=colour, **place)


def _ticks(axis, summary: dict) -> None:
    if "places" not in summary:
        axis.xaxis.set_major_formatter(lambda x, _: f"{100 * x:g} %")
        return
    values = [float(x) for x in summary["places"]]
    if summary["sweep"] != "order":
        axis.set_xscale("log", base=2)
    axis.set_xticks(values, [f"{v:g}" for v in values])
    axis.minorticks_off()


def _answers(axis, summary: dict) -> None:
    """What the gate says, and how many questions can be answered at all."""
    places = summary.get("places") or {"": summary}
    metric = summary["metric"]
    closed = [x for x, place in places.items() if not place["gate"]["open"][metric]]
    if len(closed) == len(places):
        note = "not reported: full prefill does not beat\nno passages with certainty"
        axis.text(0.5, 0.5, note, transform=axis.transAxes, ha="center", va="center", color="grey")
        return
    for x in closed:
        note = "gate closed"
        axis.text(float(x), 0.5, note, transform=axis.get_xaxis_transform(), rotation=90, ha="center", color="grey")
    if "places" not in summary:
        full = summary["cells"]["full"][metric]["mean"]
        axis.axhspan(full - MARGIN, full + MARGIN, color="grey", alpha=0.2, label=f"full prefill ± {MARGIN}")
    elif summary["sweep"] == "retrieval" and metric == "f1":
        shares = [(float(x), place["answerable"]["share"]["mean"]) for x, place in places.items()]
        axis.plot(*zip(*shares, strict=True), color="grey", linestyle="-.", label="share with the answer retrieved")


def _fourth(axis, summary: dict) -> str:
    """The ratio that each value needs; for orders, how far they move an example; for ratios, times. Returns a title."""
    if summary["sweep"] == "order":
        _bars(axis, {name: found["nll"] for name, found in summary["spread"].items()}, "mean")
        axis.set_xlabel("standard deviation of NLL over orders,\nnats per token")
        return "How far the order moves an answer"
    if "places" in summary:
        _needed(axis, summary)
        return "What CacheBlend must recompute"
    timed = {name: cell["speedup"] for name, cell in summary["cells"].items() if "speedup" in cell}
    _bars(axis, timed, "median")
    axis.set_xlabel("TTFT speed-up over transformers' full prefill\n(median, quartiles)")
    return "Time"


def _needed(axis, summary: dict) -> None:
    places = summary["places"]
    values = [float(x) for x in places]
    answer = NAMES[summary["metric"]].partition(" ")[0]
    marks = {
        "nll": ("black", "o", f"ratio for NLL loss ≤ {LIMITS['nll']} nats"),
        "first": ("grey", "s", f"ratio for {answer} loss ≤ {LIMITS['first']}"),
    }
    for shift, (name, (colour, marker, label)) in enumerate(marks.items()):
        found = [(k, place["needed"][name]) for k, place in enumerate(places.values()) if place["needed"][name]]
        if found:
            axis.errorbar(
                [k + 0.12 * shift for k, _ in found],
                [100 * e["value"] for _, e in found],
                yerr=np.hstack([100 * around(e, "value") for _, e in found]),
                color=colour,
                marker=marker,
                linestyle="none",
                capsize=3,
                label=label,
            )
    axis.set_xticks(range(len(values)), [f"{v:g}" for v in values])
    axis.set_ylim(-5, 105)
    axis.set_xlabel(SWEEPS[summary["sweep"]].axis)
    axis.set_ylabel("least ratio that suffices, %")


def _bars(axis, found: dict[str, dict], centre: str) -> None:
    for y, (name, estimate) in enumerate(found.items()):
        axis.barh(y, estimate[centre], color=STYLE.get(name.partition("@")[0], ("", PALETTE[6], ""))[1])
        axis.errorbar(estimate[centre], y, xerr=around(estimate, centre), color="black", capsize=2)
    axis.set_yticks(range(len(found)), [_label(name) for name in found])
    axis.invert_yaxis()


def _label(cell: str) -> str:
    name, _, percent = cell.partition("@")
    return STYLE.get(name, (name,))[0] + (f", {percent} %" if percent else "")
