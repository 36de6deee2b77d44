"""The figures of the prefix cache's experiments."""

from pathlib import Path

import matplotlib.pyplot as plt
import seaborn as sns

from experiments.figures import PALETTE, read_summary, save


def traces_figure(folder: Path) -> None:
    """Hit rate against the pool's capacity."""
    cells = list(read_summary(folder)["capacities"].values())
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
