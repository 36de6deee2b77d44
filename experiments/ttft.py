"""Time to first token at a fixed prompt length: its parts, its ceiling, and what building chunks costs (S-22)."""

from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from tqdm import tqdm

from experiments.common import RagConfig, identify, require_dtypes, require_positive
from experiments.figures import ttft_figure
from replication.data import Loaded, load
from replication.errors import ReplicationError
from replication.measure import BASELINE, Request, cell, timed_round
from replication.memory import peak_bytes, resident_bytes
from replication.methods import METHODS, make_method
from replication.model import Model, load_model
from replication.prompt import ChunkedPrompt, chain, passage_text
from replication.records import RunFolder
from replication.stats import median_iqr

TITLE = "TTFT at a fixed length: methods, parts, operation-count ceiling, memory"
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
# Exact prefix caching saves 1 to 3 % here; against so low a ceiling a measured speed-up shows noise alone.
JUDGED_CEILING = 1.1


@dataclass(frozen=True)
class Config(RagConfig):
    """lengths: prompt tokens: a shared prefix of `prefix` tokens, chunks of `chunk` tokens, and a question of `fresh`
    tokens; every dtype of `dtypes` is measured, `dtype` is not used."""

    n: int = 40
    dtypes: tuple[str, ...] = ("float32", "bfloat16")
    lengths: tuple[int, ...] = (2048,)
    chunk: int = 256
    prefix: int = 32
    fresh: int = 32
    ratio: float = 0.15
    rounds: int = 7

    def __post_init__(self):
        require_positive(self, "n", "chunk", "prefix", "fresh", "rounds")
        require_dtypes(self.dtypes)
        if not self.lengths or min(self.lengths) <= self.prefix + self.fresh:
            raise ReplicationError(
                f"every length must exceed the {self.prefix + self.fresh} tokens of prefix and question"
            )
        for chosen in self.cells():
            make_method(*chosen)

    def cells(self) -> list[tuple[str, float]]:
        return [(name, self.ratio if METHODS[name].takes_ratio else 0.0) for name in TIMED]


def run(config: Config, folder: RunFolder) -> None:
    """All methods interleaved, `rounds` times after one warm-up, for each dtype and length."""
    loaded = load(config.dataset, config.n, config.seed, config.passages, config.data_dir or None)
    for dtype in config.dtypes:
        model = load_model(config.model, dtype, config.device)
        identify(folder, {"kind": f"inputs {dtype}", "model": model.weights, "data": loaded.provenance})
        for prompt in [_prompt(config, model, loaded, length) for length in config.lengths]:
            # memory is the last record of a place
            if ("memory", dtype, len(prompt)) not in folder.done(("kind", "dtype", "length")):
                _measure(config, folder, model, dtype, prompt)


def _prompt(config: Config, model: Model, loaded: Loaded, length: int) -> ChunkedPrompt:
    """Running text of the data set, cut into the prefix, chunks of equal length (the last may be shorter), and the
    question."""
    text = "".join(passage_text(p) for e in loaded.examples for p in e.passages)
    if length > model.context_length:
        raise ReplicationError(f"{length} tokens exceed the model's context of {model.context_length}: set lengths")
    ids = model.tokenizer(text, add_special_tokens=False)["input_ids"]
    if len(ids) < length:
        raise ReplicationError(f"{config.n} examples give {len(ids)} tokens, {length} are needed: raise n")
    stop = length - config.fresh
    spans = [(at, min(at + config.chunk, stop)) for at in range(config.prefix, stop, config.chunk)]
    passages = [("passage", ids[a:b]) for a, b in spans]
    return chain([("prefix", ids[: config.prefix]), *passages, ("question", ids[stop:length])])


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
    # in a process of its own, because what other work left on the heap would count as well
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        memory = process.submit(_memory, config, dtype, len(prompt)).result()
    folder.append({"kind": "memory", **labels, **memory})


def _memory(config: Config, dtype: str, length: int) -> dict:
    """Peak of one blend over the loaded model, its stored chunks included, in units of the prompt's KV.

    kernels_bytes: what the first blend leaves behind for good (oneDNN compiles bf16 products for each number of rows);
    it belongs to the process, not to a blend, and is not in the peak.
    """
    loaded = load(config.dataset, config.n, config.seed, config.passages, config.data_dir or None)
    model = load_model(config.model, dtype, config.device)
    prompt = _prompt(config, model, loaded, length)
    fresh = resident_bytes(model.device)
    prefill = Request(model, prompt).prefill("cacheblend-paper", config.ratio)
    kv = sum(layer.keys.nbytes + layer.values.nbytes for layer in prefill.cache.layers)
    del prefill
    before = resident_bytes(model.device)
    request = Request(model, prompt)
    request.prefill("cacheblend-paper", config.ratio)  # builds the chunks
    peak = peak_bytes(model.device, lambda: request.prefill("cacheblend-paper", config.ratio))
    if peak is None:
        return {"kv_bytes": kv, "peak_in_kv": None, "kernels_bytes": None}
    return {"kv_bytes": kv, "peak_in_kv": (peak - before) / kv, "kernels_bytes": before - fresh}


def summarise(records: list[dict], config: Config) -> dict:
    """Per dtype and length: speed-up over transformers and over the package's own full prefill in the same round, TTFT,
    parts, ceiling, break-even reuses, memory; and the worst case over all of them of what must hold everywhere."""
    places: dict[str, list[dict]] = {}
    for record in records:
        if record["kind"] in ("timing", "build", "memory"):
            places.setdefault(f"{record['dtype']} {record['length']}", []).append(record)
    summary = {name: _place(rows, config) for name, rows in places.items()}
    reusing = [c for place in summary.values() for c in place["cells"].values() if c["ceiling"] > JUDGED_CEILING]
    peaks = [place["memory"]["peak_in_kv"] for place in summary.values()]
    return {
        "places": summary,
        "worst": {
            "over_ceiling": max(c["speedup"]["median"] / c["ceiling"] for c in reusing),
            "full_prefill": min(place["cells"]["full"]["speedup"]["median"] for place in summary.values()),
            "peak_in_kv": None if None in peaks else max(peaks),
        },
    }


def _place(rows: list[dict], config: Config) -> dict:
    timings = [r for r in rows if r["kind"] == "timing"]
    full = {r["round"]: r["seconds"]["ttft"] for r in timings if r["cell"] == "full"}
    cells = {r["cell"]: _cell([q for q in timings if q["cell"] == r["cell"]], full) for r in timings}
    memory = next(r for r in rows if r["kind"] == "memory")
    return {
        "cells": cells,
        "memory": {k: memory[k] for k in ("kv_bytes", "peak_in_kv", "kernels_bytes")},
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
