"""Recompute behind loading: TTFT from memory, disk and slower devices, and the controller's two choices (S-23).

One prompt of a fixed length, its chunks in files that are read layer by layer. The model computes on `threads` cores
and the loader has another, as loading and computing do not share a processor where there is an accelerator.
"""

import os
import shutil
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from tqdm import tqdm

from experiments.common import RagConfig, identify, require_positive
from experiments.loading_figure import loading_figure
from experiments.loading_summary import BLEND, MODES, REUSE, device_name, summary_of
from experiments.running_text import running_prompt
from replication.chunk import ChunkKV
from replication.chunk_file import chunk_key
from replication.data import load
from replication.errors import ReplicationError
from replication.layer_store import LayerStore
from replication.loader import Event, Loader, pipelined_prefill
from replication.measure import BASELINE, cell, transformers_ttft
from replication.methods import make_method
from replication.model import Model, load_model
from replication.prompt import ChunkedPrompt
from replication.records import RunFolder
from replication.store import ChunkStore, HostStore, MemoryStore
from replication.throttle import TokenBucket

TITLE = "Loading: pipelined recompute over memory, disk and throttled devices; the loading controller"
AHEAD = {"sequential": 0, "pipelined": 1}
LABELS = ("kind", "device", "cell", "mode")


@dataclass(frozen=True)
class Config(RagConfig):
    """length: tokens of the prompt: a shared prefix of `prefix` tokens, chunks of `chunk`, a question of `fresh`.

    rates: GB/s of the throttled devices; prices: what a byte costs on each for as long as it is kept, in any unit
    (assumed: only their order counts). ratio: of the cells that are measured on every device; ratios: of those on the
    device with the rate `swept`, and in memory. traced: the rate whose requests are drawn. profile: prompt lengths
    of the prefill profile, each `profile_rounds` times. entries: chunks in the index whose memory is measured.
    """

    n: int = 40
    length: int = 1024
    chunk: int = 160
    prefix: int = 32
    fresh: int = 32
    ratio: float = 0.15
    ratios: tuple[float, ...] = (0.05, 0.15, 0.25, 0.35, 0.5, 0.7)
    rates: tuple[float, ...] = (0.05, 0.1, 0.2, 0.5, 1.0, 5.0)
    prices: tuple[float, ...] = (1, 2, 4, 8, 16, 32)
    swept: float = 0.05
    traced: float = 0.1
    rounds: int = 5
    profile: tuple[int, ...] = (512, 1024, 2048, 4096)
    profile_rounds: int = 3
    threads: int = 1
    entries: int = 100_000

    def __post_init__(self):
        require_positive(self, "n", "chunk", "prefix", "fresh", "rounds", "profile_rounds", "threads", "entries")
        if self.length <= self.prefix + self.fresh:
            raise ReplicationError(f"length must exceed the {self.prefix + self.fresh} tokens of prefix and question")
        if len(self.prices) != len(self.rates) or not {self.swept, self.traced} <= set(self.rates):
            raise ReplicationError("there must be a price for every rate, and swept and traced must be among the rates")
        if self.ratio not in self.ratios or min(self.ratios) <= 0:
            raise ReplicationError("ratios must be above 0, and ratio one of them")
        for ratio in self.ratios:
            make_method(BLEND, ratio)
        for rate in self.rates:
            TokenBucket(rate * 1e9)

    @property
    def devices(self) -> list[str]:
        # a disk is only a disk where its pages can be dropped from memory
        disk = ["disk"] if hasattr(os, "posix_fadvise") else []
        return ["memory", "page cache", *disk, *map(device_name, self.rates)]

    def cells(self, device: str) -> list[tuple[str, float, str]]:
        """(method, ratio, mode) of what is measured on a device; in memory there is nothing to overlap."""
        modes = ["pipelined"] if device == "memory" else list(MODES)
        both = [(method, ratio, mode) for mode in modes for method, ratio in ((REUSE, 0.0), (BLEND, self.ratio))]
        swept = device in ("memory", device_name(self.swept))
        more = [(BLEND, ratio, "pipelined") for ratio in self.ratios if ratio != self.ratio]
        return both + more * swept


def run(config: Config, folder: RunFolder) -> None:
    """The prefill profile, then all devices interleaved, `rounds` times after one warm-up."""
    loaded = load(config.dataset, config.n, config.seed, config.passages, config.data_dir or None)
    model = load_model(config.model, config.dtype, config.device)
    identify(folder, {"kind": "inputs", "model": model.weights, "data": loaded.provenance})
    prompts = {
        length: running_prompt(model, loaded, length, config.chunk, config.prefix, config.fresh)
        for length in (*config.profile, config.length)
    }
    with _threads(config.threads):
        done = folder.done(("kind", "length", "round"))
        for number in tqdm(range(config.profile_rounds), "prefill profile", unit="round"):
            for length in config.profile:
                if ("prefill", length, number) not in done:
                    seconds = {"ttft": transformers_ttft(model, prompts[length])}
                    folder.append({"kind": "prefill", "length": length, "round": number, "seconds": seconds})
        with _stores(config, folder.path) as stores:
            _measure(config, folder, model, prompts[config.length], stores)
    if not any(r["kind"] == "index" for r in folder.records):
        folder.append({"kind": "index", **_index(config.entries)})


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _stores(config: Config, path: Path) -> Iterator[dict[str, ChunkStore]]:
    """One store a device; the files lie beside the results, so that the disk is theirs, and go afterwards."""
    files = path / "chunks"
    shutil.rmtree(files, ignore_errors=True)
    buckets = {device_name(rate): TokenBucket(rate * 1e9) for rate in config.rates}
    try:
        stores = {device: LayerStore(files, bucket=buckets.get(device)) for device in config.devices[1:]}
        yield {"memory": HostStore(), **stores}
    finally:
        shutil.rmtree(files, ignore_errors=True)


