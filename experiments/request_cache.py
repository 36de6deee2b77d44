"""The KV cache of one request: what it costs and saves, a chat that keeps it, quantized kinds (S-01 to S-07)."""

import statistics
from dataclasses import dataclass
from pathlib import Path

import torch
from tqdm import tqdm
from transformers import DynamicCache

from experiments.common import RagConfig, identify, require_dtypes, require_positive
from experiments.request_cache_figure import request_cache_figure
from experiments.request_cache_summary import summarise
from replication.bandwidth import memory_seconds, weight_bytes
from replication.caches.chat import ChatSession, Message, render
from replication.caches.quantized import GROUP, KINDS, make_cache, problem
from replication.caches.request import WithCache, WithoutCache, follow, kv_bytes_per_token, tensor_bytes
from replication.data import Loaded, RagExample, load
from replication.errors import ReplicationError
from replication.metrics.fidelity import fidelity
from replication.model import Model, load_model
from replication.prompt import first_difference, passage_text
from replication.records import RunFolder

__all__ = ["TITLE", "Config", "plot", "run", "summarise"]

TITLE = "The KV cache of one request: decode time and bytes, a chat that keeps it, quantized kinds"
ROWS = 8  # tokens in one step: if memory traffic bounds a step, they take hardly longer than one
SURVIVALS = 8


@dataclass(frozen=True)
class Config(RagConfig):
    """lengths: context in tokens at which `steps` decode steps are timed, `rounds` times. chats of `turns` turns with
    replies of at most `reply` tokens; none (`chats=0`) for a model without a chat template. windows: texts of `context`
    tokens whose next `continuation` tokens are decoded from each kind of cache. Every dtype of `dtypes` is measured,
    `dtype` is not used."""

    n: int = 60
    dtypes: tuple[str, ...] = ("float32", "bfloat16")
    lengths: tuple[int, ...] = (256, 512, 1024, 2048, 4096)
    rounds: int = 7
    steps: int = 8
    chats: int = 3
    turns: int = 20
    reply: int = 24
    windows: int = 12
    context: int = 1024
    continuation: int = 32

    def __post_init__(self):
        require_positive(self, "n", "rounds", "steps", "turns", "reply", "windows", "context", "continuation")
        require_dtypes(self.dtypes)
        if len(self.lengths) < 2 or min(self.lengths) < 1 or list(self.lengths) != sorted(set(self.lengths)):
            raise ReplicationError("lengths must be two or more, rising: growth is what is measured")
        if self.chats < 0:
            raise ReplicationError(f"chats must be 0 or more, not {self.chats}")
        if self.n < self.chats * self.turns:
            raise ReplicationError(f"{self.chats} chats of {self.turns} turns need n = {self.chats * self.turns}")
        if self.context % GROUP or self.continuation < 2:
            raise ReplicationError(
                f"context must be a multiple of {GROUP}, as quantizing per channel needs, and continuation 2 or more, "
                "because its first token comes from the prefill"
            )


def run(config: Config, folder: RunFolder) -> None:
    """All parts for each dtype; what the records already hold is not measured again."""
    loaded = load(config.dataset, config.n, config.seed, config.passages, config.data_dir or None)
    for dtype in config.dtypes:
        model = load_model(config.model, dtype, config.device)
        identify(folder, {"kind": f"inputs {dtype}", "model": model.weights, "data": loaded.provenance})
        ids, chats = _text(config, model, loaded), _conversations(config, model, loaded.examples)
        _steps(config, folder, model, dtype, ids)
        _survivals(folder, model, dtype, ids)
        _chats(config, folder, model, dtype, chats)
        _kinds(config, folder, model, dtype, ids)


def _text(config: Config, model: Model, loaded: Loaded) -> tuple[int, ...]:
    """Running text of the data set, as long as the longest part of the experiment needs."""
    text = "".join(passage_text(p) for e in loaded.examples for p in e.passages)
    ids = model.tokenizer(text, add_special_tokens=False)["input_ids"]
    longest = config.lengths[-1] + max(config.steps, ROWS) + 1
    if max(longest, config.context + config.continuation) > model.context_length:
        raise ReplicationError(f"the model's context is {model.context_length} tokens: set lengths or context lower")
    needed = max(longest, config.windows * (config.context + config.continuation))
    if len(ids) < needed:
        raise ReplicationError(f"{config.n} examples give {len(ids)} tokens, {needed} are needed: raise n")
    return tuple(ids)


