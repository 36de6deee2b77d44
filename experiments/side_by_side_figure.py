"""The figure of `side_by_side`: a row for each system and a column for each price, to choose one at a glance."""

from pathlib import Path

import matplotlib.pyplot as plt
import seaborn as sns
from matplotlib.patches import Patch

from experiments.figures import PALETTE, around, read_summary, save, where
from experiments.side_by_side_summary import FULL, NO_CACHE, PROMPT_CACHE

RISKS = {  # what a hit risks -> (colour, label)
    "exact": (PALETTE[0], "exact: the same answer"),
    "near": (PALETTE[1], "approximate: the answer may change"),
    "wrong": (PALETTE[3], "may serve another question's answer"),
    "none": (PALETTE[7], "nothing is kept between requests"),
}
ROWS = {  # system -> (label, risk)
    NO_CACHE: ("no KV cache at all", "none"),
    FULL: ("full prefill each time", "none"),
    "prefix": ("prefix cache", "exact"),
    PROMPT_CACHE: ("provider's prompt cache", "exact"),
    "cacheblend": ("chunks, CacheBlend", "near"),
    "shared-prefix": ("chunks, shared prefix", "near"),
    "response": ("response cache", "exact"),
    "semantic": ("semantic cache", "wrong"),
    "response+prefix": ("response → prefix", "exact"),
    "response+cacheblend": ("response → CacheBlend", "near"),
    "response+semantic+prefix": ("response → semantic → prefix", "wrong"),
    "response+semantic+cacheblend": ("response → semantic → CacheBlend", "wrong"),
}
GROUPS = {0: "no cache between requests", 2: "one cache alone", 8: "stacks"}  # first row -> title
RATIOS = {
    "ttft_ratio": "time to first token",
    "total_ratio": "time to last token",
    "prefilled_ratio": "tokens prefilled",
    "bill_ratio": "provider's bill",
}
MOST = 1.5  # where bars are cut
SMALL = 9.5


def side_by_side_figure(folder: Path) -> None:
    """Times, tokens and bill over full prefill's, memory, and answers; the least of all caches is bold."""
    summary = read_summary(folder)
    systems = summary["systems"]
    sns.set_theme(style="white", context="paper", font_scale=1.15)
    figure, axes = plt.subplots(1, 6, figsize=(17, 7.6), sharey=True, layout="constrained")
    for axis, (key, title) in zip(axes, RATIOS.items(), strict=False):
        _ratios(axis, {name: systems[name][key] for name in ROWS if key in systems[name]})
        axis.set_title(title)
    _memory(axes[4], {name: systems[name]["bytes"] for name in ROWS if "bytes" in systems[name]})
    _answers(axes[5], {name: systems[name] for name in ROWS if "wrong" in systems[name]})
    axes[0].set_yticks([_place(name) for name in ROWS], [label for label, _ in ROWS.values()])
    axes[0].set_ylim(_place(list(ROWS)[-1]) + 0.6, -1)
    for first, title in GROUPS.items():
        place = (-0.03, _place(list(ROWS)[first]) - 0.75)
        axes[0].text(*place, title, transform=axes[0].get_yaxis_transform(), ha="right", va="center", weight="bold")
    for axis in axes:
        sns.despine(ax=axis, left=True)
        axis.tick_params(left=False)
    handles = [Patch(color=colour, label=label) for colour, label in RISKS.values()]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False)
    figure.suptitle(
        f"{where(folder)}: {summary['n']} requests of one stream through every cache"
        "\n(less is better, the least is bold; – does not apply, or is the provider's to know)"
    )
    save(figure, folder)


def _place(name: str) -> float:
    """From the top, with room for a title above each group."""
    number = list(ROWS).index(name)
    return number + 0.8 * (sum(number >= first for first in GROUPS) - 1)


def _ratios(axis, estimates: dict[str, dict]) -> None:
    least = _least({name: estimate["mean"] for name, estimate in estimates.items()})
    for name in ROWS:
        if name not in estimates:
            _text(axis, name, 0, "–")
            continue
        mean, high = estimates[name]["mean"], estimates[name]["high"] or 0
        _bar(axis, name, min(mean, MOST))
        if high < MOST:
            axis.errorbar(mean, _place(name), xerr=around(estimates[name], "mean"), color="black", elinewidth=1)
        shown = f"{mean:.2f}×" if mean < MOST else f"▸ {mean:.1f}×"
        _text(axis, name, min(max(mean, high), MOST), shown, name in least)
    axis.axvline(1, color="black", linewidth=0.8, linestyle=":", zorder=0)
    axis.set_xlim(0, MOST * 1.4)
    axis.set_xticks([0, 1], ["0", "1×"])
    axis.set_xlabel("over full prefill's\n(mean, 95 % interval)")


def _memory(axis, held: dict[str, int]) -> None:
    least = _least(held)
    for name in ROWS:
        if name in held:
            _bar(axis, name, held[name])
            _text(axis, name, held[name], _size(held[name]), name in least)
        else:
            _text(axis, name, 0, "–")
    axis.set_xlim(0, 1.7 * max(held.values()))
    axis.set_xticks([0])
    axis.set_title("memory kept")
    axis.set_xlabel("between requests,\nafter the last one")


def _size(count: int) -> str:
    if count == 0:
        return "0"
    return f"{count / 2**20:.0f} MiB" if count >= 2**20 else f"{count / 2**10:.0f} KiB"


def _answers(axis, systems: dict[str, dict]) -> None:
    """Answers to another question filled, those changed in another way hatched."""
    wrong, changed = ({n: 100 * s[key]["mean"] for n, s in systems.items()} for key in ("wrong", "changed"))
    least = _least({name: wrong[name] + changed[name] for name in systems})
    for name in ROWS:
        if name not in systems:
            _text(axis, name, 0, "–")
            continue
        _bar(axis, name, wrong[name])
        _bar(axis, name, changed[name], left=wrong[name], facecolor="white", hatch="////")
        text = f"{wrong[name]:.0f} + {changed[name]:.0f}" if wrong[name] + changed[name] else "0"
        _text(axis, name, wrong[name] + changed[name], text, name in least)
    axis.set_xlim(0, 1.6 * max(1, *(wrong[name] + changed[name] for name in systems)))
    axis.set_title("wrong answers, %")
    axis.set_xlabel("another question's (filled)\n+ changed (hatched)")


def _bar(axis, name: str, length: float, **style) -> None:
    colour = RISKS[ROWS[name][1]][0]
    style = {"facecolor": colour, "edgecolor": colour, "linewidth": 0.5, **style}
    if length:  # the edge of an empty bar would show
        axis.barh(_place(name), length, height=0.7, **style)


def _text(axis, name: str, after: float, text: str, bold: bool = False) -> None:
    axis.annotate(
        text,
        (after, _place(name)),
        xytext=(5, 0),
        textcoords="offset points",
        va="center",
        fontsize=SMALL,
        weight="bold" if bold else "normal",
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},
    )


def _least(values: dict[str, float]) -> list[str]:
    """The caches with the lowest value; what keeps nothing between requests is no cache."""
    caches = {name: value for name, value in values.items() if name not in (NO_CACHE, FULL)}
    return [name for name, value in caches.items() if value == min(caches.values())]
