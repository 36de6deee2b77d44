"""What paper/paper.typ says in numbers: claims with verdicts, tables, single estimates, and where runs come from."""

import hashlib
import json
from pathlib import Path

from replication.claims import Claim, Outcome, Row, evaluate, read_json
from replication.claims_table import estimate_text, outcome_text
from replication.writeup import tables
from replication.writeup.sources import Source, sources
from replication.writeup.values import Found, found, verdict_counts

# name in the text -> experiment, metric
ESTIMATES = {
    "naive-kl": ("quality_vs_ttft", "cells.naive.kl_first"),
    "blend-kl": ("quality_vs_ttft", "cells.cacheblend-paper@15.kl_first"),
    "blend-over-random": ("quality_vs_ttft", "compare.cacheblend-paper@15/random@15.kl_first_ratio"),
    "blend-over-first-k": ("quality_vs_ttft", "compare.cacheblend-paper@15/first-k@15.kl_first_ratio"),
    "blend-over-prefix": ("quality_vs_ttft", "compare.cacheblend-paper@15/shared-prefix.kl_first_ratio"),
    "blend-over-oracle": ("quality_vs_ttft", "compare.cacheblend-paper@15/oracle@15.kl_first_ratio"),
    "blend-nll": ("quality_vs_ttft", "compare.cacheblend-paper@15/full.nll_difference"),
    "blend-speedup": ("quality_vs_ttft", "cells.cacheblend-paper@15.speedup"),
    "prefix-speedup": ("quality_vs_ttft", "cells.shared-prefix.speedup"),
    "over-prefix": ("quality_vs_ttft", "cells.cacheblend-paper@15.over_prefix"),
    "positions-alone": ("naive_concatenation", "one_repair.position.kl_first_ratio"),
    "own-sink": ("naive_concatenation", "attention.naive.to_heads"),
    "attention-left": ("attention_deviation", "left.cacheblend-paper@15"),
    "neighbours-keys": ("kv_deviation", "K.neighbours"),
    "neighbours-values": ("kv_deviation", "V.neighbours"),
    "gradual-over-fixed": ("schedule", "gradual_over_fixed.15.kl_first_ratio"),
    "layer-0-over-1": ("schedule", "over_layer_1.0.kl_first_ratio"),
    "write-back": ("ablations", "over_baseline.write-back: chosen tokens only.kl_first_ratio"),
    "mask": ("ablations", "over_baseline.mask: bottom right.kl_first_ratio"),
    "suffix": ("ablations", "over_baseline.suffix: last token only.kl_first_ratio"),
    "gap-growth": ("quality", "trend.gap.full-reuse.nll"),
    "map-reduce": ("quality", "versus.map-reduce.speedup"),
    "map-rerank-gain": ("quality", "versus.map-rerank.first"),
    "loading-overlap": ("loading", "devices.0.1 GB/s.over_sequential"),
    "loading-error": ("loading", "error.pipelined"),
    "throughput-over-full": ("throughput", "gain.full"),
    "throughput-over-prefix": ("throughput", "gain.prefix"),
    "over-ceiling": ("ttft", "worst.over_ceiling"),
}


def numbers(root: Path) -> dict:
    """JSON-ready; `digest` identifies all the rest."""
    rows = evaluate(root)
    content = {
        "counts": verdict_counts(rows),
        "total": len(rows),
        "undecided": sum(row.undecided for row in rows),
        "claims": [_claim(row) for row in rows],
        "sources": [_source(source) for source in sources(rows)],
        "tables": {
            table.__name__: {"head": made.head, "rows": made.rows}
            for table in (
                tables.quality,
                tables.budget,
                tables.answers,
                tables.sweeps,
                tables.power,
                tables.faults,
                tables.ttft,
                tables.memory,
            )
            for made in [table(root)]
        },
        "estimates": {name: [_estimate(place) for place in found(root, *where)] for name, where in ESTIMATES.items()},
        "runs": {str(path.parent.relative_to(root)): _run(path) for path in sorted(root.glob("*/*/*/provenance.json"))},
    }
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    return {"digest": digest, **content}


def _claim(row: Row) -> dict:
    claim = row.claim
    return {
        "id": claim.id,
        "row": claim.row,
        "statement": claim.statement,
        "criterion": claim.criterion,
        "experiment": claim.experiment,
        "verdict": row.verdict,
        "outcomes": [_outcome(outcome, claim) for outcome in row.outcomes],
    }


def _outcome(outcome: Outcome, claim: Claim) -> dict:
    text = outcome_text(outcome, claim)
    return {"model": outcome.model, "dataset": outcome.dataset, "passed": outcome.passed, "text": text}


def _source(source: Source) -> dict:
    claims = [row.claim.id for row in source.rows]
    return {"id": source.id, "about": source.about, "verdicts": verdict_counts(source.rows), "claims": claims}


def _estimate(place: Found) -> dict:
    """centre: the mean, median or value."""
    estimate = {key: value for key, value in place.estimate.items() if key != "n"}
    centre = next((estimate[key] for key in ("mean", "median", "value") if estimate.get(key) is not None), None)
    text = estimate_text(estimate, "value")
    return {
        "model": place.model,
        "dataset": place.dataset,
        "n": place.estimate.get("n"),
        "centre": centre,
        "text": text,
    }


def _run(path: Path) -> dict:
    source = read_json(path)
    fields = ("command", "config", "git", "machine", "started", "versions")
    return {field: source[field] for field in fields}
