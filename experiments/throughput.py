"""Throughput: TTFT under load from measured service times, checked by live runs, and batches (A-12, A-14).

Service is the prefill: one server takes requests one by one, first come first served, as in a cluster that keeps
prefill apart from decoding.
"""

import queue
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from tqdm import tqdm
from transformers import DynamicCache

from experiments.common import RagConfig, identify, require_positive
from experiments.running_text import running_prompt
from experiments.throughput_figure import throughput_figure
from experiments.throughput_summary import summary_of
from experiments.workload import extended_workload
from replication.caches.embedding import embedder_directory, load_embedder
from replication.chunk_file import chunk_key
from replication.data import Loaded, load
from replication.device import synchronize
from replication.errors import ReplicationError
from replication.fuse import Report
from replication.methods import Chunks, PrefixChain, make_method
from replication.model import Model, load_model
from replication.prompt import ChunkedPrompt, build_prompt, chain
from replication.queueing import poisson_arrivals
from replication.records import RunFolder
from replication.runner import check_device, model_source
from replication.store import MemoryStore

TITLE = "Throughput: TTFT against the arrival rate, simulated from measured service times and live; batches"


@dataclass(frozen=True)
class Config(RagConfig):
    """Workload: n questions in several wordings, `top` passages each; the first `skip` of the requests are not
    measured, since they find the stores empty (the paper: 1,000 of 6,000).

    ratio: recomputed by the blend. `simulated` requests in each of `resamples` draws, at `loads` times the rate that
    full prefill can serve; limit: the TTFT at which throughputs are compared, in full prefills. live: methods that also
    serve real requests, each for `live_seconds` at `live_load` of what it can serve. Batches of `sizes` prompts of
    `batch_length` tokens, `rounds` times, with `output` tokens decoded.
    """

    n: int = 24
    top: int = 6
    skip: float = 1 / 6
    ratio: float = 0.15
    loads: tuple[float, ...] = (0.2, 0.5, 0.7, 0.8, 0.9, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0, 8.0)
    limit: float = 2.0
    simulated: int = 2000
    resamples: int = 200
    live: tuple[str, ...] = ("full", "cacheblend-paper")
    live_seconds: float = 60.0
    live_load: float = 0.7
    sizes: tuple[int, ...] = (1, 2, 4, 8)
    batch_length: int = 512
    chunk: int = 128
    prefix: int = 32
    fresh: int = 32
    rounds: int = 4
    output: int = 16

    def __post_init__(self):
        require_positive(self, "n", "top", "simulated", "resamples", "chunk", "prefix", "fresh", "rounds", "output")
        if not 0 <= self.skip < 1 or not 0 < self.live_load < 1 or not self.live_seconds > 0 or not self.limit > 1:
            raise ReplicationError("skip must be 0..1, live_load 0..1, live_seconds above 0 and limit above 1")
        if not self.loads or min(self.loads) <= 0 or not self.sizes or min(self.sizes) < 1:
            raise ReplicationError("loads must be above 0, and sizes at least 1")
        if self.batch_length <= self.prefix + self.fresh:
            raise ReplicationError(
                f"batch_length must exceed the {self.prefix + self.fresh} tokens of prefix and question"
            )
        if unknown := sorted(set(self.live) - set(self.methods)):
            raise ReplicationError(f"live must be of {', '.join(self.methods)}, not {', '.join(unknown)}")

    @property
    def methods(self) -> dict[str, float]:
        """Method -> recompute ratio, of those whose service is measured."""
        return {"full": 0.0, "prefix": 0.0, "full-reuse": 0.0, "cacheblend-paper": self.ratio}


@dataclass(frozen=True)
class Case:
    """A request of the workload, and the stores as earlier requests left them, without what it does not find there."""

    id: str
    prompt: ChunkedPrompt
    stores: dict[str, MemoryStore]


def check(config: Config) -> None:
    """ReplicationError when the models, the data or the device cannot be used."""
    model_source(config.model)
    embedder_directory()
    check_device(config.device, config.dtype)
    load(config.dataset, config.n, config.seed, config.passages, config.data_dir or None)


def run(config: Config, folder: RunFolder) -> None:
    """Service times of the workload, live runs, batches."""
    loaded = load(config.dataset, config.n, config.seed, config.passages, config.data_dir or None)
    model, embedder = load_model(config.model, config.dtype, config.device), load_embedder()
    identify(
        folder, {"kind": "inputs", "model": model.weights, "embedder": embedder.weights, "data": loaded.provenance}
    )
    queries = extended_workload(loaded.examples, embedder, config.top, config.seed)
    style = (model.tokenizer, config.style, model.context)
    prompts = {q.id: build_prompt(q.passages, q.question, *style) for q in queries}
    cases = _cases(model, prompts, round(config.skip * len(prompts)))
    recalled = {q.id: q.recalled for q in queries}
    _services(config, folder, model, cases, recalled)
    for method in config.live:
        if ("live", method) not in folder.done(("kind", "method")):
            folder.append({"kind": "live", "method": method, "seconds": _live(config, folder, model, cases, method)})
    _batches(config, folder, model, loaded)


def _cases(model: Model, prompts: dict[str, ChunkedPrompt], skip: int) -> list[Case]:
    """The requests after the first `skip`. Stores have no bound, and no time is charged for filling them, as in the
    paper, which writes in the background and idealises prefix caching."""
    chunks, seen = MemoryStore(), set()
    cases = []
    for number, (id, prompt) in enumerate(tqdm(prompts.items(), "filling stores", unit="request")):
        if number >= skip:
            stores = (_found(model, prompt, chunks), _prefix(model, prompt, seen), MemoryStore())
            cases.append(
                Case(id, prompt, dict(zip((Chunks().keeps, PrefixChain().keeps, "nothing"), stores, strict=True)))
            )
        Chunks().learn(model, prompt, chunks)
        seen |= {prompt.ids[: segment.stop] for segment in prompt.segments}
    return cases


