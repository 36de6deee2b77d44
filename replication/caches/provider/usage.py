"""A request's tokens as the provider counts them, and what they cost.

>>> from datetime import date
>>> from replication.caches.provider.rules import load_rules
>>> rules = load_rules("anthropic", "claude-sonnet-4-5", date(2026, 11, 1))
>>> first, second = Usage(rest=10, write={"5m": 2000}), Usage(rest=10, read=2000)
>>> first.cost(rules), second.cost(rules)
(2510.0, 210.0)
>>> round(first.dollars(rules, output_tokens=100), 6)
0.00903
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from replication.caches.provider.rules import Rules


@dataclass(frozen=True)
class Usage:
    """Prompt tokens. read: from the cache; write: TTL -> into the cache; rest: neither (after the last marker)."""

    rest: int
    read: int = 0
    write: Mapping[str, int] = field(default_factory=dict)

    @property
    def written(self) -> int:
        return sum(self.write.values())

    @property
    def total(self) -> int:
        return self.rest + self.read + self.written

    def cost(self, rules: Rules) -> float:
        """In tokens at the base input rate (S-34): `total` is what the same prompt costs without a cache."""
        return self.rest + self.read * rules["read"] + sum(n * rules["write"][ttl] for ttl, n in self.write.items())

    def dollars(self, rules: Rules, output_tokens: int = 0) -> float | None:
        """US dollars; None where the rules have no price for the model, because no source of one was found."""
        if "dollars" not in rules.values:
            return None
        rate_in, rate_out = rules["dollars"]
        return (self.cost(rules) * rate_in + output_tokens * rate_out) / 1e6

    def counters(self, output_tokens: int) -> dict:
        """The `usage` object of the Messages API (S-31)."""
        return {
            "input_tokens": self.rest,
            "cache_creation_input_tokens": self.written,
            "cache_read_input_tokens": self.read,
            "cache_creation": {f"ephemeral_{ttl}_input_tokens": self.write.get(ttl, 0) for ttl in ("5m", "1h")},
            "output_tokens": output_tokens,
        }
