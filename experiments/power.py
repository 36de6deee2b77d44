"""How many examples the tests of `quality` need: a pilot's variance, the power it gives, and n (A-09).

A test for "no loss within 0.02" shows nothing without power, so n is chosen before the run and not by its result.
"""

from dataclasses import dataclass
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import seaborn as sns

from experiments.cells import GATE, NO_CONTEXT, gate, paired, record_quality
from experiments.common import RagConfig, by_cell, load_inputs, require_positive
from experiments.figures import PALETTE, STYLE, read_summary, save, where
from experiments.quality_summary import LIMITS, MARGIN
from replication.errors import ReplicationError
from replication.measure import cell, cells_at
from replication.methods import make_method
from replication.records import RunFolder
from replication.stats import difference_n, equivalence_n, equivalence_power

TITLE = "Examples that the tests of answer quality need, from the variance in a pilot"
POWER = 0.8
# Besides the paper's own margin, what a smaller n can still tell
MARGINS = (MARGIN, 0.05, 0.1)


@dataclass(frozen=True)
class Config(RagConfig):
    """n: examples of the pilot. methods: compared with full prefill, at `ratio` where they take one. most: the n that
    the machine has time for."""

    n: int = 24
    methods: tuple[str, ...] = ("cacheblend-paper", "full-reuse")
    ratio: float = 0.15
    most: int = 100

    def __post_init__(self):
        require_positive(self, "passages")
        if self.n < 3 or self.most < 2:
            raise ReplicationError("a pilot needs n of at least 3, and most of at least 2")
        for chosen in self.cells():
            make_method(*chosen)

    def cells(self) -> list[tuple[str, float]]:
        return cells_at(self.methods, self.ratio)


def run(config: Config, folder: RunFolder) -> None:
    """Answers of full prefill, of no context and of every method on the pilot's examples."""
    inputs = load_inputs(config, folder)
    cells = [*GATE, *config.cells()]
    record_quality(folder, inputs, config.style, cells, cells, "pilot")


def summarise(records: list[dict], config: Config) -> dict:
    """Per method: standard deviation of the paired difference to full prefill, and what follows for every margin.

    needed: n for 80 % power if the methods are equal; power: at `most`; n: the smaller of `needed` and `most`.
    for_gate, for_gain: n to find the pilot's own mean difference, of full prefill over no context in the metric, and of
    the first method over the last in the gold answer's likelihood; for_no_loss: to show that the first loses no more of
    it than the limit, if it loses none.
    """
    quality = by_cell(records, "quality")
    metric = config.style.task.metrics[0]
    names = [cell(*chosen) for chosen in config.cells()]
    found = {}
    for name in names:
        deviation = float(_differences(quality, name, "full", metric).std(ddof=1))
        found[name] = {"deviation": deviation, "margins": _margins(deviation, config.most)}
    lost = float(_differences(quality, names[0], "full", "nll").std(ddof=1))
    return {
        "pilot": config.n,
        "most": config.most,
        "metric": metric,
        "gate": gate(quality, config.style.task.metrics),
        "methods": found,
        "for_gate": _to_find(_differences(quality, "full", NO_CONTEXT, metric)),
        "for_gain": _to_find(_differences(quality, names[-1], names[0], "nll")),
        "for_no_loss": equivalence_n(lost, LIMITS["nll"], POWER, alpha=0.025),
    }


def _differences(quality: dict, a: str, b: str, metric: str) -> np.ndarray:
    return np.subtract(*paired(quality, a, b, metric))


def _to_find(differences: np.ndarray) -> int | None:
    return difference_n(float(differences.mean()), float(differences.std(ddof=1)), POWER)


def _margins(deviation: float, most: int) -> dict:
    found = {}
    for margin in MARGINS:
        needed = equivalence_n(deviation, margin, POWER)
        power = equivalence_power(deviation, most, margin)
        found[f"{margin:g}"] = {"needed": needed, "n": min(needed, most), "power": power}
    return found


def plot(folder: Path) -> None:
    """Power against n for the paper's margin, with the n that there is time for."""
    summary = read_summary(folder)
    sns.set_theme(style="whitegrid", context="paper", font_scale=1.1)
    figure, axis = plt.subplots(figsize=(7.5, 4.8), layout="constrained")
    sizes = np.unique(np.geomspace(3, 20_000, 200).astype(int))
    for name, found in summary["methods"].items():
        label, colour, _ = STYLE.get(name.partition("@")[0], (name, PALETTE[6], ""))
        for margin, line in zip(MARGINS, ("-", "--", ":"), strict=True):
            power = [equivalence_power(found["deviation"], int(n), margin) for n in sizes]
            axis.plot(sizes, power, color=colour, linestyle=line, label=f"{label}, margin {margin:g}")
    axis.axvline(summary["most"], color="black", linewidth=1, label=f"time allows n = {summary['most']}")
    axis.axhline(POWER, color="grey", linewidth=0.8)
    axis.set_xscale("log")
    axis.set_xlabel("examples")
    axis.set_ylabel(f"power to show equal {summary['metric'].replace('_', '-')} (true difference 0)")
    axis.legend(frameon=False, fontsize=8)
    axis.set_title(f"{where(folder)}: power of the equivalence test, from {summary['pilot']} examples")
    save(figure, folder)
