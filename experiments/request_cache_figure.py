"""The figure of `request_cache`: decode time, bytes, a chat's prefill, quantized kinds."""

from pathlib import Path

import matplotlib.pyplot as plt
import seaborn as sns

from experiments.figures import PALETTE, _around, _save, _summary

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
    summary = _summary(folder)
    sns.set_theme(style="whitegrid", context="paper", font_scale=1.1)
    figure, axes = plt.subplots(2, 2, figsize=(13, 9.6), layout="constrained")
    _times(axes[0, 0], summary["places"])
    _bytes(axes[0, 1], summary["places"])
    _chat(axes[1, 0], summary["chat"])
    _kinds(axes[1, 1], summary["quantized"])
    figure.suptitle(f"{folder.parts[-3]} on {folder.parts[-1]}: the KV cache of one request")
    _save(figure, folder)


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
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    _lengths(axis, places)
    axis.set_ylabel("seconds per decoded token (median, quartiles)")
    axis.set_title("Decode time and the bound of memory traffic")
    axis.legend(frameon=False, fontsize=8)


def _bytes(axis, places: dict) -> None:
    for dtype, rows in _by_dtype(places).items():
        colour, marker = DTYPES[dtype]
        lengths = list(rows)
        axis.plot(lengths, [n * rows[n]["bytes_per_token"] / 2**20 for n in lengths], color=colour)
        per_token = rows[lengths[0]]["bytes_per_token"]
        label = f"{dtype}: {per_token:,} bytes per token"
        axis.plot(lengths, [rows[n]["bytes"] / 2**20 for n in lengths], marker, color=colour, label=label)
    _lengths(axis, places)
    axis.tick_params(axis="x", rotation=45)
    axis.set_ylabel("MiB of K and V (points measured, line by formula)")
    axis.set_title("Memory that the cache takes")
    axis.legend(frameon=False)


def _chat(axis, chat: dict) -> None:
    dtype, found = next(iter(chat.items()))
    turns = range(1, len(found["turns"]) + 1)
    for key, label, colour in (
        ("prompt", "prompt: all prefilled without a kept cache", PALETTE[7]),
        ("prefilled", "prefilled with the kept cache", PALETTE[0]),
    ):
        axis.bar(turns, [turn[key] for turn in found["turns"]], color=colour, label=label)
    axis.set_xlabel("turn of the chat")
    axis.set_ylabel("tokens (mean over chats)")
    last = found["turns"][-1]
    seconds = f"{last['fresh']['median']:.2f} s without, {last['kept']['median']:.2f} s with ({dtype})"
    axis.set_title(f"What a turn prefills; TTFT of the last: {seconds}", fontsize=11)
    axis.legend(frameon=False, loc="upper left")


def _kinds(axis, quantized: dict) -> None:
    for dtype, style in zip(quantized, ("full", "none"), strict=False):
        for kind, found in quantized[dtype].items():
            label, colour, marker = KINDS[kind]
            axis.errorbar(
                found["bytes_ratio"]["mean"],
                found["nll"]["mean"],
                yerr=_around(found["nll"], "mean"),
                color=colour,
                marker=marker,
                markersize=8,
                fillstyle=style,
                linestyle="none",
                label=f"{label}, {dtype}: step {found['step_ratio']['median']:.1f}×",
            )
    axis.set_xlabel("bytes of the full-precision cache over its own")
    axis.set_ylabel("NLL of the text that follows, nats per token\n(mean, 95 % interval)")
    axis.set_title("Quantized kinds: memory against quality and step time")
    axis.legend(frameon=False, fontsize=8)


def _by_dtype(places: dict) -> dict[str, dict[int, dict]]:
    """dtype -> length -> what was found there."""
    found: dict[str, dict[int, dict]] = {}
    for place, row in places.items():
        dtype, length = place.split()
        found.setdefault(dtype, {})[int(length)] = row
    return found


def _lengths(axis, places: dict) -> None:
    lengths = sorted({int(place.split()[1]) for place in places})
    axis.set_xticks(lengths, [f"{n:,}" for n in lengths])
    axis.minorticks_off()
    axis.set_xlabel("context, tokens")


def _bars(estimates: list[dict]) -> list[list[float]]:
    return [[e["median"] - e["low"] for e in estimates], [e["high"] - e["median"] for e in estimates]]
