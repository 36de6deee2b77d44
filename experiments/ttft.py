"""Time to first token at a fixed prompt length: its parts, its ceiling, and what building chunks costs (S-22)."""

from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from experiments.cells import JUDGED_CEILING
from experiments.common import identify, require_positive
from experiments.figures import ttft_figure
from experiments.fixed_length import FixedLengthConfig
from replication.data import load
from replication.measure import BASELINE, Request, cell, cells_at, timed_round
from replication.methods import make_method
from replication.model import Model, load_model
from replication.prompt import ChunkedPrompt
from replication.records import RunFolder
from replication.stats import median_iqr

TITLE = "TTFT at a fixed length: methods, parts, operation-count ceiling, what building chunks costs"
PARTS = ("lookup", "load", "rotate", "fuse")
TIMED = (
    "cacheblend-paper",
    "cacheblend-author",
    "cacheblend-lmcache",
    "first-k",
    "random",
    "uniform",
    "lowest",
    "full",
    "prefix",
    "prefix-same-order",
    "naive",
    "full-reuse",
    "shared-prefix",
    "shared-prefix-blend",
)


@dataclass(frozen=True)
class Config(FixedLengthConfig):
    """rounds: how often every method is timed."""

    rounds: int = 7

    def __post_init__(self):
        super().__post_init__()
        require_positive(self, "rounds")
        for chosen in self.cells():
            make_method(*chosen)

    def cells(self) -> list[tuple[str, float]]:
        return cells_at(TIMED, self.ratio)


def run(config: Config, folder: RunFolder) -> None:
    """All methods interleaved, `rounds` times after one warm-up, for each dtype and length."""
    loaded = load(config.dataset, config.n, config.seed, config.passages, config.data_dir or None)
    for dtype in config.dtypes:
        model = load_model(config.model, dtype, config.device)
        identify(folder, {"kind": f"inputs {dtype}", "model": model.weights, "data": loaded.provenance})
        for prompt in [config.prompt(model, loaded, length) for length in config.lengths]:
            # it is the last record of a place
            if ("build", dtype, len(prompt)) not in folder.done(("kind", "dtype", "length")):
                _measure(config, folder, model, dtype, prompt)


def _measure(config: Config, folder: RunFolder, model: Model, dtype: str, prompt: ChunkedPrompt) -> None:
    labels = {"dtype": dtype, "length": len(prompt)}
    done = folder.done(("kind", "dtype", "length", "round", "cell"))
    request = Request(model, prompt)
    for number in tqdm(range(-1, config.rounds), desc=f"{dtype}, {len(prompt)} tokens", unit="round"):
        records = timed_round(request, config.cells(), number + 1)
        for record in records if number >= 0 else ():  # the first round warms up
            if ("timing", dtype, len(prompt), number, record["cell"]) not in done:
                folder.append({"kind": "timing", **labels, "round": number, **record})
    folder.append({"kind": "build", **labels, "seconds": dict(request.build)})


def summarise(records: list[dict], config: Config) -> dict:
    """Per dtype and length: speed-up over transformers and over the package's own full prefill in the same round, TTFT,
    parts, ceiling, break-even reuses; and the worst case over all of them of what must hold everywhere."""
    places: dict[str, list[dict]] = {}
    for record in records:
        if record["kind"] in ("timing", "build"):
            places.setdefault(f"{record['dtype']} {record['length']}", []).append(record)
    summary = {name: _place(rows, config) for name, rows in places.items()}
    reusing = [c for place in summary.values() for c in place["cells"].values() if c["ceiling"] > JUDGED_CEILING]
    return {
        "places": summary,
        "worst": {
            "over_ceiling": max(c["speedup"]["median"] / c["ceiling"] for c in reusing),
            "full_prefill": min(place["cells"]["full"]["speedup"]["median"] for place in summary.values()),
        },
    }


def _place(rows: list[dict], config: Config) -> dict:
    timings = [r for r in rows if r["kind"] == "timing"]
    full = {r["round"]: r["seconds"]["ttft"] for r in timings if r["cell"] == "full"}
    cells = {r["cell"]: _cell([q for q in timings if q["cell"] == r["cell"]], full) for r in timings}
    return {
        "cells": cells,
        "build": _break_even(rows, cells, config),
        "threads": rows[0]["threads"],
    }


def _cell(rows: list[dict], full: dict[int, float]) -> dict:
    found = {
        "ttft": median_iqr([r["seconds"]["ttft"] for r in rows]),
        "speedup": median_iqr([r["seconds"][BASELINE] / r["seconds"]["ttft"] for r in rows]),
        "speedup_own": median_iqr([full[r["round"]] / r["seconds"]["ttft"] for r in rows]),
        "ceiling": rows[0]["ceiling"],
    }
    parts = {p: median_iqr([r["seconds"][p] for r in rows]) for p in PARTS if p in rows[0]["seconds"]}
    return found | {"parts": parts}


def _break_even(rows: list[dict], cells: dict, config: Config) -> dict:
    """Seconds to prefill all chunks once, and how many requests with them make up for it."""
    seconds = next(r["seconds"]["chunks alone"] for r in rows if r["kind"] == "build")
    saved = cells[BASELINE]["ttft"]["median"] - cells[cell("cacheblend-paper", config.ratio)]["ttft"]["median"]
    return {"seconds": seconds, "reuses_to_pay": seconds / saved if saved > 0 else None}


def plot(folder: Path) -> None:
    ttft_figure(folder)
