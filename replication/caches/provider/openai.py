"""OpenAI's prompt cache, simulated: automatic prefixes in steps of 128 tokens, or explicit breakpoints (GPT-5.6).

>>> from datetime import date
>>> cache = OpenAICache("gpt-5.1", date(2026, 1, 1))
>>> prompt = tuple(range(1500))
>>> [cache.ask(prompt[:n], at=seconds).read for n, seconds in ((1500, 0), (1500, 60), (1200, 120), (1023, 180))]
[0, 1408, 1152, 0]
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

from replication.caches.provider.rules import load_rules
from replication.caches.provider.usage import Usage
from replication.errors import ReplicationError


@dataclass
class _Entry:
    """A prefix: when it was written and last read, in seconds."""

    written: float
    used: float


class OpenAICache:
    """Prompts of one organisation for one model. retention: `in_memory` or `24h` (models before GPT-5.6), `30m`.

    An entry lives as briefly as the rules allow. hidden_tokens: what the provider puts before the prompt, which the
    2026-09 page subtracts before rounding; it is not published.
    """

    def __init__(self, model: str, on: date, retention: str | None = None, hidden_tokens: int = 0):
        self.rules = load_rules("openai", model, on)
        self.retention = retention or self.rules["default_ttl"]
        if self.retention not in self.rules["ttl"]:
            raise ReplicationError(
                f"no retention '{self.retention}' for {model} on {on}; known: {', '.join(self.rules['ttl'])}"
            )
        self.hidden_tokens = hidden_tokens
        self._machines: dict[tuple, dict[bytes, _Entry]] = {}
        self._arrivals: dict[tuple, list[float]] = {}

    def ask(self, ids: Sequence[int], at: float, key: str = "", breakpoints: Sequence[int] | None = None) -> Usage:
        """What the prompt `ids` reads (cached_tokens) and writes (GPT-5.6: cache_write_tokens) at `at` seconds.

        key: prompt_cache_key; breakpoints: token counts after which explicit breakpoints stand, None for implicit ones.
        """
        entries = self._machines.setdefault(self._machine(ids, at, key), {})
        ends = self._ends(len(ids), breakpoints)
        hashes = {end: hashlib.sha256(repr(tuple(ids[:end])).encode()).digest() for end in ends}
        matched = max((end for end in ends if self._live(entries.get(hashes[end]), at)), default=0)
        for end in ends:
            if end <= matched and hashes[end] in entries:
                entries[hashes[end]].used = at
            elif end > matched:
                entries[hashes[end]] = _Entry(at, at)
        step = self.rules["step_tokens"]
        read = max(0, matched - self.hidden_tokens) // step * step
        write = max(ends, default=matched) - matched
        return Usage(rest=len(ids) - read - write, read=read, write={self.retention: write})

    def _ends(self, length: int, breakpoints: Sequence[int] | None) -> list[int]:
        """Where entries can end."""
        least, step = self.rules["minimum_tokens"], self.rules["step_tokens"]
        if breakpoints is None:
            return list(range(least, length + 1, step))
        if "30m" not in self.rules["ttl"]:
            raise ReplicationError(f"{self.rules.model} takes no explicit breakpoints: GPT-5.6 and later models do")
        return [end for end in sorted(breakpoints) if least <= end <= length]

    def _machine(self, ids: Sequence[int], at: float, key: str) -> tuple:
        """Requests of a minute with the same first tokens and key go to one machine, until it has its share."""
        route = (tuple(ids[: self.rules["routed_tokens"]]), key)
        recent = [t for t in self._arrivals.get(route, []) if t > at - 60]
        self._arrivals[route] = [*recent, at]
        return (*route, len(recent) // self.rules["requests_per_minute"])

    def _live(self, entry: _Entry | None, at: float) -> bool:
        if entry is None:
            return False
        idle, age = self.rules["ttl"][self.retention], self.rules["max_age"][self.retention]
        return at - entry.used < idle and at - entry.written < age
