"""What finding the nearest question costs (S-40, S-41): exact search and a graph by entries, and a whole request."""

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tqdm import tqdm

from experiments.common import identify, require_positive
from experiments.semantic_common import PairConfig, check_pairs, embed_all, load_readable
from experiments.semantic_figures import index_figure
from replication.caches.embedding import Embedder, load_embedder
from replication.caches.index import INDEXES, ExactIndex, GraphIndex, Index, unit
from replication.caches.semantic import SemanticCache
from replication.data.pairs import Pair
from replication.errors import ReplicationError
from replication.records import RunFolder
from replication.stats import median_iqr, wilson

TITLE = "Semantic cache: recall and latency of exact search and of a graph, by entries"
MIXED = 3
PIECE = 50_000
# float32 sums of 384 products differ in the last digits with their order
SAME_SCORE = 1e-5


@dataclass(frozen=True)
class Config(PairConfig):
    """sizes: entries of the index: the set's stored questions, each once, then mixtures of three of them. queries:
    asked questions, all searched for recall; timed: how many of them are timed, one at a time, in each of `rounds`
    rounds. efforts: efSearch of the graph. threshold: of a hit."""

    sizes: tuple[int, ...] = (1_000, 10_000, 100_000)
    queries: int = 500
    timed: int = 50
    rounds: int = 5
    efforts: tuple[int, ...] = (16, 64, 256)
    threshold: float = 0.85

    def __post_init__(self):
        require_positive(self, "queries", "timed", "rounds")
        if not self.sizes or not self.efforts or min(self.sizes + self.efforts) < 1:
            raise ReplicationError("sizes and efforts must be lists of numbers from 1 on")


def check(config: Config) -> None:
    check_pairs(config)


def run(config: Config, folder: RunFolder) -> None:
    """Each size in turn: recall of every effort, then latencies, interleaved; then whole requests."""
    embedder = load_embedder(config.model, config.device)
    _require_memory(max(config.sizes), embedder.dimension)
    loaded = load_readable(config, embedder)
    identify(folder, {"embedder": embedder.weights, "data": loaded.provenance})
    # what a cache holds: a question once
    questions = list(dict.fromkeys(pair.stored for pair in loaded.pairs))[: max(config.sizes)]
    stored = embed_all(embedder, questions, "stored questions")
    queries = embed_all(embedder, [pair.asked for pair in loaded.pairs[: config.queries]], "asked questions")
    if not folder.done(("largest_error",)):
        # of a dot product taken for a cosine
        norms = np.linalg.norm(np.concatenate([stored, queries]).astype(np.float64), axis=1)
        folder.append({"kind": "norms", "largest_error": float(np.abs(norms - 1).max())})
    for size in config.sizes:
        if ("timing", size, config.rounds - 1) not in folder.done(("kind", "size", "round")):
            _measure(config, folder, size, stored, queries)
    _requests(config, folder, loaded.pairs, embedder)


def _require_memory(size: int, dimension: int) -> None:
    """ReplicationError unless the machine has the memory for both indexes of `size` entries, before hours of work."""
    needed = size * (2 * 4 * dimension + 4 * 2 * GraphIndex.LINKS) + 2**30  # vectors twice, links, all the rest
    installed = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > installed:
        raise ReplicationError(
            f"{size:,} entries take {needed / 2**30:.0f} GiB of memory and this machine has {installed / 2**30:.0f}: "
            "choose smaller sizes"
        )


def grown(vectors: np.ndarray, size: int, seed: int) -> Iterator[np.ndarray]:
    """`size` unit vectors in pieces: the given ones [n, dimension] first, then random mixtures of MIXED of them, which
    lie where real questions do, as random directions would not. A larger size extends a smaller one."""
    yield vectors[:size]
    rng = np.random.default_rng(seed)
    for begun in range(len(vectors), size, PIECE):
        # a piece is drawn whole and then cut
        weights = rng.dirichlet(np.ones(MIXED), PIECE).astype(np.float32)
        parents = rng.integers(len(vectors), size=(PIECE, MIXED))
        mixed = np.einsum("pm,pmd->pd", weights, vectors[parents])
        yield unit(mixed[: size - begun])


def _measure(config: Config, folder: RunFolder, size: int, stored: np.ndarray, queries: np.ndarray) -> None:
    dimension = stored.shape[1]
    exact, graph = ExactIndex(dimension), GraphIndex(dimension)
    seconds = {"exact": 0.0, "graph": 0.0}
    for piece in tqdm(grown(stored, size, config.seed), f"building {size:,} entries", unit="piece"):
        for name, index in (("exact", exact), ("graph", graph)):
            seconds[name] += _timed(index.add, piece)
    done = folder.done(("kind", "size", "effort"))
    best = exact.search(queries)[0][:, 0]
    for effort in config.efforts:
        if ("recall", size, effort) not in done:
            found = _recall(config, graph, effort, queries, best)
            folder.append({"kind": "recall", "size": size, "effort": effort, **found})
    if ("build", size) not in folder.done(("kind", "size")):
        folder.append({"kind": "build", "size": size, "real": min(size, len(stored)), "seconds": seconds})
    indexes = {"exact": (exact, None), **{f"graph@{effort}": (graph, effort) for effort in config.efforts}}
    for number in tqdm(range(-1, config.rounds), f"{size:,} entries", unit="round"):
        seconds = _search_seconds(indexes, queries[: config.timed], number + 1)
        if number >= 0 and ("timing", size, number) not in folder.done(("kind", "size", "round")):
            folder.append({"kind": "timing", "size": size, "round": number, "seconds": seconds})


