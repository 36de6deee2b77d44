"""Gemini's context caches: the best that the implicit one can do, and what an explicit one costs.

>>> from datetime import date
>>> implicit_best((1,) * 2000 + (2,), [(1,) * 2000], "gemini-2.5-flash", date(2026, 11, 1))
Usage(rest=1, read=2000, write={})
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date

from replication.caches.provider.rules import Rules, load_rules
from replication.caches.provider.usage import Usage
from replication.errors import ReplicationError
from replication.prompt import first_difference


def implicit_best(ids: Sequence[int], earlier: Iterable[Sequence[int]], model: str, on: date) -> Usage:
    """Tokens read if the implicit cache keeps every earlier prompt: an upper bound, for a hit is not guaranteed and its
    lifetime is not published."""
    rules = load_rules("gemini", model, on)
    common = max((_common(ids, other) for other in earlier), default=0)
    read = common if common >= rules["minimum_tokens"] else 0
    return Usage(rest=len(ids) - read, read=read)


@dataclass(frozen=True)
class ExplicitCache:
    """`tokens` tokens kept from `created` on, for `ttl` seconds (None: the default of the rules)."""

    rules: Rules
    tokens: int
    created: float
    ttl: float | None = None

    @property
    def expires(self) -> float:
        return self.created + (self.rules["default_ttl_seconds"] if self.ttl is None else self.ttl)

    def ask(self, fresh: int, at: float) -> Usage:
        """A request with `fresh` tokens after the cached ones; cachedContentTokenCount is `read`."""
        if not self.created <= at < self.expires:
            raise ReplicationError(f"the explicit cache does not exist at {at:g} s: it expires at {self.expires:g} s")
        return Usage(rest=fresh, read=self.tokens)

    def keeping_cost(self, storage: float) -> float:
        """Creation and storage, in tokens at the input rate; storage: price of a token-hour over that of a token."""
        return self.tokens * (1 + storage * (self.expires - self.created) / 3600)


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    at = first_difference(tuple(a), tuple(b))
    return len(a) if at is None else at
