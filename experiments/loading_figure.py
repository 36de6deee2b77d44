"""The figure of `loading`: one request's timeline, TTFT by device and by ratio, and predicted against measured."""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import seaborn as sns
from matplotlib.ticker import LogLocator, NullFormatter

from experiments.figures import PALETTE, around, read_summary, save, where
from experiments.loading_summary import MODES, REUSE
from replication.records import read_records

COLOURS = {"load": PALETTE[1], "compute": PALETTE[0]}
MODE_LABELS = {
    "sequential": "no overlap",
    "pipelined": "next layer loaded\nmeanwhile (paper)",
    "prefetched": "all layers ahead",
}
MARKERS = dict(zip(MODES, "sod", strict=True))


def loading_figure(folder: Path) -> None:
    """Reads the folder's summary, and the traced requests from its records."""
    summary, records = read_summary(folder), read_records(folder)
    traced = [r for r in records if "events" in r.get("seconds", {})]
    sns.set_theme(style="whitegrid", context="paper", font_scale=1.1)
    figure, axes = plt.subplots(2, 2, figsize=(13, 9), layout="constrained")
    _timeline(axes[0][0], traced)
    _by_device(axes[0][1], summary, traced[0]["cell"])
    _by_ratio(axes[1][0], summary)
    _predicted(axes[1][1], summary)
    figure.suptitle(f"{where(folder)}: recompute behind loading")
    save(figure, folder)