def _conversations(config: Config, model: Model, examples: list[RagExample]) -> list[list[str]]:
    """What the user says in each chat: passages with their questions, and a last word after the edit."""
    if config.chats and not model.tokenizer.chat_template:
        raise ReplicationError("this model has no chat template: set chats=0, or take an instruction-tuned one")
    texts = [f"{passage_text(e.passages[0])}{e.question}" for e in examples]
    chats = [[*texts[i * config.turns : (i + 1) * config.turns], "Go on."] for i in range(config.chats)]
    for said in chats:
        messages = [message for text in said for message in (Message("user", text), Message("assistant", ""))]
        longest = len(render(model.tokenizer, messages)) + len(said) * config.reply
        if longest > model.context_length:
            raise ReplicationError(
                f"a chat may take {longest} tokens, the model's context is {model.context_length}: lower turns or reply"
            )
    return chats


def _steps(config: Config, folder: RunFolder, model: Model, dtype: str, ids: tuple[int, ...]) -> None:
    """Decode steps with and without the cache at every length, interleaved, with the bandwidth in the same round."""
    done = folder.done(("kind", "dtype", "round", "length"))
    todo = {(k, n) for k in range(config.rounds) for n in config.lengths if ("step", dtype, k, n) not in done}
    if not todo:
        return
    whole = WithCache(model)
    whole.advance(ids[: config.lengths[-1]])
    for number in tqdm(range(-1, config.rounds), f"steps, {dtype}", unit="round"):
        bandwidth = memory_seconds(model.device)
        for length in config.lengths:
            record = _step(config, model, whole.cache, ids, length, number + 1)
            if (number, length) in todo:  # the first round warms up
                record["seconds"] |= bandwidth
                folder.append({"kind": "step", "dtype": dtype, "round": number, "length": length, **record})


def _step(config: Config, model: Model, whole: DynamicCache, ids: tuple[int, ...], length: int, turn: int) -> dict:
    """The three ways to go on behind the first `length` tokens, in an order that rotates with `turn`."""
    seen, coming = ids[:length], ids[length:]
    cached, wide = (WithCache(model, _first(whole, length), seen) for _ in range(2))
    nbytes = tensor_bytes(cached.cache)
    ways = {
        "with": lambda: follow(cached, coming[:1], coming[1 : config.steps + 1]),
        "without": lambda: follow(WithoutCache(model, seen), coming[:1], coming[1:2]),
        "rows": lambda: follow(wide, coming[:ROWS], coming[ROWS : ROWS + 1]),
    }
    order = list(ways)[turn % 3 :] + list(ways)[: turn % 3]
    found = {way: ways[way]() for way in order}
    return {
        "bytes": nbytes,
        "grown": tensor_bytes(cached.cache) - nbytes,
        "bytes_per_token": kv_bytes_per_token(model.lm.config, model.dtype),
        "weights": weight_bytes(model),
        "logit_difference": (found["with"].logits[0] - found["without"].logits[0]).abs().max().item(),
        "threads": torch.get_num_threads(),
        "seconds": {way: statistics.median(found[way].seconds) for way in ways},
    }


def _first(cache: DynamicCache, tokens: int) -> DynamicCache:
    """A cache of its own with the first tokens of another, which do not depend on what came after them."""
    first = DynamicCache()
    for index, layer in enumerate(cache.layers):
        first.update(layer.keys[:, :, :tokens].clone(), layer.values[:, :, :tokens].clone(), index)
    return first


def _survivals(folder: RunFolder, model: Model, dtype: str, ids: tuple[int, ...]) -> None:
    """What a cache handed to `generate` holds afterwards."""
    done = folder.done(("kind", "dtype", "index"))
    for index in range(SURVIVALS):
        if ("survival", dtype, index) not in done:
            prompt, cache = ids[: 5 + 20 * index], DynamicCache()
            out = model.lm.generate(model.tensor(prompt), cache=cache, max_new_tokens=1 + 3 * index, do_sample=False)
            counts = {"prompt": len(prompt), "generated": out.shape[1] - len(prompt), "held": cache.get_seq_length()}
            folder.append({"kind": "survival", "dtype": dtype, "index": index, **counts})


