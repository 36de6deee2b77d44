"""Quality against time to first token, for every method and recompute ratio (S-21, S-22, A-09, A-10; paper fig. 12)."""

from dataclasses import dataclass
from pathlib import Path

from experiments.cells import GATE, gate, is_open, over_ceiling, record_quality, record_times, reported, speedups
from experiments.common import Inputs, RagConfig, by_cell, load_inputs, means, require_positive
from experiments.figures import quality_figure
from experiments.reuse_common import compared
from replication.errors import ReplicationError
from replication.measure import cell
from replication.methods import METHODS, make_method
from replication.records import RunFolder

TITLE = "Quality against TTFT speed-up, all methods and recompute ratios"
HKVD = ("cacheblend-paper", "cacheblend-author", "cacheblend-lmcache")
RIVALS = ("full", "naive", "full-reuse", "shared-prefix", "first-k", "random", "uniform", "lowest", "oracle")
FIXED = ("full", "prefix", "prefix-same-order", "naive", "full-reuse", "shared-prefix")


@dataclass(frozen=True)
class Config(RagConfig):
    """curves: methods measured at all `ratios`; points: at `point_ratios`. Answers are generated at `answer_ratio`.

    timed: how many of the prompts are timed, each in `rounds` interleaved rounds after one warm-up round.
    """

    n: int = 20
    curves: tuple[str, ...] = ("cacheblend-paper", "first-k", "random")
    ratios: tuple[float, ...] = (0.01, 0.05, 0.15, 0.3, 0.5, 1.0)
    points: tuple[str, ...] = (
        "cacheblend-author",
        "cacheblend-lmcache",
        "shared-prefix-blend",
        "uniform",
        "lowest",
        "oracle",
    )
    point_ratios: tuple[float, ...] = (0.05, 0.15)
    answer_ratio: float = 0.15
    timed: int = 4
    rounds: int = 3

    def __post_init__(self):
        require_positive(self, "n", "passages", "timed", "rounds")
        for chosen in self.cells():
            make_method(*chosen)
        if not {(name, self.answer_ratio) for name in HKVD} & set(self.cells()):
            raise ReplicationError(
                f"no CacheBlend variant is measured at answer_ratio {self.answer_ratio}: "
                "put it into ratios with curves, or into point_ratios with points"
            )

    def cells(self) -> list[tuple[str, float]]:
        """(method, ratio) of every cell, full prefill first."""
        fixed = [(name, 0.0) for name in FIXED]
        curves = [(name, ratio) for name in self.curves for ratio in self.ratios]
        return fixed + curves + [(name, ratio) for name in self.points for ratio in self.point_ratios]


def run(config: Config, folder: RunFolder) -> None:
    """Quality of every cell on every example, then times; finished examples and rounds are not repeated.

    The two cells of the gate come first: answers are only generated behind an open gate.
    """
    inputs = load_inputs(config, folder)
    record_quality(folder, inputs, config.style, GATE, GATE, "gate")
    opened = is_open(folder.records, config.style.task.metrics)
    cells = [c for c in config.cells() if c not in GATE]
    answered = [c for c in cells if opened and c[1] in (0, config.answer_ratio)]
    record_quality(folder, inputs, config.style, cells, answered, "quality")
    timed = Inputs(inputs.model, inputs.examples[: config.timed], inputs.prompts[: config.timed])
    record_times(folder, timed, config.cells(), config.rounds)


def summarise(records: list[dict], config: Config) -> dict:
    """Per cell: quality with intervals, speed-up with quartiles; the gate; paired comparisons at the answer ratio; how
    near a speed-up comes to its ceiling."""
    quality = by_cell(records, "quality")
    rows = {name: list(examples.values()) for name, examples in quality.items()}
    passed = gate(quality, config.style.task.metrics)
    cells = {name: means(found, reported(passed)) for name, found in rows.items()}
    for name, speeds in speedups(records).items():
        cells.setdefault(name, {}).update(speeds)
    return {
        "cells": cells,
        "gate": passed,
        "compare": _comparisons(quality, config),
        "over_ceiling": over_ceiling(cells),
        "n": config.n,
    }


def _comparisons(quality: dict, config: Config) -> dict:
    """Each HKVD variant against every rival at the same budget, under "variant@15/rival@15"."""
    pairs = {}
    for variant in HKVD:
        for rival in RIVALS:
            ours = cell(variant, config.answer_ratio)
            theirs = cell(rival, config.answer_ratio if METHODS[rival].takes_ratio else 0.0)
            if ours in quality and theirs in quality:
                pairs[f"{ours}/{theirs}"] = ours, theirs
    return compared(quality, pairs)


def plot(folder: Path) -> None:
    quality_figure(folder)
