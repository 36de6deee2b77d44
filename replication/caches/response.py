"""Exact response cache (S-50): a finished answer is served to the same request, byte for byte, and to no other.

>>> cache = ResponseCache(":memory:")
>>> request = {"model": "m", "messages": [{"role": "user", "content": "Hello"}], "temperature": 0}
>>> cache.get(request) is None, cache.put(request, b"Hi!"), cache.get(request)
(True, True, b'Hi!')
>>> cache.get(request | {"max_tokens": None}) is None  # null is not the same as absent
True
>>> cache.put(request | {"temperature": 0.7}, b"Hey!")  # sampled: no answer is the answer
False
"""

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from replication.caches.bounded import BoundedEntries
from replication.errors import ReplicationError

# Raise it when the encoding or IGNORED changes: entries of another version are never found, and age out.
KEY_VERSION = 1
# Fields that say how an answer is delivered, accounted or billed, not what it is. Every other field, also one that is
# not known yet, is part of the key.
IGNORED = frozenset({"metadata", "service_tier", "stream", "stream_options", "timeout", "user"})


def encode_request(request: Mapping[str, Any]) -> bytes:
    """The request as canonical bytes, which two requests share only if every field that counts is the same.

    The order of the request's own fields does not matter; inside a field it does, because tool schemas are rendered
    into the prompt in the order given (S-61). 0, 0.0, false, null and an absent field are five different things.
    ReplicationError for what JSON would confuse with something else: NaN, or keys that are no text.
    """
    counted = {key: value for key, value in request.items() if key not in IGNORED}
    _check(counted, "request")
    ordered = dict(sorted(counted.items()))
    return json.dumps([KEY_VERSION, ordered], separators=(",", ":"), allow_nan=False).encode()


def request_key(request: Mapping[str, Any]) -> bytes:
    """SHA-256 of the canonical bytes."""
    return hashlib.sha256(encode_request(request)).digest()


def is_deterministic(request: Mapping[str, Any]) -> bool:
    """Whether the temperature is given and 0: only then is a stored answer the one that would come again.

    Absent or null is the provider's default, which samples (user report 40).
    """
    temperature = request.get("temperature")
    return isinstance(temperature, (int, float)) and not isinstance(temperature, bool) and temperature == 0


def _check(value: Any, place: str) -> None:
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise ReplicationError(f"{place} has the key {key!r}: only text can be one")
            _check(item, f"{place}.{key}")
    elif isinstance(value, (list, tuple)):
        for number, item in enumerate(value):
            _check(item, f"{place}[{number}]")
    elif isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        raise ReplicationError(f"{place} is {value}, which JSON cannot say")
    elif not (value is None or isinstance(value, (str, int, float))):
        raise ReplicationError(f"{place} is a {type(value).__name__}: a request holds what JSON can say")


class ResponseCache:
    """Answers by request in a SQLite file that processes may share.

    ttl_seconds, max_bytes, clock: as of BoundedEntries; the bytes are those of the answers.
    Store only complete, successful answers, and keep one file for each tenant: nothing here tells tenants apart.
    """

    def __init__(
        self,
        path: str | Path,
        ttl_seconds: float | None = None,
        max_bytes: int | None = None,
        clock: Callable[[], float] = time.time,
    ):
        self._entries = BoundedEntries(path, "response cache", ["body BLOB NOT NULL"], ttl_seconds, max_bytes, clock)

    def get(self, request: Mapping[str, Any]) -> bytes | None:
        """The stored answer, now the most recently used; None if there is none, or the request is not deterministic."""
        found = self._entries.get(request_key(request)) if is_deterministic(request) else None
        return found and found[0]

    def put(self, request: Mapping[str, Any], body: bytes) -> bool:
        """Stores the answer in place of an earlier one; False, and nothing is stored, if the request samples or the
        answer alone exceeds max_bytes."""
        return is_deterministic(request) and self._entries.put(request_key(request), len(body), bytes(body))

    @property
    def nbytes(self) -> int:
        """Bytes of all answers."""
        return self._entries.nbytes

    def __len__(self) -> int:
        """Entries, also those that are too old but not yet dropped."""
        return len(self._entries)

    def close(self) -> None:
        self._entries.close()
