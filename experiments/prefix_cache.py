"""What an exact prefix cache gives and costs in time: block size, unique prompts, side channel of a hit, decoding."""

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from tqdm import tqdm

from experiments.common import RagConfig, identify, require_positive
from experiments.prefix_figures import prefix_figure
from replication.caches.prefix import PrefixCache
from replication.data import load
from replication.decode import generate
from replication.device import synchronize
from replication.errors import ReplicationError
from replication.fuse import fuse
from replication.measure import BASELINE
from replication.metrics.fidelity import kl
from replication.model import Model, load_model
from replication.prompt import passage_text
from replication.records import RunFolder
from replication.selectors.base import Selector
from replication.stats import auc, mean_ci, median_iqr, ratio_of_means
from replication.stored import StoredKV

TITLE = "Prefix cache in time: block size, unique prompts, side channel, end to end"


@dataclass(frozen=True)
class Config(RagConfig):
    """block sizes (S-15): prompts of `length` tokens whose first `cached` are shared, in `rounds` after one warm-up.
    unique prompts (S-18): `unique_rounds` of `unique_length` tokens. side channel (S-13): `probes` prompts for each
    number of `secret` tokens that a victim sent before. end to end (S-17): `outputs` tokens generated after the same
    prompts as for block sizes. Blocks have `block_size` tokens where nothing else is said.
    """

    n: int = 40
    length: int = 2048
    cached: int = 2000
    block_size: int = 16
    block_sizes: tuple[int, ...] = (1, 4, 16, 64, 256)
    rounds: int = 7
    unique_length: int = 512
    unique_rounds: int = 20
    secret: tuple[int, ...] = (16, 64, 256)
    probes: int = 30
    outputs: tuple[int, ...] = (16, 64)

    def __post_init__(self):
        counts = ("block_size", "rounds", "unique_length", "unique_rounds", "probes")
        require_positive(self, "n", *counts)
        if not 0 < self.cached < self.length:
            raise ReplicationError(f"cached must be between 0 and the length of {self.length} tokens")
        if self.block_size not in self.block_sizes or min(self.block_sizes) < 1:
            raise ReplicationError(f"block_sizes must be at least 1 and hold block_size, which is {self.block_size}")
        if not self.secret or not self.outputs or min(*self.secret, *self.outputs) < 2:
            raise ReplicationError("secret and outputs must be numbers of tokens of at least 2")


def run(config: Config, folder: RunFolder) -> None:
    """All parts, one after the other; what is compared is interleaved in rounds, and finished ones are not repeated."""
    loaded = load(config.dataset, config.n, config.seed, config.passages, config.data_dir or None)
    model = load_model(config.model, config.dtype, config.device)
    identify(folder, {"model": model.weights, "data": loaded.provenance})
    text = "".join(passage_text(p) for e in loaded.examples for p in e.passages)
    ids = tuple(model.tokenizer(text, add_special_tokens=False)["input_ids"])
    fresh = config.length - config.cached
    rounds = config.rounds + 1  # the first one warms up
    if len(ids) < config.cached + rounds * fresh:
        raise ReplicationError(f"{config.n} examples give {len(ids)} tokens, too few for so many rounds: raise n")
    tails = [ids[config.cached + r * fresh : config.cached + (r + 1) * fresh] for r in range(rounds)]
    prompts = [ids[: config.cached] + tail for tail in tails]
    parts = {  # how many records a round makes, and the rounds
        "block": (len(config.block_sizes), partial(_block_sizes, config, model, prompts)),
        "end": (len(config.outputs), partial(_end_to_end, config, model, prompts)),
        "unique": (1, partial(_unique, config, model)),
        "channel": (2 * len(config.secret), partial(_channel, config, model)),
    }
    for part, (size, steps) in parts.items():
        kept = sum(r["kind"] == part for r in folder.records)
        done = kept // size
        # a round that was broken off is run again as a whole, because what is compared is interleaved
        for number, record in enumerate(tqdm(steps(done), part, unit="cell"), start=done * size):
            if number >= kept:
                folder.append({"kind": part, "threads": torch.get_num_threads(), **record})


def _rounds(warm_up: int, count: int, done: int) -> list[int]:
    """Numbers of the rounds to run: the first `warm_up` ones, and of the `count` after them what is not done."""
    return [*range(warm_up), *range(warm_up + done, warm_up + count)] if done < count else []


