"""What traffic does to a prefix cache, counted without tensors: other requests, tenants, and the order of documents."""

import itertools
import random
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from experiments.common import RagConfig, load_inputs, require_positive
from experiments.prefix_figures import traffic_figure
from replication.caches.block_names import BlockNames
from replication.caches.block_pool import BlockPool, Name
from replication.caches.replay import Visit, replay
from replication.errors import ReplicationError
from replication.prompt import ChunkedPrompt
from replication.records import RunFolder
from replication.stats import mean_ci, paired_difference, ratio_of_means

TITLE = "Prefix cache under mixed traffic, tenants with salt, and documents in another order"


@dataclass(frozen=True)
class Config(RagConfig):
    """n examples of `passages` passages are tried in all orders (S-19).

    mixed traffic (S-16): prefixes of `prefix_blocks` blocks, `groups` of each length, all equally popular, each with
    `tail_blocks` of its own; `unique` is the share of requests that share nothing and take `unique_blocks`.
    tenants (S-13): how many share `documents` prompts of `document_blocks` blocks. pool_blocks, requests, seeds: of
    both.
    """

    n: int = 10
    passages: int = 4
    block_size: int = 16
    prefix_blocks: tuple[int, ...] = (8, 32, 128)
    groups: int = 4
    tail_blocks: int = 4
    unique: tuple[float, ...] = (0.0, 0.2, 0.4, 0.6, 0.8, 0.9)
    unique_blocks: int = 64
    tenants: tuple[int, ...] = (1, 2, 4, 8, 16)
    documents: int = 20
    document_blocks: int = 32
    pool_blocks: int = 1024
    requests: int = 2000
    seeds: int = 10

    def __post_init__(self):
        sizes = ("groups", "tail_blocks", "unique_blocks", "documents", "document_blocks", "pool_blocks")
        require_positive(self, "n", "passages", "block_size", "seeds", *sizes)
        if not self.prefix_blocks or not self.tenants or min(*self.prefix_blocks, *self.tenants, 1) < 1:
            raise ReplicationError("prefix_blocks and tenants must be numbers of at least 1")
        if not self.unique or min(self.unique) < 0 or max(self.unique) > 0.9 or self.requests < 500:
            raise ReplicationError("shares of unique requests must be 0 to 0.9, of at least 500 requests")


def run(config: Config, folder: RunFolder) -> None:
    """All parts; finished cells are not repeated."""
    inputs = load_inputs(config, folder)
    names = BlockNames(inputs.model.fingerprint, config.block_size)
    done = folder.done(("kind", "cell", "seed"))
    for seed in tqdm(range(config.seeds), "traffic", unit="seed"):
        for unique in config.unique:
            if ("mixed", unique, seed) not in done:
                folder.append({"kind": "mixed", "cell": unique, "seed": seed, **_mixed(config, unique, seed)})
        for tenants in config.tenants:
            if ("tenants", tenants, seed) not in done:
                folder.append({"kind": "tenants", "cell": tenants, "seed": seed, **_tenants(config, tenants, seed)})
    ordered = folder.done(("kind", "example"))
    for example, prompt in zip(inputs.examples, inputs.prompts, strict=True):
        if ("orders", example.id) not in ordered:
            folder.append({"kind": "orders", "example": example.id, **_orders(prompt, names)})


