"""Real multi-turn text as prefix caches see it: every call's prompt in token ids, and whose tokens it reuses."""

import json
from collections import deque
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from replication.caches.block_names import BlockNames
from replication.caches.block_pool import BlockPool, Name
from replication.caches.chat import Message, render
from replication.caches.replay import Visit, replay
from replication.data import tau_bench
from replication.errors import ReplicationError
from replication.stats import mean_ci, paired_difference, ratio_of_means

Conversation = list[tuple[int, ...]]  # the prompts of its calls


def prompts_of(conversations: Iterable[list[dict[str, Any]]], tokenizer: PreTrainedTokenizerBase) -> list[Conversation]:
    """Token ids of every call by the model's own chat template; a tool call is shown as the JSON that asks for it.

    Conversations without a call are left out. ReplicationError for a template that cannot show such messages.
    """
    try:
        prompts = [
            [render(tokenizer, [_message(m) for m in call]) for call in tau_bench.calls(messages)]
            for messages in conversations
        ]
        return [calls for calls in prompts if calls]
    except TemplateError as error:
        raise ReplicationError(
            f"this model's chat template cannot show tools' messages ({error}): take another"
        ) from error


def _message(message: dict[str, Any]) -> Message:
    asked = [f"<tool_call>\n{json.dumps(c['function'])}\n</tool_call>" for c in message.get("tool_calls") or []]
    return Message(message["role"], "\n".join([*filter(None, [message.get("content")]), *asked]))


def order(conversations: list[Conversation], at_once: int) -> Iterator[tuple[int, int]]:
    """(conversation, call) of each request while `at_once` conversations take turns; one that ends makes room."""
    waiting = deque(range(len(conversations)))
    talking = deque((waiting.popleft(), 0) for _ in range(min(at_once, len(waiting))))
    while talking:
        number, call = talking.popleft()
        yield number, call
        if call + 1 < len(conversations[number]):
            talking.append((number, call + 1))
        elif waiting:
            talking.append((waiting.popleft(), 0))


def names_of(conversations: list[Conversation], names: BlockNames) -> list[list[list[Name]]]:
    """Block names of every call. Equal ones are one object: a long chat names its beginning many times."""
    one = cache(lambda name: name)
    return [[[one(name) for name in names.of(ids)] for ids in prompts] for prompts in conversations]


def sharing(conversations: list[Conversation], size: int) -> Iterator[dict]:
    """For each conversation, in a pool with room for every block of `size` tokens: prompt tokens found, of all calls
    (`all`) and of the first one (`all_first`), and those found if conversations shared nothing (`within`)."""
    names = BlockNames("conversations", size)
    flat = [(number, ids) for number, prompts in enumerate(conversations) for ids in prompts]
    found = {}
    for kind in ("all", "within"):
        visits = (Visit(names.of(ids, str(number) if kind == "within" else "")) for number, ids in flat)
        blocks = replay(BlockPool(1 + sum(len(ids) // size for _, ids in flat)), visits)
        # a prompt's last token is always computed, for its logits
        found[kind] = [min(n * size, len(ids) - 1) for n, (_, ids) in zip(blocks, flat, strict=True)]
    at = 0
    for number, prompts in enumerate(conversations):
        own = slice(at, at + len(prompts))
        at += len(prompts)
        yield {
            "conversation": number,
            "calls": len(prompts),
            "tokens": sum(map(len, prompts)),
            "first": len(prompts[0]),
            "all": sum(found["all"][own]),
            "within": sum(found["within"][own]),
            "all_first": found["all"][own][0],
        }


def saved(records: list[dict], sizes: tuple[int, ...]) -> dict:
    """Shares of prompt tokens that were found, by block size; intervals are over conversations.

    within: by the conversation's own earlier calls; across: only because others were there; first_call: of the first
    calls' tokens, all by others.
    """
    rows = {size: [r for r in records if r["block"] == size] for size in sizes}
    return {str(size): _shares(found) for size, found in rows.items()}


def _shares(rows: list[dict]) -> dict:
    tokens = [r["tokens"] for r in rows]
    return {
        "all": ratio_of_means([r["all"] for r in rows], tokens),
        "within": ratio_of_means([r["within"] for r in rows], tokens),
        "across": ratio_of_means([r["all"] - r["within"] for r in rows], tokens),
        "first_call": ratio_of_means([r["all_first"] for r in rows], [r["first"] for r in rows]),
    }


def loss(records: list[dict], small: int, large: int) -> dict:
    """Paired difference of the share of prompt tokens found: with blocks of `large` tokens minus those of `small`."""
    shares = {size: [r["all"] / r["tokens"] for r in records if r["block"] == size] for size in (small, large)}
    return paired_difference(shares[large], shares[small])


def sizes_of(records: list[dict]) -> dict:
    """How long the conversations are: calls, and prompt tokens of a call on average."""
    return {
        "conversations": len(records),
        "calls": sum(r["calls"] for r in records),
        "tokens": sum(r["tokens"] for r in records),
        "tokens_per_call": mean_ci([r["tokens"] / r["calls"] for r in records]),
    }