def _timeline(axis, traced: list[dict]) -> None:
    """What the loader and the computation do when, in each mode."""
    rows = [(record, kind) for record in traced for kind in COLOURS]
    for y, (record, kind) in enumerate(rows):
        spans = [
            (1000 * begin, 1000 * (end - begin)) for name, _, begin, end in record["seconds"]["events"] if name == kind
        ]
        place = y + 0.5 * (y // 2)
        axis.broken_barh(spans, (place - 0.4, 0.8), facecolor=COLOURS[kind], edgecolor="white", linewidth=0.4)
        if kind == "compute":
            end = 1000 * record["seconds"]["ttft"]
            axis.annotate(f" {end:,.0f} ms", (end, place), va="center", fontsize=9)
    axis.set_yticks([2.5 * i + 0.5 for i in range(len(traced))], [MODE_LABELS[r["mode"]] for r in traced])
    axis.invert_yaxis()
    axis.set_xlim(0, 1150 * max(r["seconds"]["ttft"] for r in traced))
    axis.set_xlabel("ms since the request came")
    axis.grid(False, axis="y")
    handles = [plt.Rectangle((0, 0), 1, 1, color=colour) for colour in COLOURS.values()]
    labels = ["loader: read a layer, move its keys", "model: compute a layer"]
    axis.legend(handles, labels, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=2)
    axis.set_title(f"One request, KV from a device of {traced[0]['device']}")


def _by_device(axis, summary: dict, blend: str) -> None:
    """TTFT from every device, the slowest first."""
    devices = _by_throughput(summary)
    lines = (
        (REUSE, "pipelined", "full reuse, nothing recomputed", PALETTE[2], "-"),
        (blend, "sequential", f"CacheBlend {blend.partition('@')[2]} %, no overlap", PALETTE[0], ":"),
        (blend, "pipelined", f"CacheBlend {blend.partition('@')[2]} %, pipelined", PALETTE[0], "-"),
    )
    for name, mode, label, colour, style in lines:
        places, found = zip(
            *[
                (x, summary["devices"][d]["cells"][name][mode])
                for x, d in enumerate(devices)
                if mode in summary["devices"][d]["cells"][name]
            ],
            strict=True,
        )
        bars = np.hstack([1000 * around(cell["ttft"], "median") for cell in found])
        middles = [1000 * cell["ttft"]["median"] for cell in found]
        axis.errorbar(places, middles, yerr=bars, label=label, color=colour, linestyle=style, marker=MARKERS[mode])
    axis.axhline(1000 * summary["full"]["median"], color=PALETTE[7], label="full prefill, nothing loaded")
    rates = {d: f"({summary['controller'][d]['throughput'] / 1e9:.2g})" for d in devices}
    axis.set_xticks(range(len(devices)), [f"{name} {rate}".replace(" ", "\n") for name, rate in rates.items()])
    axis.set_yscale("log")
    axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.yaxis.set_major_formatter("{x:,.0f}")
    axis.yaxis.set_minor_formatter(NullFormatter())
    axis.set_xlabel("where the KV is (GB/s measured, checksum and moved keys included)")
    axis.set_ylabel("TTFT, ms (median, quartiles)")
    axis.legend(frameon=False, fontsize=9, loc="upper right", bbox_to_anchor=(1, 0.9))
    axis.set_title("TTFT by where the KV is")


def _by_ratio(axis, summary: dict) -> None:
    """TTFT against the recompute ratio, from memory and from the slow device; and what the controller picks."""
    slow = _by_throughput(summary)[0]
    for name, colour in ((slow, PALETTE[1]), ("memory", PALETTE[0])):
        cells = {float(c.partition("@")[2]): v for c, v in summary["devices"][name]["cells"].items() if "@" in c}
        ratios = sorted(cells)
        found = [cells[ratio]["pipelined"]["ttft"] for ratio in ratios]
        bars = np.hstack([1000 * around(ttft, "median") for ttft in found])
        axis.errorbar(
            ratios, [1000 * t["median"] for t in found], yerr=bars, color=colour, marker="o", label=f"from {name}"
        )
    reuse = 1000 * summary["devices"][slow]["cells"][REUSE]["pipelined"]["ttft"]["median"]
    axis.axhline(reuse, color=PALETTE[2], linestyle=":", label=f"full reuse from {slow}")
    chosen = 100 * summary["swept"]["ratio"]
    axis.axvline(chosen, color="black", linestyle="--", linewidth=1)
    measured = 100 * summary["swept"]["measured_ratio"]["median"]
    text = f" controller: {chosen:.0f} %\n (measured: {measured:.0f} %)"
    axis.annotate(text, (chosen, 0.03), xycoords=("data", "axes fraction"))
    axis.set_ylim(0)
    axis.set_xlabel("recomputed tokens, %")
    axis.set_ylabel("TTFT, ms (median, quartiles)")
    axis.legend(frameon=False)
    axis.set_title("What more recompute costs, from a slow device and from memory")


def _predicted(axis, summary: dict) -> None:
    """Each device, method and mode: TTFT as the formula has it and as it was."""
    cells = [modes for name, d in summary["devices"].items() if name != "memory" for modes in d["cells"].values()]
    for colour, mode in enumerate(MODES):
        found = [modes[mode] for modes in cells if mode in modes]
        points = [(1000 * c["predicted"], 1000 * c["ttft"]["median"]) for c in found]
        label = f"{MODE_LABELS[mode]}: {100 * summary['error'][mode]['median']:.0f} % off".replace("\n", " ")
        axis.scatter(*zip(*points, strict=True), color=PALETTE[colour], marker=MARKERS[mode], label=label, alpha=0.8)
    edge = [axis.get_xlim()[1], axis.get_ylim()[1]]
    low, high = 0.8 * min(1000 * m["predicted"] for c in cells for m in c.values()), 1.1 * max(edge)
    axis.plot((low, high), (low, high), color="black", linewidth=0.8)
    axis.set_xscale("log")
    axis.set_yscale("log")
    for each in (axis.xaxis, axis.yaxis):
        each.set_major_locator(LogLocator(subs=(1, 2, 5)))
        each.set_major_formatter("{x:,.0f}")
        each.set_minor_formatter(NullFormatter())
    axis.set_xlabel("TTFT predicted from load and compute times of each layer, ms")
    axis.set_ylabel("TTFT measured, ms (median)")
    axis.legend(frameon=False)
    axis.set_title("Every device, method and mode")


def _by_throughput(summary: dict) -> list[str]:
    """Devices, the slowest first; throttled ones by their rate, which a checksum can hide from the measurement."""
    measured = summary["controller"]
    throttled = sorted((d for d in measured if d[0].isdigit()), key=lambda d: float(d.split()[0]))
    return throttled + sorted(measured.keys() - set(throttled), key=lambda d: measured[d]["throughput"])
