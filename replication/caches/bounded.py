"""Entries in a SQLite file, bounded in age and bytes: what the caches that store answers have in common.

>>> entries = BoundedEntries(":memory:", "list of words", ["word TEXT NOT NULL"], max_bytes=9)
>>> [entries.put(key, len(word), word) for key, word in (("a", "one"), ("b", "two"), ("c", "three"))]
[True, True, True]
>>> entries.get("a"), entries.get("c"), len(entries), entries.nbytes  # the first had to go
(None, ('three',), 2, 8)
"""

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from replication.caches.sqlite import explained, open_database, transaction
from replication.errors import ReplicationError


def _schema(columns: Sequence[str]) -> tuple[str, ...]:
    return (
        # AUTOINCREMENT: no row gets the number of one that was dropped
        "CREATE TABLE entries (row INTEGER PRIMARY KEY AUTOINCREMENT, key BLOB UNIQUE NOT NULL, bytes INTEGER NOT NULL,"
        f" expires REAL, used INTEGER NOT NULL, {', '.join(columns)})",
        "CREATE INDEX by_use ON entries (used)",
        "CREATE INDEX by_expiry ON entries (expires)",
        "CREATE TABLE totals (entries INTEGER NOT NULL, bytes INTEGER NOT NULL, uses INTEGER NOT NULL)",
        "INSERT INTO totals VALUES (0, 0, 0)",
        "CREATE TRIGGER added AFTER INSERT ON entries"
        " BEGIN UPDATE totals SET entries = entries + 1, bytes = bytes + NEW.bytes; END",
        "CREATE TRIGGER dropped AFTER DELETE ON entries"
        " BEGIN UPDATE totals SET entries = entries - 1, bytes = bytes - OLD.bytes; END",
    )


class BoundedEntries:
    """Entries by key in a SQLite file that processes may share; kind says what it is, columns (in SQL) what they hold.

    ttl_seconds: an entry is not given out from that age on; None: never too old. max_bytes: bound on the entries'
    bytes, kept by dropping the least recently used. clock: seconds since the epoch, the same for all processes.
    An entry does not change: what replaces it gets a row number above all before. ReplicationError for bounds that keep
    nothing, or a file that cannot be used.
    """

    def __init__(
        self,
        path: str | Path,
        kind: str,
        columns: Sequence[str],
        ttl_seconds: float | None = None,
        max_bytes: int | None = None,
        clock: Callable[[], float] = time.time,
    ):
        if not all(bound is None or bound > 0 for bound in (ttl_seconds, max_bytes)):
            raise ReplicationError(f"ttl_seconds and max_bytes of a {kind} must be above 0, or None")
        self.path, self.ttl_seconds, self.max_bytes, self.clock = path, ttl_seconds, max_bytes, clock
        self._values = ", ".join(column.split()[0] for column in columns)
        self._lock = threading.Lock()
        self.database = open_database(path, kind, _schema(columns))

    def put(self, key: bytes | str, nbytes: int, *values: Any) -> bool:
        """Stores an entry in place of an earlier one of that key; False, and nothing is stored, if it alone exceeds
        max_bytes."""
        if self.max_bytes is not None and nbytes > self.max_bytes:
            return False
        expires = None if self.ttl_seconds is None else self.clock() + self.ttl_seconds
        with self._lock, explained(self.path), transaction(self.database):
            self._drop_expired()
            self.database.execute("DELETE FROM entries WHERE key = ?", (key,))
            self.database.execute(
                f"INSERT INTO entries (key, bytes, expires, {self._values}, used)"
                f" SELECT {'?, ' * (3 + len(values))} uses FROM totals",
                (key, nbytes, expires, *values),
            )
            self._count_use()
            while self.max_bytes is not None and self.nbytes > self.max_bytes:
                self.database.execute("DELETE FROM entries WHERE row = (SELECT row FROM entries ORDER BY used LIMIT 1)")
        return True

    def get(self, key: bytes | str) -> tuple | None:
        """The values stored under a key, now the most recently used; None if there are none."""
        with self._lock, explained(self.path), transaction(self.database):
            self._drop_expired()
            found = self.database.execute(
                f"UPDATE entries SET used = (SELECT uses FROM totals) WHERE key = ? RETURNING {self._values}", (key,)
            ).fetchone()
            self._count_use()
        return found

    def key(self, row: int) -> bytes | str | None:
        """The key of a row; None if it is too old or has been dropped. Not a use."""
        found = self._live("key", "row = ?", row)
        return found[0][0] if found else None

    def newer(self, row: int, column: str, limit: int = 10_000) -> list[tuple[int, Any]]:
        """The first rows that were stored after `row`, in order, with their value of one column."""
        return self._live(f"row, {column}", "row > ?", row, f"ORDER BY row LIMIT {limit}")

    @property
    def nbytes(self) -> int:
        """Bytes of all entries."""
        return self._total("bytes")

    def __len__(self) -> int:
        """Entries, also those that are too old but not yet dropped."""
        return self._total("entries")

    def close(self) -> None:
        self.database.close()

    def _live(self, what: str, where: str, row: int, order: str = "") -> list[tuple]:
        with self._lock, explained(self.path):
            return self.database.execute(
                f"SELECT {what} FROM entries WHERE {where} AND (expires IS NULL OR expires > ?) {order}",
                (row, self.clock()),
            ).fetchall()

    def _total(self, name: str) -> int:
        return self.database.execute(f"SELECT {name} FROM totals").fetchone()[0]

    def _drop_expired(self) -> None:
        self.database.execute("DELETE FROM entries WHERE expires <= ?", (self.clock(),))

    def _count_use(self) -> None:
        # a counter, because two uses can fall on one tick of a clock, and a clock can be set back
        self.database.execute("UPDATE totals SET uses = uses + 1")
