"""The part of `serving` on time to first token: what a hit saves in vLLM and in our prefix cache, and what LMCache's
blending inside vLLM saves where the documents come in another order."""

from collections.abc import Callable

import torch
from tqdm import tqdm

from experiments.running_text import running_prompt
from experiments.serving_common import Servers, ServingConfig, ask_ours
from replication.caches.prefix import PrefixCache
from replication.data import load
from replication.lmcache_blend import SEPARATOR, join
from replication.model import Model
from replication.prompt import ChunkedPrompt, chain
from replication.records import RunFolder
from replication.vllm import VLLM

Ask = Callable[[tuple[int, ...], str], tuple[float, dict[str, int]]]


def times(config: ServingConfig, folder: RunFolder, model: Model, servers: Servers) -> None:
    """All systems in every round, the order rotating with it. seconds: TTFT by system and way; floor: vLLM's for a
    prompt of one token, which is everything but prefill."""
    prompts = _prompts(config, model, config.length)
    done = folder.done(("kind", "round"))
    for number in tqdm(range(-1, config.rounds), "times", unit="round"):  # the first round warms up
        if ("times", number) in done:
            continue
        cache = PrefixCache(model, 4 * (config.length // config.block_size), config.block_size)
        systems = {"ours": _of_ours(cache), "vllm": _of(servers.cached), "vllm without": _of(servers.uncached)}
        order = list(systems)
        turn = number % len(order)
        seconds = {"floor": servers.cached.complete((1,), servers.salt(f"floor {number}")).ttft}
        found = {}
        for system in order[turn:] + order[:turn]:
            for way, (ids, tenant) in ways_of(prompts[number + 1], prompts[number + 2]).items():
                ttft, counts = systems[system](ids, servers.salt(f"times {number} {tenant}"))
                seconds[f"{system}, {way}"], found[f"{system}, {way}"] = ttft, counts
        if number >= 0:
            record = {"kind": "times", "round": number, "found": found, "threads": torch.get_num_threads()}
            folder.append({**record, "seconds": seconds})


def ways_of(prompt: ChunkedPrompt, other: ChunkedPrompt) -> dict[str, tuple[tuple[int, ...], str]]:
    """Token ids and tenant of each request about the same documents, in the order in which they are sent; `other` lends
    the hit its question."""
    asked = chain([*((s.kind, s.ids) for s in prompt.segments[:-1]), ("question", other.segments[-1].ids)])
    return {
        "cold": (prompt.ids, "a"),
        "hit": (asked.ids, "a"),
        "reversed": (_reversed(prompt).ids, "a"),
        "other tenant": (prompt.ids, "b"),
    }


def blends(config: ServingConfig, folder: RunFolder, model: Model, servers: Servers) -> None:
    """vLLM with LMCache's blender: documents joined by its separator, and then the same in reversed order."""
    # LMCache drops the first id of the separator's text, as if it were a BOS
    separator = tuple(model.tokenizer.encode(SEPARATOR)[1:])
    parts = 2 + config.length // config.chunk
    prompts = _prompts(config, model, config.length - parts * len(separator))
    done = folder.done(("kind", "round"))
    for number in tqdm(range(-1, config.rounds), "blends", unit="round"):
        if ("blends", number) in done:
            continue
        prompt = prompts[number + 1]
        found = {}
        for way, sent in (("cold", prompt), ("reversed", _reversed(prompt))):
            found[way] = servers.blending.complete(join(sent, separator).ids)
        if number >= 0:
            cached = {way: completion.cached for way, completion in found.items()}
            seconds = {way: completion.ttft for way, completion in found.items()}
            passages = sum(len(s.ids) for s in prompt.segments if s.kind == "passage")
            record = {"kind": "blends", "round": number, "passages": passages, "cached": cached}
            folder.append({**record, "seconds": seconds})


def _prompts(config: ServingConfig, model: Model, length: int) -> list[ChunkedPrompt]:
    """One for each round, the warm-up included, and one that lends its question."""
    loaded = load(config.dataset, config.examples, config.seed, config.passages, config.data_dir or None)
    shape = (length, config.chunk, config.prefix, config.fresh)
    return [running_prompt(model, loaded, *shape, number) for number in range(config.rounds + 2)]


def _reversed(prompt: ChunkedPrompt) -> ChunkedPrompt:
    passages = sum(s.kind == "passage" for s in prompt.segments)
    return prompt.reordered(list(range(passages))[::-1])


def _of_ours(cache: PrefixCache) -> Ask:
    def ask(ids, salt):
        prefill, counts = ask_ours(cache, ids, salt)
        return prefill.report.seconds["ttft"], counts

    return ask


def _of(server: VLLM) -> Ask:
    def ask(ids, salt):
        completion = server.complete(ids, salt)
        return completion.ttft, {"cached": completion.cached}

    return ask