def _found(model: Model, prompt: ChunkedPrompt, chunks: MemoryStore) -> MemoryStore:
    """What a request finds in `chunks` now, whatever is added later."""
    found = MemoryStore()
    for chunk in (piece.chunk for piece in Chunks().find(model, prompt, chunks)):
        found.put(chunk_key(model.fingerprint, chunk.ids, chunk.context, chunk.start, dtype=model.dtype), chunk)
    return found


def _prefix(model: Model, prompt: ChunkedPrompt, seen: set[tuple[int, ...]]) -> MemoryStore:
    """The KV of the request's longest prefix among those that were `seen`; built now, for all of them take too much
    memory."""
    known = [segment for segment in prompt.segments[:-1] if prompt.ids[: segment.stop] in seen]
    found = MemoryStore()
    if known:
        parts = [(s.kind, s.ids) for s in (*known, prompt.segments[-1])]
        PrefixChain().learn(model, chain(parts, prompt.bos), found)
    return found


def _serve(config: Config, model: Model, case: Case, name: str) -> Report:
    method = make_method(name, config.methods[name])
    return method.prefill(model, case.prompt, case.stores[method.source.keeps]).report


def _services(config: Config, folder: RunFolder, model: Model, cases: list[Case], recalled: dict[str, bool]) -> None:
    """Each request by every method, one after the other; the order rotates with the request."""
    names = list(config.methods)
    for name in names:  # warms up
        _serve(config, model, cases[0], name)
    done = folder.done(("kind", "case", "method"))
    for number, case in enumerate(tqdm(cases, "service times", unit="request")):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            if ("service", case.id, name) not in done:
                report = _serve(config, model, case, name)
                folder.append(
                    {
                        "kind": "service",
                        "case": case.id,
                        "method": name,
                        "tokens": len(case.prompt),
                        "reused": report.reused,
                        "recalled": recalled[case.id],
                        "threads": torch.get_num_threads(),
                        "seconds": {"ttft": report.seconds["ttft"]},
                    }
                )


def _live(config: Config, folder: RunFolder, model: Model, cases: list[Case], name: str) -> dict:
    """Requests that come while others are served: a thread puts them into a queue at Poisson times, the server takes
    them out. Per request: arrival, and TTFT from there; service: what it took before, measured alone."""
    alone = {r["case"]: r["seconds"]["ttft"] for r in folder.records if r["kind"] == "service" and r["method"] == name}
    rate = config.live_load * len(alone) / sum(alone.values())
    arrivals = poisson_arrivals(rate, round(rate * config.live_seconds), config.seed).tolist()
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    begun = time.perf_counter()

    def arrive():
        for number, arrival in enumerate(arrivals):
            time.sleep(max(0.0, begun + arrival - time.perf_counter()))
            waiting.put(number)

    threading.Thread(target=arrive, daemon=True).start()
    ttft = []
    for _ in tqdm(arrivals, f"live: {name}", unit="request"):
        number = waiting.get()
        _serve(config, model, cases[number % len(cases)], name)
        ttft.append(time.perf_counter() - begun - arrivals[number])
    service = [alone[cases[number % len(cases)].id] for number in range(len(arrivals))]
    return {"arrivals": arrivals, "ttft": ttft, "service": service}


def _batches(config: Config, folder: RunFolder, model: Model, loaded: Loaded) -> None:
    """Prompts of equal length: full prefill of a whole batch at once, blends one by one (their rows differ, so the
    executor takes one prompt at a time), and the decoding of the batch."""
    shape = (config.batch_length, config.chunk, config.prefix, config.fresh)
    prompts = [running_prompt(model, loaded, *shape, number) for number in range(max(config.sizes))]
    blend = make_method("cacheblend-paper", config.ratio)
    store = MemoryStore()
    for prompt in prompts:
        blend.learn(model, prompt, store)
    done = folder.done(("kind", "size", "round"))
    for number in tqdm(range(-1, config.rounds), "batches", unit="round"):  # the first round warms up
        for size in config.sizes:
            if ("batch", size, number) not in done:
                blends = [blend.prefill(model, p, store).report.seconds["ttft"] for p in prompts[:size]]
                full, decode = _batch(config, model, prompts[:size])
                seconds = {"full": full, "blends": blends, "decode": decode}
                if number >= 0:
                    folder.append({"kind": "batch", "size": size, "round": number, "seconds": seconds})


@torch.inference_mode()
def _batch(config: Config, model: Model, prompts: list[ChunkedPrompt]) -> tuple[float, list[float]]:
    """Seconds of the batch's full prefill, and of each decoding step after the first token."""
    ids = torch.cat([model.tensor(prompt.ids) for prompt in prompts])
    cache, seconds = DynamicCache(), []
    for _ in range(config.output):
        begun = time.perf_counter()
        logits = model.lm(input_ids=ids, cache=cache, use_cache=True, logits_to_keep=1).logits
        ids = logits[:, -1].argmax(-1, keepdim=True)
        synchronize(model.device)
        seconds.append(time.perf_counter() - begun)
    return seconds[0], seconds[1:]


def summarise(records: list[dict], config: Config) -> dict:
    return summary_of(records, config)


def plot(folder: Path) -> None:
    throughput_figure(folder)
