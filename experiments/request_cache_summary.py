"""The summary of `request_cache`."""

import math
import statistics

from experiments.common import by_cell
from replication.bandwidth import BYTES
from replication.stats import mean_ci, median_iqr, paired_difference, wilson


def summarise(records: list[dict], config) -> dict:
    """Per dtype and length what a step takes and what memory traffic allows; growth with length; chats; kinds."""
    steps = [r for r in records if r["kind"] == "step"]
    survivals = [r for r in records if r["kind"] == "survival"]
    places = {
        f"{dtype} {length}": _place([r for r in steps if (r["dtype"], r["length"]) == (dtype, length)])
        for dtype in config.dtypes
        for length in config.lengths
    }
    return {
        "places": places,
        "highest_bound_share": max(place["bound_share"]["median"] for place in places.values()),
        "growth": {dtype: _growth([r for r in steps if r["dtype"] == dtype], config) for dtype in config.dtypes},
        "bytes_error": max(
            max(abs(r["bytes"] - r["length"] * r["bytes_per_token"]) for r in steps),
            max(abs(r["grown"] - config.steps * r["bytes_per_token"]) for r in steps),
        ),
        "survival_error": max(abs(r["held"] - (r["prompt"] + r["generated"] - 1)) for r in survivals),
        "chat": {
            dtype: _chat([r for r in records if r["kind"] == "turn" and r["dtype"] == dtype], config)
            for dtype in (config.dtypes if config.chats else ())
        },
        "quantized": {dtype: _quantized([r for r in records if r.get("dtype") == dtype]) for dtype in config.dtypes},
        "problems": {
            dtype: {r["cell"]: r["problem"] for r in records if r["kind"] == "support" and r["dtype"] == dtype}
            for dtype in config.dtypes
        },
    }


def _place(rows: list[dict]) -> dict:
    """seconds per decoded token; bound: what reading weights and K and V once takes at the round's best bandwidth."""
    seconds = [r["seconds"] for r in rows]
    bounds = [
        (r["weights"] + r["bytes"]) / BYTES * min(s["read"], s["copy"]) for r, s in zip(rows, seconds, strict=True)
    ]
    return {
        "with": median_iqr([s["with"] for s in seconds]),
        "without": median_iqr([s["without"] for s in seconds]),
        "speedup": median_iqr([s["without"] / s["with"] for s in seconds]),
        "rows": median_iqr([s["rows"] / s["with"] for s in seconds]),
        "bound": median_iqr(bounds),
        "bound_share": median_iqr([bound / s["with"] for bound, s in zip(bounds, seconds, strict=True)]),
        "bandwidth": median_iqr([BYTES / min(s["read"], s["copy"]) for s in seconds]),
        "logit_difference": max(r["logit_difference"] for r in rows),
        **{key: rows[0][key] for key in ("bytes", "bytes_per_token", "weights", "threads")},
    }


def _growth(rows: list[dict], config) -> dict:
    """Exponents of time in length, in each round, from the shortest to the longest: 1 is linear."""
    times = {(r["round"], r["length"]): r["seconds"] for r in rows}
    ends = [(times[k, config.lengths[0]], times[k, config.lengths[-1]]) for k in range(config.rounds)]
    span = math.log(config.lengths[-1] / config.lengths[0])
    return {
        way: median_iqr([math.log(long[way] / short[way]) / span for short, long in ends])
        for way in ("with", "without")
    }


def _chat(rows: list[dict], config) -> dict:
    """Turn by turn, and over all turns; `last` is the last turn before the edit."""
    turns = [[r for r in rows if r["turn"] == turn] for turn in range(config.turns)]
    later = [r for turn in turns[1:] for r in turn]
    edits = [r for r in rows if r["turn"] == config.turns]
    return {
        "turns": [
            {
                **{key: statistics.mean(r[key] for r in turn) for key in ("prompt", "prefilled")},
                **{way: median_iqr([r["seconds"][way] for r in turn]) for way in ("kept", "fresh")},
            }
            for turn in turns
        ],
        "surplus": max((r["surplus"] for r in later), default=None),
        "last": {
            "prompt_over_prefilled": mean_ci([r["prompt"] / r["prefilled"] for r in turns[-1]]),
            "speedup": median_iqr([r["seconds"]["fresh"] / r["seconds"]["kept"] for r in turns[-1]]),
        },
        "parted": sum(r["parted"] is not None for r in later),
        "text_extends": wilson(sum(r["text_extends"] for r in later), len(later)),
        "edit": {
            "reused": mean_ci([(r["prompt"] - r["prefilled"]) / r["prompt"] for r in edits]),
            "off_by": max(abs(r["prompt"] - r["prefilled"] - r["edited_at"]) for r in edits),
        },
        "logit_difference": max(r["logit_difference"] for r in rows),
    }


def _quantized(records: list[dict]) -> dict:
    """Every kind against the full-precision cache on the same texts."""
    cells = by_cell(records, "quantized")
    full = list(cells["full"].values())
    return {kind: _kind(list(found.values()), full) for kind, found in cells.items()}


def _kind(rows: list[dict], full: list[dict]) -> dict:
    pairs = list(zip(rows, full, strict=True))
    return {
        "bytes_ratio": mean_ci([f["bytes"] / r["bytes"] for r, f in pairs]),
        "nll": mean_ci([r["nll"] for r in rows]),
        "nll_difference": paired_difference([r["nll"] for r in rows], [f["nll"] for f in full]),
        "kl": mean_ci([r["kl_answer"] for r in rows]),
        "agreement": mean_ci([r["agreement"] for r in rows]),
        "step": median_iqr([r["seconds"]["step"] for r in rows]),
        "step_ratio": median_iqr([r["seconds"]["step"] / f["seconds"]["step"] for r, f in pairs]),
    }
