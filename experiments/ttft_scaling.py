"""Time to first token by prompt length, in half precision: `ttft` for a GPU, with fewer methods and longer prompts
(S-22).

Chunks lie in the GPU's memory. TTFT does not depend on what the weights are, so random ones serve for a model of this
size and context: `scripts/random_model.py` makes one.
"""

from dataclasses import dataclass
from pathlib import Path

import matplotlib.pyplot as plt
import seaborn as sns

from experiments import ttft
from experiments.figures import STYLE, around, read_summary, save
from experiments.ttft import run
from replication.measure import cell, cells_at

__all__ = ["TITLE", "Config", "plot", "run", "summarise"]

TITLE = "TTFT from 1,024 to 32,768 tokens in half precision, for a GPU"
TIMED = ("cacheblend-paper", "cacheblend-lmcache", "first-k", "full", "prefix-same-order", "full-reuse")
TICKS = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True)
class Config(ttft.Config):
    """As of `ttft`."""

    n: int = 600
    dtypes: tuple[str, ...] = ("float16", "bfloat16")
    lengths: tuple[int, ...] = (1024, 2048, 4096, 8192, 16384, 32768)
    chunk: int = 512
    rounds: int = 5

    def cells(self) -> list[tuple[str, float]]:
        return cells_at(TIMED, self.ratio)


def summarise(records: list[dict], config: Config) -> dict:
    """As of `ttft`; growth: by dtype, the speed-up of the paper's variant at the longest prompt over the shortest's."""
    summary = ttft.summarise(records, config)
    name = cell("cacheblend-paper", config.ratio)
    speedups = {place: found["cells"][name]["speedup"]["median"] for place, found in summary["places"].items()}
    ends = min(config.lengths), max(config.lengths)
    growth = {d: speedups[f"{d} {ends[1]}"] / speedups[f"{d} {ends[0]}"] for d in config.dtypes}
    return {**summary, "growth": growth}


def plot(folder: Path) -> None:
    """Above, TTFT; below, the speed-up over transformers' full prefill; a column for each dtype."""
    places = read_summary(folder)["places"]
    dtypes = list(dict.fromkeys(place.split()[0] for place in places))
    sns.set_theme(style="whitegrid", context="paper", font_scale=1.1)
    figure, axes = plt.subplots(
        2,
        len(dtypes),
        figsize=(2 + 5 * len(dtypes), 7.4),
        sharex=True,
        sharey="row",
        squeeze=False,
        layout="constrained",
    )
    for column, dtype in enumerate(dtypes):
        found = {int(place.split()[1]): cells["cells"] for place, cells in places.items() if place.split()[0] == dtype}
        for name in next(iter(found.values())):
            method, _, ratio = name.partition("@")
            label, colour, marker = STYLE.get(method, ("transformers' full prefill", "black", "x"))
            label += f", {ratio} %" if ratio else ""
            for axis, key in ((axes[0][column], "ttft"), (axes[1][column], "speedup")):
                values = [cells[name][key] for cells in found.values()]
                bars = [[around(value, "median")[side, 0] for value in values] for side in (0, 1)]
                medians = [value["median"] for value in values]
                axis.errorbar(list(found), medians, yerr=bars, label=label, color=colour, marker=marker, elinewidth=0.8)
        axes[0][column].set_title(dtype)
        axes[0][column].set_yscale("log")
        axes[1][column].set_yscale("log", base=2)
        axes[1][column].set_yticks(TICKS, [f"{tick}×" for tick in TICKS])
        axes[1][column].set_xscale("log", base=2)
        axes[1][column].set_xticks(list(found), [f"{length:,}" for length in found])
        axes[1][column].minorticks_off()
        axes[1][column].set_xlabel("prompt, tokens")
    axes[0][0].set_ylabel("TTFT, s (median, quartiles)")
    axes[1][0].set_ylabel("speed-up over transformers'\nfull prefill (median, quartiles)")
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    figure.suptitle(f"{folder.parts[-3]}: time to first token by prompt length")
    save(figure, folder)