def _mixed(config: Config, unique: float, seed: int) -> dict:
    """Per prefix length: requests, and the blocks of the shared prefix that they had to compute; and their hit rate.
    The first half of the requests warms up."""
    rng = random.Random(f"mixed-{unique}-{seed}")
    kinds, visits = [], []
    for number in range(config.requests):
        length = 0 if rng.random() < unique else rng.choice(config.prefix_blocks)
        group = f"{length}-{rng.randrange(config.groups)}"
        kinds.append(length)
        own = config.tail_blocks if length else config.unique_blocks
        shared = [Name(f"{group}/{at}", at) for at in range(length)]
        visits.append(Visit([*shared, *(Name(f"{number}/{at}", at) for at in range(own))]))
    found = replay(BlockPool(config.pool_blocks), visits)
    late = list(zip(kinds, found, strict=True))[config.requests // 2 :]
    lost = {length: [length - f for kind, f in late if kind == length] for length in config.prefix_blocks}
    needed = sum(length * len(missing) for length, missing in lost.items())
    return {
        "requests": {str(length): len(missing) for length, missing in lost.items()},
        "lost": {str(length): sum(missing) for length, missing in lost.items()},
        "hit_rate": 1 - sum(map(sum, lost.values())) / needed,
    }


def _tenants(config: Config, tenants: int, seed: int) -> dict:
    """Hit rate in a pool of `pool_blocks`, and blocks filled in one without a bound, with and without a salt per
    tenant, for the same requests."""
    rng = random.Random(f"tenants-{tenants}-{seed}")
    block = range(config.document_blocks * config.block_size)
    documents = [tuple(rng.randrange(2**15) for _ in block) for _ in range(config.documents)]
    asked = [(str(rng.randrange(tenants)), rng.randrange(config.documents)) for _ in range(config.requests)]
    names = BlockNames("tenants", config.block_size)
    found = {}
    for salted in (False, True):
        named = {(t, d): names.of(documents[d], t if salted else "") for t, d in set(asked)}
        visits = [Visit(named[request]) for request in asked]
        unbounded = BlockPool(config.document_blocks * len(named))
        replay(unbounded, visits)
        hits = sum(replay(BlockPool(config.pool_blocks), visits))
        total = sum(len(visit.names) for visit in visits)
        found["salted" if salted else "shared"] = {"hit_rate": hits / total, "blocks": unbounded.cached}
    return found


def _orders(prompt: ChunkedPrompt, names: BlockNames) -> dict:
    """Share of the passages' tokens that each order of the passages reuses after the first one, by whether it keeps
    the first passage."""
    passages = [s for s in prompt.segments if s.kind == "passage"]
    head, tokens = passages[0].start, sum(len(s.ids) for s in passages)
    pool = BlockPool(len(prompt) // names.block_size + 1)
    first = names.of(prompt.ids)
    pool.release(pool.publish(pool.reserve(len(first)), first))
    shares: dict[str, list[float]] = {"same first passage": [], "other first passage": []}
    for order in itertools.permutations(range(len(passages))):
        if list(order) != sorted(order):
            table = pool.match(names.of(prompt.reordered(list(order)).ids))
            pool.release(table)
            share = max(0, len(table) * names.block_size - head) / tokens
            shares["same first passage" if order[0] == 0 else "other first passage"].append(share)
    every = [share for group in shares.values() for share in group]
    return {name: sum(group) / len(group) for name, group in {**shares, "any other order": every}.items() if group}


def summarise(records: list[dict], config: Config) -> dict:
    """Intervals are over seeds, or over examples for `orders`; comparisons pair the same requests."""
    mixed = {u: _of(records, "mixed", u) for u in config.unique}
    tenants = {t: _of(records, "tenants", t) for t in config.tenants}
    orders = [r for r in records if r["kind"] == "orders"]
    most = max(config.unique)
    short, long = str(min(config.prefix_blocks)), str(max(config.prefix_blocks))
    return {
        "mixed": {f"{u:g}": _mixed_cell(rows, config) for u, rows in mixed.items()},
        "mixed_loss": paired_difference(
            [r["hit_rate"] for r in mixed[most]], [r["hit_rate"] for r in mixed[min(config.unique)]]
        ),
        "long_over_short": paired_difference(_lost(mixed[most], long, config), _lost(mixed[most], short, config)),
        "tenants": {str(t): _tenants_cell(rows) for t, rows in tenants.items()},
        "orders": {
            name: mean_ci([r[name] for r in orders])
            for name in ("same first passage", "other first passage", "any other order")
            if all(name in r for r in orders)
        },
        "n": config.n,
    }


def _of(records: list[dict], kind: str, cell: float) -> list[dict]:
    return [r for r in records if r["kind"] == kind and r["cell"] == cell]


def _lost(rows: list[dict], length: str, config: Config) -> list[float]:
    """Tokens of the shared prefix that a request computes again, mean over requests, for each seed."""
    return [config.block_size * r["lost"][length] / max(1, r["requests"][length]) for r in rows]


def _mixed_cell(rows: list[dict], config: Config) -> dict:
    lost = {str(length): mean_ci(_lost(rows, str(length), config)) for length in config.prefix_blocks}
    return {"hit_rate": mean_ci([r["hit_rate"] for r in rows]), "lost_tokens": lost}


def _tenants_cell(rows: list[dict]) -> dict:
    rates = {kind: [r[kind]["hit_rate"] for r in rows] for kind in ("shared", "salted")}
    blocks = {kind: [r[kind]["blocks"] for r in rows] for kind in ("shared", "salted")}
    return {
        **{kind: mean_ci(values) for kind, values in rates.items()},
        "hit_rate_difference": paired_difference(rates["salted"], rates["shared"]),
        "memory_ratio": ratio_of_means(blocks["salted"], blocks["shared"]),
    }


def plot(folder: Path) -> None:
    traffic_figure(folder)
