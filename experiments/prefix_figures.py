"""The figures of the prefix cache's experiments."""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import seaborn as sns

from experiments.figures import PALETTE, around, read_summary, save, where


def traces_figure(folder: Path) -> None:
    """Hit rate against the pool's capacity."""
    cells = sorted(read_summary(folder)["capacities"].values(), key=lambda c: c["blocks"])
    sns.set_theme(style="whitegrid", context="paper", font_scale=1.15)
    figure, axis = plt.subplots(figsize=(6.4, 4.2), layout="constrained")
    tokens = [512 * c["blocks"] for c in cells]
    lines = (
        ("hit_rate", "blocks free once a request ends at once", "-o"),
        ("hit_rate_with_batch", "running batch in the pool too", "--s"),
    )
    for (key, label, line), colour in zip(lines, (PALETTE[0], PALETTE[1]), strict=True):
        axis.plot(tokens, [100 * c[key] for c in cells], line, label=label, color=colour)
    axis.set_xscale("log")
    axis.set_ylim(0)
    axis.set_xlabel("capacity of the pool, tokens")
    axis.set_ylabel("blocks found, % of blocks looked up")
    axis.legend(frameon=False, loc="lower right")
    axis.set_title("Mooncake's conversation trace, blocks of 512 tokens")
    save(figure, folder)


def conversations_figure(folder: Path) -> None:
    """Hit rate against the pool's capacity, by conversations at once; whose tokens are reused, by block size."""
    summary = read_summary(folder)
    sns.set_theme(style="whitegrid", context="paper", font_scale=1.1)
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4.4), layout="constrained", width_ratios=(1, 1.15))
    for colour, (at_once, cells) in enumerate(sorted(summary["at_once"].items(), key=lambda item: int(item[0]))):
        ordered = sorted(cells.values(), key=lambda c: c["blocks"])
        tokens = [summary["block"] * c["blocks"] for c in ordered]
        marker = "os^Dv"[colour % 5]
        left.plot(tokens, [100 * c["hit_rate"] for c in ordered], marker=marker, label=at_once, color=PALETTE[colour])
    left.set_xscale("log")
    left.set_ylim(0, 100)
    left.xaxis.set_major_formatter("{x:,.0f}")
    left.set_xlabel("capacity of the pool, tokens")
    left.set_ylabel("blocks found, % of blocks looked up")
    left.legend(title="conversations at once", frameon=False, loc="lower right")
    left.set_title(f"Capacity that chats in turns need (blocks of {summary['block']})")
    sizes = sorted(summary["saved"], key=int)
    parts = (("within", "the chat's own turns"), ("across", "other chats (system prompt)"))
    start = np.zeros(len(sizes))
    for colour, (part, label) in enumerate(parts):
        shares = np.array([100 * summary["saved"][size][part]["mean"] for size in sizes])
        right.barh(range(len(sizes)), shares, left=start, color=PALETTE[colour], label=label)
        start += shares
    right.barh(range(len(sizes)), 100 - start, left=start, color=PALETTE[7], label="computed")
    for y, share in enumerate(start):
        right.text(2, y, f"{share:.1f} % saved", va="center", fontsize=9, color="white")
    right.set_yticks(range(len(sizes)), sizes)
    right.invert_yaxis()
    right.set_xlim(0, 100)
    right.set_xlabel("prompt tokens, %")
    right.set_ylabel("block size, tokens")
    right.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=3)
    right.set_title("Whose tokens are reused, with room for every block")
    figure.suptitle(f"tau-bench's airline agent: {summary['conversations']} conversations, {summary['calls']:,} calls")
    save(figure, folder)


def traffic_figure(folder: Path) -> None:
    """Hit rate and lost tokens under mixed traffic; hit rate and memory of tenants; orders of documents."""
    summary = read_summary(folder)
    sns.set_theme(style="whitegrid", context="paper", font_scale=1.05)
    figure, axes = plt.subplots(1, 4, figsize=(15, 4), layout="constrained")
    names = sorted(summary["mixed"], key=float)
    shares, cells = [100 * float(name) for name in names], [summary["mixed"][name] for name in names]
    _line(axes[0], shares, [c["hit_rate"] for c in cells], "shared prefixes", 0, scale=100)
    axes[0].set_ylabel("hit rate of shared prefixes, %")
    for colour, length in enumerate(sorted(cells[0]["lost_tokens"], key=int)):
        _line(axes[1], shares, [c["lost_tokens"][length] for c in cells], f"{length} blocks", colour)
    axes[1].set_ylabel("prefix tokens computed again per request")
    axes[1].legend(title="shared prefix", frameon=False)
    for axis in axes[:2]:
        axis.set_xlabel("requests that share nothing, %")
    tenants = sorted(summary["tenants"], key=int)
    for colour, kind in enumerate(("shared", "salted")):
        label = "one salt per tenant" if kind == "salted" else "no salt"
        _line(axes[2], range(len(tenants)), [summary["tenants"][t][kind] for t in tenants], label, colour, scale=100)
    axes[2].set_xticks(range(len(tenants)), tenants)
    axes[2].set_xlabel("tenants that send the same documents")
    axes[2].set_ylabel("hit rate, %")
    axes[2].legend(frameon=False)
    for y, value in enumerate(summary["orders"].values()):
        axes[3].barh(y, 100 * value["mean"], color=PALETTE[y])
        axes[3].errorbar(100 * value["mean"], y, xerr=100 * around(value, "mean"), color="black", capsize=2)
    axes[3].set_yticks(range(len(summary["orders"])), [name.replace(" ", "\n", 1) for name in summary["orders"]])
    axes[3].invert_yaxis()
    axes[3].set_xlim(0, 100)
    axes[3].set_xlabel("passages' tokens reused, %")
    titles = ("Mixed traffic", "Who loses most", "Tenants", "Documents reordered")
    for axis, title in zip(axes, titles, strict=True):
        axis.set_title(title)
    save(figure, folder)