def _chats(config: Config, folder: RunFolder, model: Model, dtype: str, chats: list[list[str]]) -> None:
    """Chats over a kept cache, each turn beside a prefill from nothing; the last one follows an edit of the history."""
    done = folder.done(("kind", "dtype", "chat", "turn"))
    for number, texts in enumerate(tqdm(chats, f"chats, {dtype}", unit="chat")):
        if ("turn", dtype, number, config.turns) in done:
            continue
        session, before, as_text = ChatSession(model, max_new_tokens=config.reply), None, ()
        for turn, text in enumerate(texts):
            edit = {"edited_at": _edit(session)} if turn == config.turns else {}
            before, as_text = _turn(session, text, turn, before, as_text)
            # a chat that was interrupted is held again from its start, because its cache is gone
            if ("turn", dtype, number, turn) not in done:
                folder.append({"kind": "turn", "dtype": dtype, "chat": number, "turn": turn, **edit, **before})


def _edit(session: ChatSession) -> int:
    """Lengthen the user's message in the middle of the chat; the token at which the chat is another one now."""
    old = render(session.model.tokenizer, session.messages)
    middle = len(session.messages) // 4 * 2
    session.edit(middle, session.messages[middle].text + " Why?")
    return first_difference(old, render(session.model.tokenizer, session.messages))


def _turn(session: ChatSession, text: str, number: int, before: dict | None, as_text: tuple) -> tuple[dict, tuple]:
    """(the record of one turn, the tokens of the chat made from its text and held in a cache after it); both are
    compared with those of the turn before."""
    model = session.model
    messages = [*session.messages, Message("user", text)]
    prompt = render(model.tokenizer, messages)
    ways = {"kept": lambda: session.say(text), "fresh": lambda: follow(WithCache(model), prompt, (0,))}
    found = {way: ways[way]() for way in (("kept", "fresh") if number % 2 else ("fresh", "kept"))}
    kept, fresh = found["kept"], found["fresh"]
    chat = [{"role": m.role, "content": m.text} for m in messages]
    rendered = tuple(model.tokenizer.apply_chat_template(chat, add_generation_prompt=True)["input_ids"])
    generated = len(kept.decoded.ids)
    record = {
        "prompt": len(prompt),
        "generated": generated,
        "prefilled": kept.reuse.prefilled,
        "parted": kept.reuse.parted,
        # over the tokens that are new in this turn
        "surplus": kept.reuse.prefilled - (len(prompt) - before["prompt"] - before["generated"]) if before else None,
        # the article's way: whether the chat, its replies decoded and tokenised again, goes on from the last one
        "text_extends": first_difference(as_text, rendered) in (None, len(as_text)) if before else None,
        "logit_difference": (kept.decoded.logits[0] - fresh.logits[0]).abs().max().item(),
        "seconds": {"kept": kept.decoded.seconds[0], "fresh": fresh.seconds[0]},
    }
    return record, rendered + kept.decoded.ids[:-1]


def _kinds(config: Config, folder: RunFolder, model: Model, dtype: str, ids: tuple[int, ...]) -> None:
    """Each kind of cache on the same texts, decoded token by token; kinds that do not work are recorded with why."""
    problems = {kind: problem(kind, model) for kind in KINDS}
    for kind, why in problems.items():
        if ("support", dtype, kind) not in folder.done(("kind", "dtype", "cell")):
            folder.append({"kind": "support", "dtype": dtype, "cell": kind, "problem": why})
    kinds = [kind for kind, why in problems.items() if why is None]
    done = folder.done(("kind", "dtype", "example", "cell"))
    for window in tqdm(range(config.windows), f"quantized, {dtype}", unit="text"):
        if all(("quantized", dtype, window, kind) in done for kind in kinds):
            continue
        start = window * (config.context + config.continuation)
        context = ids[start : start + config.context]
        coming = ids[start + config.context : start + config.context + config.continuation]
        found = {}
        for kind in kinds[window % len(kinds) :] + kinds[: window % len(kinds)]:
            decoder = WithCache(model, make_cache(kind, model))
            followed = follow(decoder, context, coming)
            found[kind] = (followed.logits.float().log_softmax(-1), tensor_bytes(decoder.cache), followed.seconds)
        for kind, (logprobs, nbytes, seconds) in found.items():
            if ("quantized", dtype, window, kind) not in done:
                # the first token comes from the prefill, which attends to K and V before they are quantized
                close = fidelity(found["full"][0][1:], logprobs[1:], coming[1:])
                folder.append(
                    {"kind": "quantized", "dtype": dtype, "example": window, "cell": kind, "bytes": nbytes}
                    | {metric: close[metric] for metric in ("nll", "kl_answer", "agreement")}
                    | {"seconds": {"prefill": seconds[0], "step": statistics.median(seconds[1:])}}
                )


def plot(folder: Path) -> None:
    request_cache_figure(folder)
