"""The summary of `serving`: counts that must be equal, times as shares of a system's own cold prompt, outputs."""

from collections.abc import Iterator

from experiments.serving_common import ServingConfig
from replication.stats import mean_ci, median_iqr, wilson

SYSTEMS = ("ours", "vllm", "vllm without")
WAYS = ("cold", "hit", "reversed", "other tenant")
ANSWERS = ("vllm", "vllm hit", "our hit")


def by_vllms_rule(found: int, tokens: int, block_size: int) -> int:
    """Cached tokens that vLLM must report where a pool has `found` of the whole blocks of a prompt of `tokens` tokens.

    vLLM computes a block or more, as the last token's logits are wanted: of a prompt that ends with a block and is
    found whole, that last block. Ours computes the last token alone.
    """
    return block_size * min(found, (tokens - 1) // block_size)


def summarise(records: list[dict], config: ServingConfig) -> dict:
    """counts: requests whose cached tokens are not those that our pool's blocks give (`differ`), and where the rule for
    the last block mattered (`last_block`). times: TTFT, and its share of the same system's cold prompt of the round;
    `net` is without vLLM's floor. compare: our share over vLLM's. answers: see `compared` in serving_answers."""
    rows = {kind: [r for r in records if r["kind"] == kind] for kind in ("counts", "times", "blends", "answers")}
    summary = {
        "counts": _counts(rows, config),
        "times": {s: {way: _time(rows["times"], s, way) for way in WAYS} for s in SYSTEMS},
        "floor": median_iqr([r["seconds"]["floor"] for r in rows["times"]]),
        "compare": {
            net: {way: median_iqr(_compared(rows["times"], way, net == "net")) for way in WAYS[1:]}
            for net in ("gross", "net")
        },
        "answers": {way: _answers([r["ways"][way] for r in rows["answers"]], config) for way in ANSWERS},
        "n": config.n,
        "output": config.output,
        "block_size": config.block_size,
        "threads": rows["times"][0]["threads"],
    }
    return summary | ({"blends": _blends(rows["blends"])} if rows["blends"] else {})


def _pairs(rows: dict[str, list[dict]]) -> Iterator[dict]:
    """What our pool and vLLM found of the same request, in all parts."""
    for record in rows["counts"]:
        yield from record["requests"]
    for record in rows["times"]:
        for way in WAYS:
            yield {**record["found"][f"ours, {way}"], **record["found"][f"vllm, {way}"]}
    yield from (record["hit"] for record in rows["answers"])


def _counts(rows: dict[str, list[dict]], config: ServingConfig) -> dict:
    pairs = list(_pairs(rows))
    given = [by_vllms_rule(p["found"], p["tokens"], config.block_size) for p in pairs]
    streamed = [sum(q["cached"] for q in r["requests"]) for r in rows["counts"]]
    without = [found["cached"] for r in rows["times"] for way, found in r["found"].items() if "without" in way]
    return {
        "requests": len(pairs),
        "differ": sum(p["cached"] != tokens for p, tokens in zip(pairs, given, strict=True)),
        "last_block": sum(p["found"] * config.block_size != tokens for p, tokens in zip(pairs, given, strict=True)),
        "tokens": sum(p["tokens"] for p in pairs),
        "cached": sum(p["cached"] for p in pairs),
        "reused": sum(p["reused"] for p in pairs),
        "metrics_differ": sum(r["metric_hits"] != total for r, total in zip(rows["counts"], streamed, strict=True)),
        "cached_without": sum(without),
        "points": sorted({(p["found"] * config.block_size, p["cached"]) for p in pairs}),
    }


def _time(records: list[dict], system: str, way: str) -> dict:
    seconds = [r["seconds"] for r in records]
    return {
        "ttft": median_iqr([s[f"{system}, {way}"] for s in seconds]),
        "of_cold": median_iqr([_share(s, system, way) for s in seconds]),
    }


def _share(seconds: dict, system: str, way: str, net: bool = False) -> float:
    floor = seconds["floor"] if net and system != "ours" else 0.0
    return (seconds[f"{system}, {way}"] - floor) / (seconds[f"{system}, cold"] - floor)


def _compared(records: list[dict], way: str, net: bool) -> list[float]:
    return [_share(r["seconds"], "ours", way) / _share(r["seconds"], "vllm", way, net) for r in records]


def _answers(found: list[dict], config: ServingConfig) -> dict:
    parted = [f for f in found if f["parted"] is not None]
    differences = [f["difference"] for f in found if f["difference"] is not None]
    kept = [sum(f["parted"] is None or f["parted"] > at for f in found) / len(found) for at in range(config.output)]
    return {
        "differs": wilson(len(parted), len(found)),
        "still_equal": kept,
        "gap": {**median_iqr([f["gap"] for f in parted]), "max": max((f["gap"] for f in parted), default=None)},
        "difference": {**median_iqr(differences), "max": max(differences, default=None)},
    }


def _blends(records: list[dict]) -> dict:
    """reused: cached tokens of a prompt over those of its passages."""
    return {
        "reused": {w: mean_ci([r["cached"][w] / r["passages"] for r in records]) for w in ("cold", "reversed")},
        "of_cold": median_iqr([r["seconds"]["reversed"] / r["seconds"]["cold"] for r in records]),
    }
