"""Time to first token at a fixed prompt length: its parts, its ceiling, and what building chunks costs (S-22)."""

from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from experiments.common import RagConfig, cell, identify
from experiments.figures import ttft_figure
from replication.data import load
from replication.errors import ReplicationError
from replication.measure import Request, transformers_ttft
from replication.memory import peak_bytes, resident_bytes
from replication.methods import METHODS
from replication.metrics.cost import ceiling
from replication.model import Model, load_model
from replication.prompt import ChunkedPrompt, chain, passage_text
from replication.records import RunFolder
from replication.stats import median_iqr

TITLE = "TTFT at a fixed length: methods, parts, operation-count ceiling, memory"
BASELINE = "transformers"
PARTS = ("lookup", "load", "rotate", "fuse")


@dataclass(frozen=True)
class Config(RagConfig):
    """lengths: prompt tokens, cut into chunks of `chunk` tokens and a question of `fresh` tokens; every dtype of
    `dtypes` is measured, `dtype` is not used."""

    n: int = 40
    dtypes: tuple[str, ...] = ("float32", "bfloat16")
    lengths: tuple[int, ...] = (2048,)
    chunk: int = 256
    fresh: int = 32
    ratio: float = 0.15
    rounds: int = 7

    def cells(self) -> list[tuple[str, float]]:
        names = [name for name in METHODS if name != "oracle"]
        return [(name, self.ratio if METHODS[name].takes_ratio else 0.0) for name in names]


def run(config: Config, folder: RunFolder) -> None:
    """All methods interleaved, `rounds` times after one warm-up, for each dtype and length."""
    if min(config.lengths) <= config.fresh:
        raise ReplicationError(f"lengths must exceed the {config.fresh} tokens of the question")
    loaded = load(config.dataset, config.n, config.seed, config.passages, config.data_dir or None)
    text = "".join(passage_text(p) for e in loaded.examples for p in e.passages)
    done = folder.done(("kind", "dtype", "length", "round", "cell"))
    for dtype in config.dtypes:
        model = load_model(config.model, dtype, config.device)
        identify(folder, {"data": loaded.provenance})
        for length in config.lengths:
            if ("timing", dtype, length, config.rounds - 1, cell(*config.cells()[-1])) not in done:
                _measure(config, folder, model, dtype, _prompt(config, model, text, length), done)


def _prompt(config: Config, model: Model, text: str, length: int) -> ChunkedPrompt:
    """Running text of the data set as chunks of equal length, and its last tokens as the question."""
    ids = model.tokenizer(text, add_special_tokens=False)["input_ids"]
    if len(ids) < length:
        raise ReplicationError(f"{config.n} examples give {len(ids)} tokens, {length} are needed: raise n")
    stop = length - config.fresh
    spans = [(at, min(at + config.chunk, stop)) for at in range(0, stop, config.chunk)]
    return chain([("passage", ids[a:b]) for a, b in spans] + [("question", ids[stop:length])])


def _measure(config: Config, folder: RunFolder, model: Model, dtype: str, prompt: ChunkedPrompt, done: set) -> None:
    labels = {"dtype": dtype, "length": len(prompt)}
    request = Request(model, prompt)
    for number in tqdm(range(-1, config.rounds), desc=f"{dtype}, {len(prompt)} tokens", unit="round"):
        baseline = transformers_ttft(model, prompt)
        records = [{"cell": BASELINE, "ceiling": 1.0, "seconds": {"ttft": baseline}}]
        for name, ratio in config.cells():
            report = request.prefill(name, ratio).report
            seconds = {**report.seconds, BASELINE: baseline}
            records.append(
                {"cell": cell(name, ratio), "ceiling": ceiling(model, len(prompt), report), "seconds": seconds}
            )
        for record in records:
            if number >= 0 and ("timing", dtype, len(prompt), number, record["cell"]) not in done:
                folder.append({"kind": "timing", **labels, "round": number, **record})
    folder.append({"kind": "build", **labels, "seconds": dict(request.build)})
    folder.append({"kind": "memory", **labels, **_memory(config, model, prompt)})


def _memory(config: Config, model: Model, prompt: ChunkedPrompt) -> dict:
    """Peak of one blend over the loaded model, its stored chunks included, in units of the prompt's KV."""
    before = resident_bytes(model.device)
    request = Request(model, prompt)
    prefill = request.prefill("cacheblend-paper", config.ratio)
    kv = sum(layer.keys.nbytes + layer.values.nbytes for layer in prefill.cache.layers)
    del prefill
    peak = peak_bytes(model.device, lambda: request.prefill("cacheblend-paper", config.ratio))
    return {"kv_bytes": kv, "peak_in_kv": None if peak is None else (peak - before) / kv}


def summarise(records: list[dict], config: Config) -> dict:
    """Per dtype and length: speed-up over transformers in the same round, TTFT, parts, ceiling, break-even reuses."""
    summary: dict = {}
    for record in records:
        if record["kind"] in ("timing", "build", "memory"):
            place = summary.setdefault(f"{record['dtype']} {record['length']}", {"cells": {}, "rows": []})
            place["rows"].append(record)
    for place in summary.values():
        rows = place.pop("rows")
        timing = [r for r in rows if r["kind"] == "timing"]
        place["cells"] = {
            name: _cell([r for r in timing if r["cell"] == name]) for name in {r["cell"]: 0 for r in timing}
        }
        place["memory"] = next(
            ({k: r[k] for k in ("kv_bytes", "peak_in_kv")} for r in rows if r["kind"] == "memory"), {}
        )
        place["build"] = _break_even(rows, place["cells"], config)
        place["over_ceiling"] = max(
            c["speedup"]["median"] / c["ceiling"] for c in place["cells"].values() if c["ceiling"] > 1.01
        )
    return summary


def _cell(rows: list[dict]) -> dict:
    found = {
        "ttft": median_iqr([r["seconds"]["ttft"] for r in rows]),
        "speedup": median_iqr([r["seconds"].get(BASELINE, r["seconds"]["ttft"]) / r["seconds"]["ttft"] for r in rows]),
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
