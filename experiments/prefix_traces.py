"""Capacity against hit rate on a real trace, with the cache's own pool and no tensors (S-10, S-12, S-16)."""

from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from experiments.common import RagConfig, identify
from experiments.prefix_figures import traces_figure
from replication.caches.block_pool import BlockPool, Name
from replication.caches.replay import Visit, replay
from replication.chunk import prefill_chunk
from replication.data import mooncake
from replication.errors import ReplicationError
from replication.model import load_model
from replication.records import RunFolder
from replication.runner import check_device, model_source

TITLE = "Prefix cache capacity against hit rate on Mooncake's conversation trace"
BATCHES = ("released at once", "held while decoding")


@dataclass(frozen=True)
class Config(RagConfig):
    """capacities: of the pool, as a share of the trace's distinct blocks. token_seconds: how long a request in flight
    holds its blocks, per token that it generates. model: whose KV gives the size of a pool in bytes."""

    dataset: str = "mooncake"
    capacities: tuple[float, ...] = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
    token_seconds: float = 0.05

    def __post_init__(self):
        if not self.capacities or min(self.capacities) <= 0:
            raise ReplicationError("every capacity must be a share above 0 of the trace's distinct blocks")
        if self.token_seconds < 0:
            raise ReplicationError(f"token_seconds must not be negative, as {self.token_seconds} is")


def check(config: Config) -> None:
    """ReplicationError when the model or the trace cannot be read."""
    model_source(config.model)
    check_device(config.device, config.dtype)
    mooncake.load_trace(config.data_dir)


def run(config: Config, folder: RunFolder) -> None:
    """The whole trace once for each capacity, with and without the running batch in the pool."""
    arrivals, source = mooncake.load_trace(config.data_dir)
    distinct = len({block for arrival in arrivals for block in arrival.blocks})
    token_bytes = prefill_chunk(load_model(config.model, config.dtype, config.device), (0,)).nbytes
    identify(folder, {"data": source, "distinct": distinct, "block_bytes": token_bytes * mooncake.BLOCK})
    names = [[Name(block, block) for block in arrival.blocks] for arrival in arrivals]
    total = sum(map(len, names))
    done = folder.done(("kind", "capacity", "batch"))
    cells = [(capacity, batch) for capacity in config.capacities for batch in BATCHES]
    for capacity, batch in tqdm(cells, "replays", unit="cell"):
        if ("replay", capacity, batch) not in done:
            held = config.token_seconds if batch == BATCHES[1] else 0.0
            visits = [
                Visit(n, -(-a.output // mooncake.BLOCK) if held else 0, a.time, a.time + held * a.output)
                for a, n in zip(arrivals, names, strict=True)
            ]
            pool = BlockPool(max(1, round(capacity * distinct)))
            found = sum(replay(pool, visits))
            cell = {"capacity": capacity, "batch": batch, "blocks": pool.capacity, "evictions": pool.evictions}
            folder.append({"kind": "replay", **cell, "found": found, "looked_up": total})


def summarise(records: list[dict], config: Config) -> dict:
    """Hit rate (blocks found of blocks looked up) by capacity, and what it is relative to the largest capacity."""
    size = next(r["block_bytes"] for r in records if r["kind"] == "inputs")
    rates = {(r["capacity"], r["batch"]): r["found"] / r["looked_up"] for r in records if r["kind"] == "replay"}
    best = rates[max(config.capacities), BATCHES[0]]
    blocks = {r["capacity"]: r["blocks"] for r in records if r["kind"] == "replay"}
    return {
        "capacities": {
            f"{capacity:g}": {
                "blocks": blocks[capacity],
                "gib": blocks[capacity] * size / 2**30,
                "hit_rate": rates[capacity, BATCHES[0]],
                "of_best": rates[capacity, BATCHES[0]] / best,
                "hit_rate_with_batch": rates[capacity, BATCHES[1]],
                "batch_over_none": rates[capacity, BATCHES[1]] / rates[capacity, BATCHES[0]],
            }
            for capacity in config.capacities
        },
    }


def plot(folder: Path) -> None:
    traces_figure(folder)
