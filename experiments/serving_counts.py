"""The part of `serving` on counts: what vLLM and our prefix cache find of the same random prompts, block by block."""

import random
import time
from collections.abc import Iterator

from tqdm import tqdm

from experiments.serving_common import Servers, ServingConfig, ask_ours
from replication.caches.prefix import PrefixCache
from replication.model import Model
from replication.records import RunFolder

HITS = "vllm:prefix_cache_hits_total"


def counts(config: ServingConfig, folder: RunFolder, model: Model, servers: Servers) -> None:
    """One record for each stream, whose prompts have salts of their own. metric_hits: tokens, by vLLM's metrics."""
    done = folder.done(("kind", "stream"))
    for stream in tqdm(range(config.streams), "counts", unit="stream"):
        if ("counts", stream) in done:
            continue
        cache = PrefixCache(model, config.requests * (config.longest // config.block_size), config.block_size)
        before, requests = servers.cached.counter(HITS), []
        for ids, tenant in prompts_of(config, model.config.vocab_size, stream):
            salt = servers.salt(f"counts {stream} {tenant}")
            theirs = servers.cached.complete(ids, salt)
            requests.append({"tenant": tenant, "cached": theirs.cached, **ask_ours(cache, ids, salt)[1]})
        time.sleep(0.5)  # its metrics come after the answer
        hits = servers.cached.counter(HITS) - before
        folder.append({"kind": "counts", "stream": stream, "requests": requests, "metric_hits": hits})


def prompts_of(config: ServingConfig, vocabulary: int, stream: int) -> Iterator[tuple[tuple[int, ...], int]]:
    """Token ids, and the number of the tenant. Both lengths and what is shared with an earlier prompt are mostly whole
    blocks, or one token off."""
    rng = random.Random(f"serving-{config.seed}-{stream}")

    def near_a_block(most: int) -> int:
        whole = config.block_size * rng.randint(0, most // config.block_size) + rng.choice((-1, 0, 0, 1))
        return min(most, max(1, whole if rng.random() < 0.8 else rng.randint(1, most)))

    earlier: list[tuple[tuple[int, ...], int]] = []
    for _ in range(config.requests):
        base, tenant = rng.choice(earlier) if earlier else ((), 0)
        kept = base[: near_a_block(len(base))] if base else ()
        longer = not kept or rng.random() < 0.7  # the rest is what was sent before, or a beginning of it
        length = max(len(kept), near_a_block(config.longest)) if longer else len(kept)
        fresh = (rng.randrange(vocabulary) for _ in range(length - len(kept)))
        # mostly by the same tenant, as another finds nothing
        earlier.append(((*kept, *fresh), tenant if rng.random() < 0.7 else rng.randrange(config.salts)))
        yield earlier[-1]
