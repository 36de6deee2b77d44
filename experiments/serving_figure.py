"""The figure of `serving`."""

from pathlib import Path

import matplotlib.pyplot as plt
import seaborn as sns

from experiments.figures import PALETTE, around, read_summary, save

SYSTEMS = {  # label, colour
    "ours": ("our prefix cache", PALETTE[0]),
    "vllm": ("vLLM", PALETTE[1]),
    "vllm without": ("vLLM, prefix caching off", PALETTE[7]),
}
WAYS = {
    "hit": "same documents,\nother question",
    "reversed": "documents\nreversed",
    "other tenant": "another\ntenant's salt",
}
ANSWERS = {  # label, colour, line
    "vllm": ("vLLM against our model", PALETTE[1], "-"),
    "vllm hit": ("vLLM: hit against its cold run", PALETTE[2], "--"),
    "our hit": ("ours: hit against our cold run", PALETTE[0], ":"),
}


def serving_figure(folder: Path) -> None:
    """Cached tokens of both, request by request; what a hit costs; how long greedy tokens stay the same."""
    summary = read_summary(folder)
    sns.set_theme(style="whitegrid", context="paper", font_scale=1.1)
    figure, (counts, times, answers) = plt.subplots(1, 3, figsize=(15, 4.8), layout="constrained")
    _counts(counts, summary)
    _times(times, summary["times"])
    _answers(answers, summary)
    figure.suptitle(f"{folder.parts[-3]} on {folder.parts[-1]}: vLLM as referee of the prefix cache")
    save(figure, folder)


def _counts(axis, summary: dict) -> None:
    found, block = summary["counts"], summary["block_size"]
    points = found["points"]
    longest = max(ours for ours, _ in points)
    axis.plot((0, longest), (0, longest), color=PALETTE[7], linewidth=1, label="equal")
    axis.plot(
        (block, longest), (0, longest - block), color=PALETTE[7], linewidth=1, linestyle=":", label="a block less"
    )
    axis.plot(*zip(*points, strict=True), "o", color=PALETTE[1], markersize=4, label="requests")
    axis.set_xlabel("tokens in blocks that our pool has")
    axis.set_ylabel("cached tokens that vLLM reports")
    same = found["requests"] - found["differ"]
    axis.set_title(f"Found in blocks of {block}: {same} of {found['requests']} by the rule")
    axis.legend(frameon=False, loc="upper left")


def _times(axis, times: dict) -> None:
    for offset, (system, (label, colour)) in enumerate(SYSTEMS.items()):
        for x, way in enumerate(WAYS):
            share, place = times[system][way]["of_cold"], x + 0.28 * (offset - 1)
            axis.bar(place, 100 * share["median"], 0.26, color=colour, label=label if x == 0 else None)
            axis.errorbar(place, 100 * share["median"], yerr=100 * around(share, "median"), color="black", capsize=2)
            # clear of the line at 100
            top = max(100 * share["high"], 102 if share["high"] > 0.9 else 0) + 1.5
            axis.text(place, top, f"{100 * share['median']:.0f}", ha="center", va="bottom", fontsize=9)
    axis.axhline(100, color="black", linewidth=0.8)
    axis.set_xticks(range(len(WAYS)), list(WAYS.values()))
    highest = max(100 * times[system][way]["of_cold"]["high"] for system in SYSTEMS for way in WAYS)
    axis.set_ylim(0, max(150, 1.3 * highest))
    axis.set_ylabel("TTFT, % of the system's own cold prompt\n(median, quartiles)")
    axis.set_title("What a request costs after a cold one")
    axis.legend(frameon=False, loc="upper left", fontsize=9)
    axis.grid(visible=False, axis="x")


def _answers(axis, summary: dict) -> None:
    for way, (label, colour, line) in ANSWERS.items():
        found = summary["answers"][way]
        equal = [100, *(100 * share for share in found["still_equal"])]
        gap = f" (parts at logits within {found['gap']['max']:.2g})" if found["gap"]["max"] is not None else ""
        axis.step(range(len(equal)), equal, line, where="post", color=colour, label=label + gap, linewidth=2)
    axis.set_ylim(0, 103)
    axis.set_xlabel("greedy tokens")
    axis.set_ylabel("prompts whose tokens are still equal, %")
    axis.set_title(f"Outputs (n = {summary['n']})")
    axis.legend(frameon=False, loc="lower left")