def _line(axis, xs, estimates: list[dict], label: str, colour: int, scale: float = 1, centre: str = "mean") -> None:
    bars = np.hstack([scale * around(e, centre) for e in estimates])
    axis.errorbar(
        xs, [scale * e[centre] for e in estimates], yerr=bars, label=label, color=PALETTE[colour], marker="os^D"[colour]
    )


def prefix_figure(folder: Path) -> None:
    """Block size; parts of unique prompts; the side channel; time to first token against the whole answer."""
    summary = read_summary(folder)
    sns.set_theme(style="whitegrid", context="paper", font_scale=1.05)
    figure, axes = plt.subplots(1, 4, figsize=(15, 4), layout="constrained")
    sizes = sorted(summary["block_sizes"], key=int)
    cells = [summary["block_sizes"][size] for size in sizes]
    _line(axes[0], range(len(sizes)), [c["ttft"] for c in cells], "", 0, 1000, "median")
    for x, cell in enumerate(cells):
        place = (x, 1000 * cell["ttft"]["high"])
        axes[0].annotate(
            f"{cell['reused']:,}", place, xytext=(0, 6), textcoords="offset points", ha="center", fontsize=8
        )
    axes[0].set_xticks(range(len(sizes)), sizes)
    axes[0].set_ylim(0, 1200 * max(c["ttft"]["high"] for c in cells))
    axes[0].set_xlabel("block size, tokens (above: tokens reused)")
    axes[0].set_ylabel("TTFT of a hit, ms (median, quartiles)")
    for colour, part in enumerate(("lookup", "store")):
        share = summary["unique"][f"{part}_share"]
        axes[1].bar(colour, 100 * share["mean"], color=PALETTE[colour])
        axes[1].errorbar(colour, 100 * share["mean"], yerr=100 * around(share, "mean"), color="black", capsize=3)
    axes[1].set_xticks((0, 1), ("hash and\nlook up", "write\nblocks"))
    axes[1].set_ylabel("% of a prefill without cache (95 % interval)")
    secrets = sorted(summary["channel"]["shared"], key=int)
    for colour, (kind, label) in enumerate((("shared", "no salt"), ("salted", "one salt per tenant"))):
        found = [summary["channel"][kind][n] for n in secrets]
        _line(axes[2], range(len(secrets)), found, label, colour)
    axes[2].axhline(0.5, color="grey", linewidth=0.8)
    axes[2].set_xticks(range(len(secrets)), secrets)
    axes[2].set_ylim(0, 1.05)
    axes[2].set_xlabel("tokens that the victim sent before")
    axes[2].set_ylabel("AUC, hit or miss told by TTFT")
    axes[2].legend(frameon=False, loc="lower right")
    outputs = sorted(summary["end_to_end"], key=int)
    for colour, (key, label) in enumerate((("ttft_speedup", "first token"), ("speedup", "whole answer"))):
        _line(
            axes[3], range(len(outputs)), [summary["end_to_end"][n][key] for n in outputs], label, colour, 1, "median"
        )
    axes[3].set_xticks(range(len(outputs)), outputs)
    axes[3].set_yscale("log")
    axes[3].set_xlabel("tokens generated")
    axes[3].set_ylabel("speed-up of a hit (median, quartiles)")
    axes[3].set_yticks((1, 2, 5, 10, 20, 50), ("1×", "2×", "5×", "10×", "20×", "50×"))
    axes[3].minorticks_off()
    axes[3].legend(frameon=False)
    titles = ("Block size", "Prompts that share nothing", "Timing side channel", "Decoding is not sped up")
    for axis, title in zip(axes, titles, strict=True):
        axis.set_title(title)
    figure.suptitle(f"{where(folder)}: exact prefix cache")
    save(figure, folder)


def copies_figure(folder: Path) -> None:
    """Contamination without the copy; what a request pays for a shared prefix, by its length."""
    summary = read_summary(folder)
    sns.set_theme(style="whitegrid", context="paper", font_scale=1.1)
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for x, (name, cell) in enumerate(sorted(summary["contamination"].items())):
        left.bar(x, cell["kl"]["mean"], color=PALETTE[x], label=name)
        left.errorbar(x, cell["kl"]["mean"], yerr=around(cell["kl"], "mean"), color="black", capsize=3)
    left.set_xticks((0, 1), ("a copy for\neach question", "no copy"))
    left.set_ylabel("KL at the second answer's first token, nats\n(mean, 95 % interval)")
    left.set_title("Two questions over one StaticCache")
    lengths = sorted(summary["lengths"], key=int)
    labels = {"deepcopy": "copy.deepcopy", "gather": "gather blocks", "share": "pin shared blocks"}
    for colour, (kind, label) in enumerate(labels.items()):
        found = [summary["lengths"][n][kind] for n in lengths]
        _line(right, [int(n) for n in lengths], found, label, colour, 1000, "median")
    right.set_yscale("log")
    right.yaxis.set_major_formatter("{x:g}")
    right.set_xticks([int(n) for n in lengths])
    right.set_xlabel("length of the prefix, tokens")
    right.set_ylabel("ms per request (median, quartiles)")
    right.legend(frameon=False)
    right.set_title("What a request pays for the prefix")
    figure.suptitle(where(folder))
    save(figure, folder)
