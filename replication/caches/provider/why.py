"""Why a request read less than the one before it had in the cache (S-65): the settings, the first token, or the time.

>>> from datetime import date
>>> from replication.caches.provider.anthropic import PromptCache
>>> cache = PromptCache(date(2026, 11, 1), tokenize=lambda text: tuple(text.encode()))
>>> def ask(text: str, at: float):
...     system = [{"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}]
...     body = {"model": "claude-sonnet-4-6", "system": system, "messages": [{"role": "user", "content": "Hi"}]}
...     return cache.ask(body, at)
>>> first, second = ask("12:01 " + "x" * 2000, 60), ask("12:02 " + "x" * 2000, 120)
>>> why_missed(second, first)
Miss(reason='token 4 differs', token=4)
"""

from dataclasses import dataclass

from replication.caches.provider.anthropic import Call
from replication.caches.provider.request import LEVELS
from replication.prompt import first_difference


@dataclass(frozen=True)
class Miss:
    """token: where the prompt parts from the one before, if that is the reason."""

    reason: str
    token: int | None = None


def why_missed(call: Call, previous: Call | None) -> Miss | None:
    """One reason, the first that applies; None when there is no miss, or no earlier request to have read from.

    A miss: less was read than the previous request left in the cache, or nothing could be read at all.
    """
    if not call.marks:
        return Miss(_unmarked(call))
    if previous is None or not previous.marks:
        return None
    left = max(previous.marks)
    if call.hit > left:
        return None
    if call.rules.model != previous.rules.model:
        return Miss(f"another model: entries belong to {previous.rules.model}")
    end = previous.prompt.ends[left]
    at = first_difference(call.prompt.ids, previous.prompt.ids)
    for i, level in enumerate(LEVELS):
        head = sum(len(block.ids) for block in previous.prompt.blocks if block.level in LEVELS[:i])
        names = [n for n, v in previous.prompt.settings[level].items() if call.prompt.settings[level][n] != v]
        if names and head < end and (at is None or head <= at):
            return Miss(f"{' and '.join(names)} changed, which voids the {level} level from token {head} on")
    if at is not None and at < end:
        return Miss(f"token {at} differs", at)
    if call.keys[left : left + 1] != previous.keys[left : left + 1]:
        return Miss("the same tokens are cut into other blocks, or belong to another workspace")
    if not any(0 <= mark - left < call.rules["lookback_blocks"] for mark in call.marks):
        return Miss(f"no marker within {call.rules['lookback_blocks']} blocks of the entry at block {left + 1}")
    return Miss(f"{call.at - previous.at:g} s later the entry is gone, or its response had not begun")


def _unmarked(call: Call) -> str:
    ends = zip(call.prompt.blocks, call.prompt.ends, strict=True)
    marked = [end for block, end in ends if block.ttl is not None]
    if not marked:
        return "no cache_control"
    return f"{marked[-1]} tokens up to the last marker, fewer than the minimum of {call.rules['minimum_tokens']}"
