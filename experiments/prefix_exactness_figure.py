"""The figure of prefix_exactness."""

from pathlib import Path

import matplotlib.pyplot as plt
import seaborn as sns

from experiments.figures import PALETTE, around, read_summary, save, where

LABELS = {
    "transformers": "transformers' own\nprefill (control)",
    "same prompt": "hit, same\nprompt before",
    "other question": "hit, other\nquestion before",
    "chunks": "prefill in\nchunks",
}


def exactness_figure(folder: Path) -> None:
    """How many prompts' greedy tokens differ from a cold run's; from which token on; by how much logits differ."""
    summary = read_summary(folder)
    dtypes = sorted({cell.split(" ", 1)[0] for cell in summary["cells"]}, reverse=True)  # bfloat16 is last
    sns.set_theme(style="whitegrid", context="paper", font_scale=1.1)
    figure, (share, curve, logits) = plt.subplots(1, 3, figsize=(15, 4.6), layout="constrained")
    for offset, dtype in enumerate(dtypes):
        for x, way in enumerate(LABELS):
            cell, place = summary["cells"][f"{dtype} {way}"], x + 0.4 * offset - 0.2 * (len(dtypes) - 1)
            found, label = cell["differs"], dtype if x == 0 else None
            share.bar(place, 100 * found["mean"], 0.36, color=PALETTE[offset], label=label)
            share.errorbar(place, 100 * found["mean"], yerr=100 * around(found, "mean"), color="black", capsize=3)
            found = cell["logit_difference"]
            logits.errorbar(
                place,
                found["median"],
                yerr=around(found, "median"),
                fmt="os"[offset % 2],
                color=PALETTE[offset],
                capsize=3,
                label=label,
            )
            logits.plot(place, found["max"], marker="_", markersize=12, color=PALETTE[offset])
    for axis in (share, logits):
        axis.set_xticks(range(len(LABELS)), list(LABELS.values()), fontsize=9)
        axis.legend(frameon=False, loc="upper left")
    share.set_ylim(0, 130 * max(cell["differs"]["high"] for cell in summary["cells"].values()))
    share.set_ylabel(f"prompts whose {summary['output']} greedy tokens differ, %\n(95 % interval)")
    share.set_title("How often the output changes")
    for colour, way in enumerate(LABELS):
        equal = [100, *(100 * value for value in summary["cells"][f"{dtypes[-1]} {way}"]["still_equal"])]
        label, line = LABELS[way].replace("\n", " "), ("-", "--", "-.", ":")[colour]
        curve.step(range(len(equal)), equal, line, where="post", color=PALETTE[colour + 2], label=label)
    curve.set_ylim(0, 103)
    curve.set_xlabel("greedy tokens")
    curve.set_ylabel("prompts still equal to the cold run, %")
    curve.set_title(f"From which token on ({dtypes[-1]})")
    curve.legend(frameon=False, loc="lower left")
    logits.set_yscale("symlog", linthresh=1e-6)
    logits.set_ylim(-2e-7, 10)
    logits.set_ylabel("largest difference of a logit of the first token\n(median, quartiles; – maximum)")
    logits.set_title("By how much")
    figure.suptitle(f"{where(folder)}: against a cold run of the same prompt (n = {summary['n']})")
    save(figure, folder)
