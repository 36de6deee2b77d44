"""Anthropic's prompt cache, simulated: cumulative prefixes, written at markers only, found by looking back from them.

>>> from datetime import date
>>> marked = {"type": "text", "text": "x" * 2000, "cache_control": {"type": "ephemeral"}}
>>> body = {"model": "claude-sonnet-4-6", "system": [marked], "messages": [{"role": "user", "content": "Hi"}]}
>>> cache = PromptCache(date(2026, 11, 1), tokenize=lambda text: tuple(text.encode()))
>>> [cache.ask(body, at=seconds).usage.read for seconds in (0, 299, 598, 898)]
[0, 2000, 2000, 0]
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any

from replication.caches.provider.request import ApiError, Rendered, Tokenize, render
from replication.caches.provider.rules import Rules, load_rules
from replication.caches.provider.usage import Usage
from replication.errors import ReplicationError

PLATFORMS = ("api", "bedrock", "vertex")


@dataclass
class _Entry:
    """A prefix that can be read until `expires`; every read puts that off by `seconds`."""

    seconds: int
    expires: float


@dataclass(frozen=True)
class Call:
    """A request that the cache was asked for.

    at: seconds on the caller's clock. keys: of the prefix that ends with each block. marks: blocks with a marker that
    counts. hit: blocks read. writes: block -> TTL of each prefix that will be an entry once the response begins.
    """

    rules: Rules
    prompt: Rendered
    at: float
    keys: tuple[bytes, ...]
    marks: tuple[int, ...]
    hit: int
    writes: Mapping[int, str]
    usage: Usage


class PromptCache:
    """Entries of all workspaces. on: the date whose rules hold; tokenize: stands in for the provider's own tokenizer,
    which is not public, so that counts are those of another vocabulary. Time is what the caller says it is.

    Errors of `open` and `ask`: ApiError where the API refuses the request, ReplicationError for a time that runs back.
    """

    def __init__(self, on: date, tokenize: Tokenize, platform: str = "api"):
        if platform not in PLATFORMS:
            raise ReplicationError(f"unknown platform '{platform}'; known: {', '.join(PLATFORMS)}")
        self.on, self.tokenize, self.platform = on, tokenize, platform
        self._entries: dict[bytes, _Entry] = {}
        self._now = float("-inf")

    def ask(self, body: Mapping[str, Any], at: float, **scope: str) -> Call:
        """A request whose response begins at once."""
        call = self.open(body, at, **scope)
        self.response_begins(call, at)
        return call

    def open(
        self, body: Mapping[str, Any], at: float, workspace: str = "default", organisation: str = "default"
    ) -> Call:
        """What a request that comes in at `at` reads and will write; what it reads lives on, free of charge."""
        rules, prompt = self._rendered(body)
        self._set_clock(at)
        keys = tuple(prompt.keys(self._scope(rules, workspace, organisation)))
        marks = _marks(prompt, rules)
        hit = max((self._hit(keys, mark, rules) for mark in marks), default=0)
        for key in keys[:hit]:
            if key in self._entries:
                self._entries[key].expires = at + self._entries[key].seconds
        writes = {mark: prompt.blocks[mark].ttl for mark in marks if mark >= hit}
        return Call(rules, prompt, at, keys, marks, hit, writes, _bill(prompt, hit, writes))

    def response_begins(self, call: Call, at: float) -> None:
        """From now on others can read what `call` writes."""
        self._set_clock(at)
        for block, ttl in call.writes.items():
            new = _Entry(call.rules["ttl"][ttl], at + call.rules["ttl"][ttl])
            old = self._entries.get(call.keys[block], new)  # from a request that began at the same time
            self._entries[call.keys[block]] = max(new, old, key=lambda entry: entry.seconds)

    def _rendered(self, body: Mapping[str, Any]) -> tuple[Rules, Rendered]:
        if not isinstance(body.get("model"), str):
            raise ApiError("model: field required")
        rules = load_rules("anthropic", body["model"], self.on)
        return rules, render(body, self.tokenize, rules)

    def _set_clock(self, at: float) -> None:
        if at < self._now:
            raise ReplicationError(f"time runs back from {self._now:g} s to {at:g} s: give requests in order of time")
        self._now = at
        self._entries = {key: entry for key, entry in self._entries.items() if at < entry.expires}

    def _scope(self, rules: Rules, workspace: str, organisation: str) -> str:
        """Only requests of the same model and the same owner share entries."""
        owner = [organisation] if rules["isolation"][self.platform] == "organisation" else [organisation, workspace]
        return repr([rules.model, *owner])

    def _hit(self, keys: tuple[bytes, ...], mark: int, rules: Rules) -> int:
        """Blocks of the longest prefix found within the look-back of the marker on block `mark`, which counts first."""
        window = range(mark, max(-1, mark - rules["lookback_blocks"]), -1)
        return next((block + 1 for block in window if keys[block] in self._entries), 0)


def _marks(prompt: Rendered, rules: Rules) -> tuple[int, ...]:
    """Marked blocks that end at or after the model's minimum length; the others are ignored without a word (S-32)."""
    ends = enumerate(prompt.ends)
    return tuple(b for b, end in ends if prompt.blocks[b].ttl is not None and end >= rules["minimum_tokens"])


def _bill(prompt: Rendered, hit: int, writes: Mapping[int, str]) -> Usage:
    """By positions in tokens: up to A is read, A to B (the last 1h marker) written for 1 h, B to C (the last marker)
    for 5 min, and the rest is ordinary input."""
    a = prompt.ends[hit - 1] if hit else 0
    b = max((prompt.ends[block] for block, ttl in writes.items() if ttl == "1h"), default=a)
    c = max((prompt.ends[block] for block in writes), default=a)
    return Usage(rest=len(prompt.ids) - c, read=a, write={"1h": b - a, "5m": c - b})
