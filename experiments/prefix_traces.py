"""Capacity against hit rate on real traffic, with the cache's own pool and no tensors (S-10 to S-12, S-15, S-16)."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm
from transformers import AutoTokenizer

from experiments import prefix_conversations
from experiments.common import RagConfig, identify
from experiments.prefix_figures import conversations_figure, traces_figure
from replication.caches.block_names import BlockNames
from replication.caches.block_pool import BlockPool, Name
from replication.caches.replay import Visit, replay
from replication.chunk import prefill_chunk
from replication.data import mooncake, tau_bench
from replication.errors import ReplicationError
from replication.model import Model, load_model
from replication.records import RunFolder
from replication.registry import Registry
from replication.runner import check_device, model_source

TITLE = "Prefix cache capacity against hit rate: Mooncake's trace, and tau-bench's conversations in token ids"
BATCHES = ("released at once", "held while decoding")


@dataclass(frozen=True)
class Config(RagConfig):
    """capacities: of the pool, as a share of the trace's distinct blocks. model: whose KV gives the size of a pool in
    bytes, and whose tokenizer and chat template give a conversation's token ids.

    mooncake: a request in flight holds its blocks for `token_seconds` per token that it generates. tau-bench: the
    first of `block_sizes` (tokens) is that of the pools; `at_once` conversations take turns.
    """

    dataset: str = "mooncake"
    capacities: tuple[float, ...] = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
    token_seconds: float = 0.05
    block_sizes: tuple[int, ...] = (16, 32, 64, 128, 256, 512)
    at_once: tuple[int, ...] = (1, 8, 64)

    def __post_init__(self):
        TRACES[self.dataset]
        if not self.capacities or min(self.capacities) <= 0:
            raise ReplicationError("every capacity must be a share above 0 of the trace's distinct blocks")
        if self.token_seconds < 0:
            raise ReplicationError(f"token_seconds must not be negative, as {self.token_seconds} is")
        if not self.block_sizes or not self.at_once or min(*self.block_sizes, *self.at_once) < 1:
            raise ReplicationError("block_sizes and at_once must be numbers of at least 1")


def check(config: Config) -> None:
    """ReplicationError when the model or the trace cannot be read."""
    source = model_source(config.model)
    check_device(config.device, config.dtype)
    if config.dataset == "mooncake":
        mooncake.load_trace(config.data_dir)
    else:
        prefix_conversations.prompts_of(
            tau_bench.load_conversations(config.data_dir)[0][:1], AutoTokenizer.from_pretrained(source)
        )


def run(config: Config, folder: RunFolder) -> None:
    """The whole trace once for each capacity and way in which requests overlap."""
    TRACES[config.dataset](config, folder, load_model(config.model, config.dtype, config.device))


TRACES = Registry("trace")


@TRACES.register("mooncake")
def _mooncake(config: Config, folder: RunFolder, model: Model) -> None:
    """With and without the running batch in the pool."""
    arrivals, source = mooncake.load_trace(config.data_dir)
    names = [[Name(block, block) for block in arrival.blocks] for arrival in arrivals]
    held = [
        Visit(n, -(-a.output // mooncake.BLOCK), a.time, a.time + config.token_seconds * a.output)
        for a, n in zip(arrivals, names, strict=True)
    ]
    released = [Visit(v.names, 0, v.start, v.start) for v in held]
    _replay(config, folder, model, {"data": source}, mooncake.BLOCK, dict(zip(BATCHES, (released, held), strict=True)))


@TRACES.register("tau-bench")
def _conversations(config: Config, folder: RunFolder, model: Model) -> None:
    """With few and many conversations at once; and what conversations share, by block size."""
    messages, source = tau_bench.load_conversations(config.data_dir)
    conversations = prefix_conversations.prompts_of(tqdm(messages, "prompts", unit="conversation"), model.tokenizer)
    names = prefix_conversations.names_of(conversations, BlockNames(model.fingerprint, config.block_sizes[0]))
    orders = {
        str(at_once): [Visit(names[n][call]) for n, call in prefix_conversations.order(conversations, at_once)]
        for at_once in config.at_once
    }
    inputs = {"data": source, "model": model.weights}
    _replay(config, folder, model, inputs, config.block_sizes[0], orders)
    done = folder.done(("kind", "block", "conversation"))
    for size in tqdm(config.block_sizes, "block sizes", unit="size"):
        for record in prefix_conversations.sharing(conversations, size):
            if ("conversation", size, record["conversation"]) not in done:
                folder.append({"kind": "conversation", "block": size, **record})


def _replay(
    config: Config, folder: RunFolder, model: Model, inputs: dict, block: int, batches: dict[str, list[Visit]]
) -> None:
    """Records of every capacity and batch; finished ones are not repeated."""
    visits = next(iter(batches.values()))
    distinct = len({name.key for visit in visits for name in visit.names})
    total = sum(len(visit.names) for visit in visits)
    block_bytes = prefill_chunk(model, (0,)).nbytes * block
    identify(folder, {**inputs, "distinct": distinct, "block_bytes": block_bytes})
    done = folder.done(("kind", "capacity", "batch"))
    cells = [(capacity, batch) for capacity in config.capacities for batch in batches]
    for capacity, batch in tqdm(cells, "replays", unit="cell"):
        if ("replay", capacity, batch) not in done:
            pool = BlockPool(max(1, round(capacity * distinct)))
            found = sum(replay(pool, batches[batch]))
            cell = {"capacity": capacity, "batch": batch, "blocks": pool.capacity, "evictions": pool.evictions}
            folder.append({"kind": "replay", **cell, "found": found, "looked_up": total})


def summarise(records: list[dict], config: Config) -> dict:
    """Hit rate (blocks found of blocks looked up) by capacity, and what it is relative to the largest capacity.

    tau-bench: that for each number of conversations `at_once`, and shares of prompt tokens saved by block size.
    """
    if config.dataset == "mooncake":
        released, held = (_capacities(records, config, batch) for batch in BATCHES)
        return {
            "capacities": {
                capacity: {
                    **cell,
                    "hit_rate_with_batch": held[capacity]["hit_rate"],
                    "batch_over_none": held[capacity]["hit_rate"] / cell["hit_rate"],
                }
                for capacity, cell in released.items()
            }
        }
    rows = [r for r in records if r["kind"] == "conversation"]
    sizes = config.block_sizes
    return {
        "at_once": {str(n): _capacities(records, config, str(n)) for n in config.at_once},
        "saved": prefix_conversations.saved(rows, sizes),
        "large_blocks": prefix_conversations.loss(rows, min(sizes), max(sizes)),
        "block": sizes[0],
        **prefix_conversations.sizes_of([r for r in rows if r["block"] == sizes[0]]),
    }


def _capacities(records: Iterable[dict], config: Config, batch: str) -> dict:
    size = next(r["block_bytes"] for r in records if r["kind"] == "inputs")
    cells = {r["capacity"]: r for r in records if r["kind"] == "replay" and r["batch"] == batch}
    rates = {capacity: cell["found"] / cell["looked_up"] for capacity, cell in cells.items()}
    return {
        f"{capacity:g}": {
            "blocks": cells[capacity]["blocks"],
            "gib": cells[capacity]["blocks"] * size / 2**30,
            "hit_rate": rates[capacity],
            "of_best": rates[capacity] / rates[max(config.capacities)],
        }
        for capacity in config.capacities
    }


def plot(folder: Path) -> None:
    """The figure of the folder's data set."""
    {"mooncake": traces_figure, "tau-bench": conversations_figure}[folder.name](folder)