def _block_sizes(config: Config, model: Model, prompts: list[tuple[int, ...]], done: int) -> Iterator[dict]:
    """A hit of `cached` tokens for each block size, beside transformers' full prefill of the same prompt."""
    caches = {size: PrefixCache(model, -(-2 * config.length // size), size) for size in config.block_sizes}
    for number in _rounds(1, config.rounds, done):
        ids = prompts[number]
        begun = time.perf_counter()
        truth = _full_logits(model, ids)
        baseline = time.perf_counter() - begun
        for size, cache in _rotated(list(caches.items()), number):
            prefill = cache.prefill(ids)
            if number:
                cell = {"cell": size, "round": number, "reused": prefill.report.reused}
                divergence = kl(truth, prefill.logits.float().log_softmax(-1)).item()
                seconds = {**prefill.report.seconds, BASELINE: baseline}
                yield {**cell, "kl": divergence, "seconds": seconds}


def _end_to_end(config: Config, model: Model, prompts: list[tuple[int, ...]], done: int) -> Iterator[dict]:
    """TTFT and decoding after a miss and then after a hit of the whole prompt, the best that the cache can give."""
    cache = PrefixCache(model, -(-2 * config.length // config.block_size), config.block_size)
    for number in _rounds(1, config.rounds, done):
        ids = prompts[number]
        for output in config.outputs:
            seconds = {}
            for kind in ("miss", "hit"):
                prefill = cache.prefill(ids, salt=f"{number} {output}")  # one that nobody has used makes a miss
                begun = time.perf_counter()
                generate(model, ids, prefill, max_new_tokens=output, min_new_tokens=output - 1)
                synchronize(model.device)
                seconds[f"decode_{kind}"] = time.perf_counter() - begun
                seconds[f"ttft_{kind}"] = prefill.report.seconds["ttft"]
            if number:
                yield {"cell": output, "round": number, "seconds": seconds}


def _unique(config: Config, model: Model, done: int) -> Iterator[dict]:
    """Prompts that share nothing, with the cache (its pool full, so that it evicts) and without."""
    cache = PrefixCache(model, -(-2 * config.unique_length // config.block_size), config.block_size)
    for number in _rounds(3, config.unique_rounds, done):  # the first ones fill the pool, too
        ids = _random_ids(model, config.unique_length, random.Random(f"unique-{config.seed}-{number}"))
        seconds = {}
        for kind in _rotated(["cached", "plain"], number):
            begun = time.perf_counter()
            if kind == "cached":
                prefill = cache.prefill(ids)
                seconds |= {part: prefill.report.seconds[part] for part in ("lookup", "store")}
            else:
                fuse(StoredKV(model, ids, []), Selector(ratio=0))
            seconds[kind] = time.perf_counter() - begun
        if number >= 3:
            yield {"round": number, "seconds": seconds}


def _channel(config: Config, model: Model, done: int) -> Iterator[dict]:
    """A victim sends a secret prefix; an attacker times a prompt with it, and one with another prefix."""
    longest = max(config.secret) + 2 * config.block_size
    cache = PrefixCache(model, 8 * -(-longest // config.block_size), config.block_size)
    for number in _rounds(1, config.probes, done):
        rng = random.Random(f"channel-{config.seed}-{number}")
        for tokens in config.secret:
            for salted in (False, True):
                victim, attacker = ("victim", "attacker") if salted else ("", "")
                secret, other = (_random_ids(model, tokens, rng) for _ in range(2))
                mine, theirs = (_random_ids(model, config.block_size, rng) for _ in range(2))
                cache.prefill(secret + theirs, victim)
                guesses = _rotated([("seen", secret), ("unseen", other)], rng.randrange(2))
                seconds = {k: cache.prefill(guess + mine, attacker).report.seconds["ttft"] for k, guess in guesses}
                if number:
                    yield {"cell": tokens, "salted": salted, "round": number, "seconds": seconds}


@torch.inference_mode()
def _full_logits(model: Model, ids: tuple[int, ...]) -> torch.Tensor:
    """Log-probabilities [vocabulary] after the last token, by transformers' own prefill."""
    logits = model.lm(input_ids=model.tensor(ids), use_cache=True, logits_to_keep=1).logits[0, -1]
    synchronize(model.device)
    return logits.float().log_softmax(-1)


def _random_ids(model: Model, count: int, rng: random.Random) -> tuple[int, ...]:
    return tuple(rng.randrange(model.config.vocab_size) for _ in range(count))


def _rotated(items: list, turn: int) -> list:
    turn %= len(items)
    return items[turn:] + items[:turn]


def summarise(records: list[dict], config: Config) -> dict:
    """Ratios are between times of one round. `hit` is the cell of `block_size`."""
    rows = {kind: [r for r in records if r["kind"] == kind] for kind in ("block", "end", "unique", "channel")}
    blocks = {str(size): _block([r for r in rows["block"] if r["cell"] == size]) for size in config.block_sizes}
    return {
        "block_sizes": blocks,
        "hit": blocks[str(config.block_size)],
        "tail_waste": config.cached - blocks[str(max(config.block_sizes))]["reused"],
        "lookup_large_over_small": median_iqr(_lookups(rows, max(config.block_sizes), min(config.block_sizes))),
        "unique": _unique_summary(rows["unique"], config),
        "channel": {
            kind: {str(n): _told_apart(rows["channel"], n, kind == "salted") for n in config.secret}
            for kind in ("shared", "salted")
        },
        "end_to_end": {str(n): _end([r["seconds"] for r in rows["end"] if r["cell"] == n]) for n in config.outputs},
        "threads": rows["block"][0]["threads"],
    }


def _block(rows: list[dict]) -> dict:
    seconds = [r["seconds"] for r in rows]
    return {
        "reused": rows[0]["reused"],
        "kl": max(r["kl"] for r in rows),
        "ttft": median_iqr([s["ttft"] for s in seconds]),
        "of_cold": median_iqr([s["ttft"] / s[BASELINE] for s in seconds]),
        "lookup_of_cold": median_iqr([s["lookup"] / s[BASELINE] for s in seconds]),
        "parts": {part: median_iqr([s[part] for s in seconds]) for part in ("lookup", "load", "fuse", "store")},
    }


def _lookups(rows: dict, large: int, small: int) -> list[float]:
    seconds = {(r["cell"], r["round"]): r["seconds"]["lookup"] for r in rows["block"]}
    return [seconds[large, n] / seconds[small, n] for size, n in seconds if size == large]


def _unique_summary(rows: list[dict], config: Config) -> dict:
    """throughput_ratio: of prompts per second with the cache over without."""
    seconds = {part: [r["seconds"][part] for r in rows] for part in ("cached", "plain", "lookup", "store")}
    return {
        "throughput_ratio": ratio_of_means(seconds["plain"], seconds["cached"]),
        "lookup_share": ratio_of_means(seconds["lookup"], seconds["plain"]),
        "store_share": ratio_of_means(seconds["store"], seconds["plain"]),
        "tokens_per_second": mean_ci([config.unique_length / s for s in seconds["cached"]]),
    }


def _told_apart(rows: list[dict], tokens: int, salted: bool) -> dict:
    seconds = [r["seconds"] for r in rows if (r["cell"], r["salted"]) == (tokens, salted)]
    return auc([s["seen"] for s in seconds], [s["unseen"] for s in seconds])


def _end(seconds: list[dict]) -> dict:
    """decode_ratio: after a hit over after a miss. untouched: decoding's share of the time of a miss."""
    total = [{kind: s[f"ttft_{kind}"] + s[f"decode_{kind}"] for kind in ("miss", "hit")} for s in seconds]
    pairs = list(zip(seconds, total, strict=True))
    return {
        "decode_ratio": median_iqr([s["decode_hit"] / s["decode_miss"] for s in seconds]),
        "untouched": median_iqr([s["decode_miss"] / t["miss"] for s, t in pairs]),
        "ttft_speedup": median_iqr([s["ttft_miss"] / s["ttft_hit"] for s in seconds]),
        "speedup": median_iqr([t["miss"] / t["hit"] for t in total]),
        "overstated": median_iqr([s["ttft_miss"] / s["ttft_hit"] / (t["miss"] / t["hit"]) for s, t in pairs]),
    }


def plot(folder: Path) -> None:
    prefix_figure(folder)