def _measure(
    config: Config, folder: RunFolder, model: Model, prompt: ChunkedPrompt, stores: dict[str, ChunkStore]
) -> None:
    for device in ("memory", "page cache"):  # the other devices read the files of the page cache's store
        make_method(BLEND, config.ratio).learn(model, prompt, stores[device])
    bench = _Bench(config, model, prompt, stores)
    done = folder.done((*LABELS, "round"))
    for number in tqdm(range(-1, config.rounds), "devices", unit="round"):  # the first round warms up
        for labels, work in bench.jobs(number):
            if (*(labels[key] for key in LABELS), number) not in done:
                found = work()
                if number >= 0:
                    folder.append({**labels, "round": number, "threads": config.threads, **found})


@dataclass
class _Bench:
    """Everything that is measured in a round, each as its labels and the work that gives the rest of its record."""

    config: Config
    model: Model
    prompt: ChunkedPrompt
    stores: dict[str, ChunkStore]

    def __post_init__(self):
        methods = {(method, ratio) for method, ratio, _ in self.config.cells("memory")}
        store = self.stores["memory"]
        self.truth = {m: make_method(*m).prefill(self.model, self.prompt, store).logits for m in methods}

    def jobs(self, number: int) -> Iterator[tuple[dict, Callable[[], dict]]]:
        """The order of the devices rotates with the round, so that none always follows the same one."""
        yield {"kind": "full", "device": "", "cell": BASELINE, "mode": ""}, self._full
        devices = self.config.devices
        turn = number % len(devices)
        for device in devices[turn:] + devices[:turn]:
            yield {"kind": "load", "device": device, "cell": "", "mode": ""}, partial(self._load, device)
            for method, ratio, mode in self.config.cells(device):
                labels = {"kind": "timing", "device": device, "cell": cell(method, ratio), "mode": mode}
                drawn = number == 0 and device == device_name(self.config.traced) and ratio == self.config.ratio
                yield labels, partial(self._blend, device, method, ratio, mode, drawn)

    def _store(self, device: str) -> ChunkStore:
        store = self.stores[device]
        if device == "disk":
            store.forget_cached()
        return store

    def _full(self) -> dict:
        return {"seconds": {"ttft": transformers_ttft(self.model, self.prompt)}}

    def _load(self, device: str) -> dict:
        """The layers loaded one by one, and nothing computed."""
        pieces = make_method(REUSE).source.find(self.model, self.prompt, self._store(device))
        loader = Loader(self.model, self.prompt.ids, pieces, ahead=0)
        nbytes = 0.0
        with loader:
            for index in range(len(self.model.layers)):
                nbytes += sum(t.nbytes for t in loader.layer(index)) / len(self.prompt)
        tokens = int(loader.stored.sum())
        seconds = [e.end - e.begin for e in loader.trace if e.kind == "load"]
        return {"tokens": tokens, "bytes_per_token": nbytes, "seconds": {"load": seconds}}

    def _blend(self, device: str, method: str, ratio: float, mode: str, drawn: bool) -> dict:
        """One request. exact: whether its logits are those of the same method over chunks in memory, to the bit."""
        ahead = len(self.model.layers) if mode == "prefetched" else AHEAD[mode]
        made = make_method(method, ratio)
        prefill, trace = pipelined_prefill(made, self.model, self.prompt, self._store(device), ahead)
        seconds = dict(prefill.report.seconds)
        if device == "memory":
            seconds |= stages(trace)
        if drawn:
            start = trace[0].begin
            seconds["events"] = [[e.kind, e.layer, e.begin - start, e.end - start] for e in trace]
        return {"exact": torch.equal(prefill.logits, self.truth[method, ratio]), "seconds": seconds}


def stages(trace: list[Event]) -> dict:
    """before: seconds until layer 0 was asked for. compute: for each layer, from when its KV was handed out until the
    next layer's was asked for, or the request ended."""
    waits = [e for e in trace if e.kind == "wait"]
    ends = [e.begin for e in waits[1:]] + [trace[0].end]
    compute = [end - wait.end for wait, end in zip(waits, ends, strict=True)]
    return {"before": waits[0].begin - trace[0].begin, "compute": compute}


def _index(entries: int) -> dict:
    """Bytes that a store's index takes beside the KV: `entries` names, as the hash tables have them, of one chunk."""
    chunk = ChunkKV((0,), 0, [], [])
    store = MemoryStore()
    tracemalloc.start()
    for number in range(entries):
        store.put(chunk_key("", (number,), dtype=""), chunk)
    nbytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return {"entries": entries, "bytes_per_entry": round(nbytes / entries)}


def summarise(records: list[dict], config: Config) -> dict:
    return summary_of(records, config)


def plot(folder: Path) -> None:
    loading_figure(folder)
