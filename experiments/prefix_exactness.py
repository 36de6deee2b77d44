"""How often a prefix cache, or a prefill in chunks, changes greedy output, by dtype (S-10)."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from tqdm import tqdm
from transformers import DynamicCache

from experiments.common import RagConfig, identify, require_dtypes, require_positive
from experiments.prefix_exactness_figure import exactness_figure
from replication.caches.prefix import PrefixCache
from replication.caches.request import Decoded, WithCache, decode
from replication.data import RagExample, load
from replication.model import Model, load_model
from replication.prompt import build_prompt, first_difference
from replication.records import RunFolder
from replication.stats import median_iqr, paired_difference, wilson

TITLE = "Does a prefix cache change greedy output? Hits and chunked prefill against a cold run, fp32 and bf16"
# How a prompt is prefilled, each compared with a cold run of the same dtype
TRANSFORMERS, SAME, OTHER, CHUNKS = WAYS = ("transformers", "same prompt", "other question", "chunks")
SALTS = {SAME: "same", OTHER: "other"}  # what was sent before a hit must not be found by the other one


@dataclass(frozen=True)
class Config(RagConfig):
    """n prompts, each over its own passages; `output` greedy tokens; `chunk` tokens of the prompt in a forward; blocks
    of `block_size`. Every dtype of `dtypes` is measured, `dtype` is not used."""

    n: int = 60
    dtypes: tuple[str, ...] = ("float32", "bfloat16")
    block_size: int = 16
    chunk: int = 256
    output: int = 32

    def __post_init__(self):
        require_positive(self, "n", "block_size", "chunk", "output")
        require_dtypes(self.dtypes)


def run(config: Config, folder: RunFolder) -> None:
    """One record for each dtype, prompt and way; finished prompts are not repeated."""
    # the last example lends its question only
    loaded = load(config.dataset, config.n + 1, config.seed, config.passages, config.data_dir or None)
    for dtype in config.dtypes:
        model = load_model(config.model, dtype, config.device)
        identify(folder, {"kind": f"inputs {dtype}", "model": model.weights, "data": loaded.provenance})
        done = folder.done(("kind", "dtype", "example", "way"))
        pairs = list(zip(loaded.examples, loaded.examples[1:], strict=False))
        for example, lender in tqdm(pairs, f"prompts, {dtype}", unit="prompt"):
            if any(("pair", dtype, example.id, way) not in done for way in WAYS):
                for record in _compared(config, model, example, lender.question):
                    if ("pair", dtype, example.id, record["way"]) not in done:
                        folder.append({"kind": "pair", "dtype": dtype, "example": example.id, **record})


def _compared(config: Config, model: Model, example: RagExample, question: str) -> Iterator[dict]:
    """The first token at which each way's greedy tokens part from the cold run's, how near the cold run was to another
    choice there (logits of its first and second), and by how much the logits of the first token differ at most."""
    prompt, earlier = (
        build_prompt(example.passages, q, model.tokenizer, config.style, model.context).ids
        for q in (example.question, question)
    )
    room = 2 * (len(prompt) + len(earlier)) // config.block_size
    cache = PrefixCache(model, max(1, room), config.block_size)
    prefill = cache.prefill(prompt, SALTS[SAME])
    cold = _greedy(config, model, prefill.cache, prefill.logits, prompt)
    cache.prefill(earlier, SALTS[OTHER])
    for way in WAYS:
        reused = 0
        if way in SALTS:
            prefill = cache.prefill(prompt, SALTS[way])
            filled, logits, reused = prefill.cache, prefill.logits, prefill.report.reused
        else:
            filled, logits = _forwards(model, prompt, config.chunk if way == CHUNKS else len(prompt))
        warm = _greedy(config, model, filled, logits, prompt)
        parted = first_difference(cold.ids, warm.ids)
        best = [] if parted is None else cold.logits[parted].float().topk(2).values.tolist()
        yield {
            "way": way,
            "tokens": len(prompt),
            "reused": reused,
            "parted": parted,
            "margin": best[0] - best[1] if best else None,
            "logit_difference": (cold.logits[0].float() - warm.logits[0].float()).abs().max().item(),
        }


@torch.inference_mode()
def _forwards(model: Model, ids: tuple[int, ...], chunk: int) -> tuple[DynamicCache, torch.Tensor]:
    """transformers' own prefill in forwards of `chunk` tokens, and the logits [vocabulary] after the last one."""
    cache = DynamicCache()
    for start in range(0, len(ids), chunk):
        part = model.tensor(ids[start : start + chunk])
        output = model.lm(input_ids=part, cache=cache, use_cache=True, logits_to_keep=1)
    return cache, output.logits[0, -1]


def _greedy(
    config: Config, model: Model, cache: DynamicCache, logits: torch.Tensor, prompt: tuple[int, ...]
) -> Decoded:
    """Greedy tokens behind a filled cache, up to an end token."""
    first, end = int(logits.argmax()), model.tokenizer.eos_token_id
    if first == end or config.output == 1:
        return Decoded((first,), logits[None], [])
    rest = decode(WithCache(model, cache, prompt), (first,), config.output - 1, end)
    return Decoded((first, *rest.ids), torch.cat([logits[None], rest.logits]), rest.seconds)


def summarise(records: list[dict], config: Config) -> dict:
    """Per dtype and way: share of prompts whose tokens differ from the cold run's, the share that is still equal after
    each token, and for those that differ the first token that does and the cold run's margin there.

    more_than_chunks: share that differs behind another question's prefix minus share that differs with chunks, paired.
    """
    rows = [r for r in records if r["kind"] == "pair"]
    cells = {(d, w): [r for r in rows if (r["dtype"], r["way"]) == (d, w)] for d in config.dtypes for w in WAYS}
    return {
        "cells": {f"{dtype} {way}": _cell(found, config) for (dtype, way), found in cells.items()},
        "more_than_chunks": {
            dtype: paired_difference(
                *([float(r["parted"] is not None) for r in cells[dtype, w]] for w in (OTHER, CHUNKS))
            )
            for dtype in config.dtypes
        },
        "control": sum(r["parted"] is not None for dtype in config.dtypes for r in cells[dtype, TRANSFORMERS]),
        "tokens": median_iqr([r["tokens"] for r in cells[config.dtypes[0], TRANSFORMERS]]),
        "n": config.n,
        "output": config.output,
    }


def _cell(rows: list[dict], config: Config) -> dict:
    parted = [r for r in rows if r["parted"] is not None]
    kept = [sum(r["parted"] is None or r["parted"] > at for r in rows) / len(rows) for at in range(config.output)]
    return {
        "differs": wilson(len(parted), len(rows)),
        "still_equal": kept,
        "parted": median_iqr([r["parted"] for r in parted]),
        "margin": median_iqr([r["margin"] for r in parted]),
        "logit_difference": {
            **median_iqr([r["logit_difference"] for r in rows]),
            "max": max(r["logit_difference"] for r in rows),
        },
        "reused": median_iqr([r["reused"] for r in rows]),
    }


def plot(folder: Path) -> None:
    exactness_figure(folder)
