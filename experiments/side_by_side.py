"""Every cache of the article on one stream of requests, alone and stacked (the article's closing table, S-50).

Each request goes to all systems, one after the other in an order that rotates; each system has a state of its own.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from tqdm import tqdm

from experiments.common import Priced, identify
from experiments.side_by_side_figure import side_by_side_figure
from experiments.side_by_side_prompts import Arrival, Conversations, marked
from experiments.side_by_side_summary import FULL, NO_CACHE, PROMPT_CACHE, summarise
from experiments.side_by_side_systems import (
    ChunkReuse,
    FullPrefill,
    PrefixReuse,
    Responses,
    Semantic,
    Served,
    System,
)
from replication.caches.embedding import embedder_directory, load_embedder
from replication.caches.provider.anthropic import PromptCache
from replication.caches.provider.request import Tokenize, tokenizer_of
from replication.caches.semantic import Embeds
from replication.data.stream import Request, Traffic, stream, stream_sha256
from replication.errors import ReplicationError
from replication.metrics.fidelity import kl
from replication.model import Model, load_model
from replication.records import RunFolder
from replication.runner import check_device, model_source

__all__ = ["TITLE", "Config", "check", "plot", "run", "summarise"]

TITLE = "Every cache on one stream of requests, alone and stacked: time, tokens, memory, bill, wrong answers"
WARM_UP = 2
# Whose requests reach a provider, and whether with markers: its prompt cache stands in for the prefix cache of a stack.
# Chunk reuse is for sale nowhere, so what rests on it has no bill.
BILLS = {
    FULL: False,
    PROMPT_CACHE: True,
    "response": False,
    "semantic": False,
    "response+prefix": True,
    "response+semantic+prefix": True,
}


@dataclass(frozen=True)
class Config(Priced, Traffic):
    """n requests of the stream that Traffic describes, `gap` seconds apart on its own clock, by which the provider's
    entries live. new_tokens: of each answer. uncached: how many requests are also answered without any KV cache.

    budget_mb: bound on the K and V that each prefix cache and each set of chunk stores keeps, in MiB. ratio: what
    CacheBlend recomputes. threshold: of the semantic cache. api_model, on: whose rules and prices make the bill, and
    their date.
    """

    model: str = "smollm2-135m"
    dataset: str = "synthetic"
    n: int = 100
    seed: int = 0
    dtype: str = "float32"
    device: str = "cpu"
    new_tokens: int = 12
    uncached: int = 4
    budget_mb: int = 1024
    block_size: int = 16
    ratio: float = 0.15
    threshold: float = 0.9
    gap: int = 20
    api_model: str = "claude-fable-5"
    on: str = "2026-11-01"

    def __post_init__(self):
        super().__post_init__()
        if self.dataset != "synthetic":
            raise ReplicationError(f"the stream is made from dataset=synthetic, not '{self.dataset}'")
        if self.new_tokens < 2 or min(self.n, self.budget_mb, self.block_size, self.gap) < 1:
            raise ReplicationError("new_tokens must be at least 2; n, budget_mb, block_size and gap at least 1")
        if not 1 <= self.uncached <= self.n:
            raise ReplicationError(f"uncached must be from 1 to n = {self.n}")
        if not 0 < self.ratio <= 1 or not -1 <= self.threshold <= 1:
            raise ReplicationError("ratio must be a share above 0, and threshold a cosine")
        self.require_prices(self.api_model)


def check(config: Config) -> None:
    model_source(config.model)
    check_device(config.device, config.dtype)
    embedder_directory()


def run(config: Config, folder: RunFolder) -> None:
    """One record for each request, with what every system answered.

    A stopped run begins again with the first request, because the caches must be as they were; what it answers twice
    is not recorded twice.
    """
    requests = stream(config.n, config.seed, config)
    model, embedder = load_model(config.model, config.dtype, config.device), load_embedder(device=config.device)
    data = {"dataset": config.dataset, "stream_sha256": stream_sha256(requests)}
    identify(folder, {"model": model.weights, "embedder": embedder.weights, "data": data})
    done = folder.done(("kind", "example"))
    if ("request", requests[-1].id) in done:
        return
    _refuse_too_long(config, model, requests)
    _warm_up(config, model, embedder, requests)
    bench = _Bench(systems(config, model, embedder), bills(config, tokenizer_of(model.tokenizer)))
    talk = _conversations(config, model)
    for number, request in enumerate(tqdm(requests, "side by side", unit="request")):
        arrival = talk.arrival(request)
        without = number % -(-config.n // config.uncached) == 0
        served = bench.serve(arrival, number, leave_out=() if without else (NO_CACHE,))
        talk.replied(arrival, served[FULL].ids)
        record = bench.record(arrival, served)
        if ("request", request.id) not in done:
            folder.append(record)


def systems(config: Config, model: Model, embedder: Embeds) -> dict[str, System]:
    """Each with caches of its own, which are empty."""
    count, budget = config.new_tokens, config.budget_mb * 2**20
    full = FullPrefill(model, count)

    def prefix() -> System:
        return PrefixReuse(model, count, budget, config.block_size)

    def chunks(method: str, ratio: float = 0.0) -> System:
        return ChunkReuse(model, count, budget, config.tenants, method, ratio)

    def blend() -> System:
        return chunks("cacheblend-paper", config.ratio)

    def semantic(behind: System) -> System:
        return Semantic(behind, embedder, config.threshold)

    return {
        NO_CACHE: FullPrefill(model, count, keep=False),
        FULL: full,
        "prefix": prefix(),
        "cacheblend": blend(),
        "shared-prefix": chunks("shared-prefix"),
        "response": Responses(full),
        "semantic": semantic(full),
        "response+prefix": Responses(prefix()),
        "response+cacheblend": Responses(blend()),
        "response+semantic+prefix": Responses(semantic(prefix())),
        "response+semantic+cacheblend": Responses(semantic(blend())),
    }


def bills(config: Config, tokenize: Tokenize) -> dict[str, "_Bill"]:
    return {name: _Bill(PromptCache(config.date, tokenize), marks, config.new_tokens) for name, marks in BILLS.items()}


@dataclass(frozen=True)
class _Bill:
    """What a provider takes for the requests that one system sends on; each tenant is a workspace."""

    cache: PromptCache
    marks: bool
    new_tokens: int

    def charge(self, arrival: Arrival) -> dict:
        body = marked(arrival.body) if self.marks else arrival.body
        call = self.cache.ask(body, arrival.at, workspace=arrival.request.tenant)
        usage = call.usage
        counts = {"read": usage.read, "written": usage.written, "rest": usage.rest}
        return {"dollars": usage.dollars(call.rules, self.new_tokens), "usage": counts}


@dataclass(frozen=True)
class _Bench:
    systems: dict[str, System]
    bills: dict[str, _Bill]

    def serve(self, arrival: Arrival, turn: int, leave_out: tuple[str, ...] = ()) -> dict[str, Served]:
        """Every system's answer; they come in an order that rotates with `turn`."""
        names = [name for name in self.systems if name not in leave_out]
        turn %= len(names)
        return {name: self.systems[name].answer(arrival) for name in names[turn:] + names[:turn]}

    def record(self, arrival: Arrival, served: dict[str, Served]) -> dict:
        request, truth = arrival.request, served[FULL].logprobs
        found = {name: self._found(name, served[name], truth) for name in self.systems if name in served}
        for name, bill in self.bills.items():
            sent = name == PROMPT_CACHE or served[name].source == "model"
            found.setdefault(name, {}).update(bill.charge(arrival) if sent else {"dollars": 0.0})
        # the provider's model is not here: of its prompt cache, rules give tokens and money alone
        usage = found[PROMPT_CACHE]["usage"]
        found[PROMPT_CACHE]["prefilled"] = len(arrival.prompt) * (1 - usage["read"] / sum(usage.values()))
        return {
            "kind": "request",
            "example": request.id,
            "tenant": request.tenant,
            "asked": request.kind,
            "near": request.near,
            "seen": request.seen,
            "meaning": request.meaning,
            "answers": request.answers,
            "tokens": len(arrival.prompt),
            "threads": torch.get_num_threads(),
            "served": found,
            "seconds": {n: {"ttft": s.ttft, "total": s.total, "after": s.after} for n, s in served.items()},
        }

    def _found(self, name: str, served: Served, truth: torch.Tensor) -> dict:
        close = {} if served.logprobs is None else {"kl_first": kl(truth, served.logprobs).item()}
        return {
            "source": served.source,
            "text": served.text,
            "made_for": served.made_for,
            "prefilled": served.prefilled,
            "bytes": self.systems[name].nbytes,
            **close,
        }


def _conversations(config: Config, model: Model) -> Conversations:
    return Conversations(model, config.api_model, config.new_tokens, config.gap)


def _refuse_too_long(config: Config, model: Model, requests: list[Request]) -> None:
    """ReplicationError if a request may exceed the model's context, were all replies as long as they can be."""
    talk = _conversations(config, model)
    for request in requests:
        arrival = talk.arrival(request)
        talk.replied(arrival, (0,) * config.new_tokens)
        longest = len(arrival.prompt) + config.new_tokens
        if longest > model.context_length:
            raise ReplicationError(
                f"request {request.id} may take {longest} tokens, the model's context is {model.context_length}: "
                "lower passages, sentences or turns"
            )


def _warm_up(config: Config, model: Model, embedder: Embeds, requests: list[Request]) -> None:
    """The first requests, on systems that are thrown away."""
    bench, talk = _Bench(systems(config, model, embedder), {}), _conversations(config, model)
    for number, request in enumerate(requests[:WARM_UP]):
        arrival = talk.arrival(request)
        talk.replied(arrival, bench.serve(arrival, number, leave_out=(NO_CACHE,))[FULL].ids)


def plot(folder: Path) -> None:
    side_by_side_figure(folder)
