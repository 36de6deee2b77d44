"""Estimates from results/, wherever an experiment was run."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from replication.claims import Row, estimate_at, read_json

# Where runs on another machine lie, and what tells it from that of the other results
MACHINES = {"without-amx": "without AMX", "avx2": "on AVX2 alone"}
VERDICTS = ("reproduced", "partly", "not reproduced", "not testable", "not run")


@dataclass(frozen=True)
class Found:
    """What one results folder says about a metric."""

    model: str
    dataset: str
    estimate: dict


def summaries(root: Path, experiment: str) -> list[Path]:
    """summary.json of every run of an experiment; SmolLM2 and the synthetic data set come first."""
    return sorted(root.glob(f"*/{experiment}/*/summary.json"), key=_order)


def noted_summaries(root: Path, experiment: str) -> list[tuple[Path, str]]:
    """`summaries` and an empty note, then those of other machines and what tells them apart."""
    roots = {root: "", **{root / name: f" {note}" for name, note in MACHINES.items()}}
    return [(path, note) for place, note in roots.items() for path in summaries(place, experiment)]


def found(root: Path, experiment: str, metric: str) -> list[Found]:
    """A metric (dotted path into summary.json) in every run that measured it."""
    estimates = [(path, estimate_at(read_json(path), metric)) for path in summaries(root, experiment)]
    return [Found(path.parts[-4], path.parts[-2], estimate) for path, estimate in estimates if estimate]


def verdict_counts(rows: list[Row]) -> str:
    """e.g. `3 reproduced, 1 not run`."""
    counts = Counter(row.verdict for row in rows)
    return ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS if counts[verdict])


def _order(path: Path) -> tuple:
    return path.parts[-4] != "smollm2-135m", path.parts[-2] != "synthetic", path.parts
