"""What was measured of each cache of the article, a line each."""

from pathlib import Path

from replication.claims_table import estimate_text
from replication.writeup.tables import Table
from replication.writeup.values import found

# cache -> (what a number says, experiment, metric)
FINDINGS = {
    "KV cache of a request": [
        ("decode step at 1,024 tokens: without the cache over with it", "request_cache", "places.float32 1024.speedup"),
        (
            "20th turn of a chat: its prompt over what is prefilled",
            "request_cache",
            "chat.float32.last.prompt_over_prefilled",
        ),
        ("int4 over full precision: times fewer bytes", "request_cache", "quantized.float32.quanto-int4.bytes_ratio"),
        (
            "int4 less full precision: NLL, nats per token",
            "request_cache",
            "quantized.float32.quanto-int4.nll_difference",
        ),
    ],
    "prefix cache": [
        ("TTFT of a hit on 2,000 of 2,048 tokens over a cold one", "prefix_cache", "hit.of_cold"),
        ("such a hit in vLLM, over its own cold one", "serving", "times.vllm.hit.of_cold"),
        ("and here, on the same prompts", "serving", "times.ours.hit.of_cold"),
        ("requests in which vLLM finds other blocks than ours", "serving", "counts.differ"),
        ("prompt tokens found, all blocks kept: a service's trace", "prefix_traces", "capacities.1.hit_rate"),
        ("prompt tokens found, all blocks kept: agents' chats", "prefix_traces", "saved.16.all"),
        ("prompt tokens found: RAG passages in another order", "prefix_traffic", "orders.any other order"),
        ("memory of 8 salted tenants over that of shared blocks", "prefix_traffic", "tenants.8.memory_ratio"),
    ],
    "provider's prompt cache": [
        ("calls, 60 s apart, until a 5-minute entry has paid", "prompt_cost", "break_even.5m 60"),
        ("calls, 600 s apart, until a 1-hour entry has paid", "prompt_cost", "break_even.1h 600"),
        (
            "bill with a clock in front of the prompt, over the repaired one",
            "prompt_cost",
            "pitfalls.clock in front.cost",
        ),
    ],
    "semantic cache": [
        ("same question at cosine 0.9: served", "semantic_cache", "curves.plain.0.9.served"),
        ("another question at cosine 0.9: served all the same", "semantic_cache", "curves.plain.0.9.wrong"),
        ("search among 100,000 entries by graph, s", "semantic_index", "sizes.100000.graph@64.search"),
        ("of it, nearest neighbours found", "semantic_index", "sizes.100000.graph@64.recall"),
    ],
    "response cache": [("requests that repeat an earlier one to the byte", "response_cache", "all.repeats")],
}


def caches(root: Path) -> Table:
    """Every finding in every place where it was measured; a cache is named in its first row."""
    rows = [
        [cache * (number == 0), about, _measured(root, *where)]
        for cache, findings in FINDINGS.items()
        for number, (about, *where) in enumerate(findings)
    ]
    return Table(["cache", "what", "measured"], rows)


def _measured(root: Path, experiment: str, metric: str) -> str:
    places = found(root, experiment, metric)
    return "<br>".join(f"{estimate_text(place.estimate, 'value')} ({place.dataset})" for place in places)
