"""The figure of `request_cache`: decode time, bytes, a chat's prefill, quantized kinds."""

from pathlib import Path

import matplotlib.pyplot as plt
import seaborn as sns
from matplotlib.ticker import MaxNLocator

from experiments.figures import PALETTE, around, read_summary, save

DTYPES = {"float32": (PALETTE[0], "o"), "bfloat16": (PALETTE[1], "s"), "float16": (PALETTE[2], "D")}
KINDS = {
    "full": ("full precision", PALETTE[7], "o"),
    "fp8": ("fp8", PALETTE[2], "D"),
    "quanto-int4": ("int4", PALETTE[0], "s"),
    "quanto-int4-channel": ("int4, keys per channel", PALETTE[9], "s"),
    "quanto-int2": ("int2", PALETTE[3], "X"),
    "quanto-int2-channel": ("int2, keys per channel", PALETTE[1], "X"),
    "hqq-int8": ("HQQ int8", PALETTE[4], "^"),
    "hqq-int4": ("HQQ int4", PALETTE[5], "v"),
}


def request_cache_figure(folder: Path) -> None:
    summary = read_summary(folder)
    sns.set_theme(style="whitegrid", context="paper", font_scale=1.1)
    figure, axes = plt.subplots(2, 2, figsize=(13, 9.6), layout="constrained")
    _times(axes[0, 0], summary["places"])
    _bytes(axes[0, 1], summary["places"])
    if summary["chat"]:
        _chat(axes[1, 0], summary["chat"])
    else:
        axes[1, 0].remove()
    _kinds(axes[1, 1], summary["quantized"])
    figure.suptitle(f"{folder.parts[-3]} on {folder.parts[-1]}: the KV cache of one request")
    save(figure, folder)


def _times(axis, places: dict) -> None:
    for dtype, rows in _by_dtype(places).items():
        colour, marker = DTYPES[dtype]
        for way, line, filled in (("without", "--", "white"), ("with", "-", colour)):
            axis.errorbar(
                list(rows),
                [row[way]["median"] for row in rows.values()],
                yerr=_bars([row[way] for row in rows.values()]),
                color=colour,
                marker=marker,
                markerfacecolor=filled,
                linestyle=line,
                label=f"{dtype}, {way} cache",
            )
        axis.plot(
            list(rows),
            [row["bound"]["median"] for row in rows.values()],
            color=colour,
            linestyle=":",
            label=f"{dtype}, weights and KV read once",
        )
    lengths = sorted({int(place.split()[1]) for place in places})
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.set_xticks(lengths, [f"{n:,}" for n in lengths])
    axis.set_xlabel("context, tokens")
    axis.set_ylim(top=10 * axis.get_ylim()[1])  # room for the legend
    axis.set_ylabel("seconds per decoded token (median, quartiles)")
    axis.set_title("Decode time and the bound of memory traffic")
    axis.legend(frameon=False, fontsize=8, loc="upper left", ncols=2)


def _bytes(axis, places: dict) -> None:
    for dtype, rows in _by_dtype(places).items():
        colour, marker = DTYPES[dtype]
        lengths = list(rows)
        axis.plot(lengths, [n * rows[n]["bytes_per_token"] / 2**20 for n in lengths], color=colour)
        per_token = rows[lengths[0]]["bytes_per_token"]
        label = f"{dtype}: {per_token:,} bytes per token"
        axis.plot(lengths, [rows[n]["bytes"] / 2**20 for n in lengths], marker, color=colour, label=label)
    axis.set_xlabel("context, tokens")
    axis.set_ylabel("MiB of K and V (points measured, line by formula)")
    axis.set_title("Memory that the cache takes")
    axis.legend(frameon=False)


def _chat(axis, chat: dict) -> None:
    dtype = _in_order(chat)[0]
    found = chat[dtype]
    turns = range(1, len(found["turns"]) + 1)
    for key, label, colour in (
        ("prompt", "prompt: all prefilled without a kept cache", PALETTE[7]),
        ("prefilled", "prefilled with the kept cache", PALETTE[0]),
    ):
        axis.bar(turns, [turn[key] for turn in found["turns"]], color=colour, label=label)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.set_xlabel("turn of the chat")
    axis.set_ylabel("tokens (mean over chats)")
    last = found["turns"][-1]
    seconds = f"{last['fresh']['median']:.2f} s without, {last['kept']['median']:.2f} s with ({dtype})"
    axis.set_title(f"What a turn prefills; TTFT of the last: {seconds}", fontsize=11)
    axis.legend(frameon=False, loc="upper left")


def _kinds(axis, quantized: dict) -> None:
    """Filled markers for the first dtype, open ones for the second."""
    dtypes = _in_order(quantized)
    for dtype, fill in zip(dtypes, ("full", "none"), strict=False):
        for kind, found in quantized[dtype].items():
            label, colour, marker = KINDS[kind]
            place = found["bytes_ratio"]["mean"], found["nll_difference"]["mean"]
            axis.errorbar(
                *place,
                yerr=around(found["nll_difference"], "mean"),
                color=colour,
                marker=marker,
                markersize=8,
                fillstyle=fill,
                linestyle="none",
                label=label if fill == "full" else None,
            )
            step = f"{found['step_ratio']['median']:.1f}×"
            below = kind.endswith("channel")  # it lies close to the kind that shares scales along tokens
            axis.annotate(step, place, xytext=(7, -11 if below else 4), textcoords="offset points", fontsize=8)
    axis.axhline(0, color="black", linewidth=0.8)
    axis.set_xlabel("times fewer bytes than full precision (beside the point: times longer a step)")
    axis.set_ylabel("rise of NLL, nats per token (paired mean, 95 % interval)")
    axis.set_title(f"Quantized kinds, from {' (filled) and '.join(dtypes)}{' (open)' * (len(dtypes) > 1)}")
    axis.legend(frameon=False, fontsize=9)


def _by_dtype(places: dict) -> dict[str, dict[int, dict]]:
    """dtype -> length -> what was found there."""
    found: dict[str, dict[int, dict]] = {}
    for place, row in places.items():
        dtype, length = place.split()
        found.setdefault(dtype, {})[int(length)] = row
    return {dtype: dict(sorted(found[dtype].items())) for dtype in _in_order(found)}


def _in_order(by_dtype: dict) -> list[str]:
    return [dtype for dtype in DTYPES if dtype in by_dtype]


def _bars(estimates: list[dict]) -> list[list[float]]:
    return [[e["median"] - e["low"] for e in estimates], [e["high"] - e["median"] for e in estimates]]