def _recall(config: Config, graph: GraphIndex, effort: int, queries: np.ndarray, best: np.ndarray) -> dict:
    """found: queries whose nearest neighbour the graph finds (or one as near). hits, kept: queries that exact search
    answers over the threshold, and those that the graph does, too."""
    graph.effort = effort
    scores = graph.search(queries)[0][:, 0]
    hits = best >= config.threshold
    return {
        "queries": len(queries),
        "found": int((scores >= best - SAME_SCORE).sum()),
        "hits": int(hits.sum()),
        "kept": int((hits & (scores >= config.threshold)).sum()),
    }


def _search_seconds(
    indexes: dict[str, tuple[Index, int | None]], queries: np.ndarray, turn: int
) -> dict[str, list[float]]:
    """Per index, seconds of each query alone. An index searches all queries before the next one does, as a service
    would: right after each other, one would find in the processor's cache what the other had read."""
    seconds = {}
    order = list(indexes)[turn % len(indexes) :] + list(indexes)[: turn % len(indexes)]
    for name in order:
        index, effort = indexes[name]
        if effort is not None:
            index.effort = effort
        seconds[name] = [_timed(index.search, query[None]) for query in queries]
    return {name: seconds[name] for name in indexes}


def _timed(function, *arguments) -> float:
    begun = time.perf_counter()
    function(*arguments)
    return time.perf_counter() - begun


class _Counting:
    """An embedder that counts the texts it embeds and takes the time."""

    def __init__(self, embedder: Embedder):
        self.embedder, self.weights, self.dimension = embedder, embedder.weights, embedder.dimension
        self.texts, self.seconds = 0, 0.0

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        begun = time.perf_counter()
        vectors = self.embedder.encode(texts)
        self.seconds = time.perf_counter() - begun
        self.texts += len(texts)
        return vectors


def _requests(config: Config, folder: RunFolder, pairs: list[Pair], embedder: Embedder) -> None:
    """Whole requests: each stored question is asked twice in turn; a miss is stored, so the second is a hit."""
    done = folder.done(("kind", "index", "round"))
    for number in tqdm(range(-1, config.rounds), "requests", unit="round"):
        for name in INDEXES:
            if ("request", name, number) in done:
                continue
            counting = _Counting(embedder)
            cache = SemanticCache(counting, config.threshold, name)
            seconds = {key: [] for key in ("hit", "miss", "store", "embed_hit", "embed_miss")}
            for pair in pairs[: config.timed]:
                for _ in range(2):
                    _request(cache, counting, pair.stored, seconds)
            record = {"embedded": counting.texts, "requests": len(seconds["hit"]) + len(seconds["miss"])}
            if number >= 0:
                folder.append({"kind": "request", "index": name, "round": number, **record, "seconds": seconds})


def _request(cache: SemanticCache, counting: _Counting, question: str, seconds: dict[str, list[float]]) -> None:
    begun = time.perf_counter()
    looked = cache.look_up(question)
    ended = time.perf_counter()
    kind = "miss" if looked.answer is None else "hit"
    seconds[kind].append(ended - begun)
    seconds[f"embed_{kind}"].append(counting.seconds)
    if looked.answer is None:
        seconds["store"].append(_timed(cache.store, looked, "answer"))


def summarise(records: list[dict], config: Config) -> dict:
    """Per size and index: search latency, recall, how many entries are real questions, and the time to build it; of
    whole requests: hit, miss and store, the embedding's share, and embeddings per request, storing included."""
    sizes = {}
    for size in dict.fromkeys(r["size"] for r in records if r["kind"] == "timing"):
        rows = [r for r in records if r.get("size") == size]
        sizes[str(size)] = _indexes(rows) | _build(rows)
    norms = next(r for r in records if r["kind"] == "norms")
    requests = [r for r in records if r["kind"] == "request"]
    return {
        "sizes": sizes,
        "requests": {name: _whole([r for r in requests if r["index"] == name]) for name in INDEXES},
        "largest_norm_error": norms["largest_error"],
    }


def _indexes(rows: list[dict]) -> dict:
    timings = [r["seconds"] for r in rows if r["kind"] == "timing"]
    found = {name: {"search": median_iqr([s for t in timings for s in t[name]])} for name in timings[0]}
    for row in rows:
        if row["kind"] == "recall":
            found[f"graph@{row['effort']}"] |= {
                "recall": wilson(row["found"], row["queries"]),
                "hits_kept": wilson(row["kept"], row["hits"]),
            }
    return found


def _build(rows: list[dict]) -> dict:
    build = next(r for r in rows if r["kind"] == "build")
    return {"build": build["seconds"], "real": build["real"]}


def _whole(rows: list[dict]) -> dict:
    steps = {key: [s for r in rows for s in r["seconds"][key]] for key in rows[0]["seconds"]}
    shares = [e / s for kind in ("hit", "miss") for e, s in zip(steps[f"embed_{kind}"], steps[kind], strict=True)]
    return {
        **{key: median_iqr(steps[key]) for key in ("hit", "miss", "store")},
        "embedding_share": median_iqr(shares),
        "embeddings_per_request": sum(r["embedded"] for r in rows) / sum(r["requests"] for r in rows),
    }


def plot(folder: Path) -> None:
    index_figure(folder)
