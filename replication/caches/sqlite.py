"""A SQLite file as the home of a cache: processes may share it, and one that is killed loses at most its last write.

>>> database = open_database(":memory:", "notebook", ["CREATE TABLE notes (text TEXT)"])
>>> with transaction(database):
...     _ = database.execute("INSERT INTO notes VALUES ('kept')")
>>> database.execute("SELECT text FROM notes").fetchall()
[('kept',)]
"""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from replication.errors import ReplicationError

BUSY_SECONDS = 60.0


def open_database(path: str | Path, kind: str, schema: Sequence[str]) -> sqlite3.Connection:
    """The database at `path`, made with the statements `schema` when new.

    kind: what it is to be; a file of another kind is refused, and errors name it.
    A write that has returned survives the death of the process; after a power cut the last ones can be missing, but
    the file is sound. ReplicationError for a file that cannot be opened, is damaged or belongs to something else.
    """
    try:
        database = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        if _kind(database) not in (None, kind):
            raise ReplicationError(f"{path} is another program's database, not a {kind}: choose another file")
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = NORMAL")
        with transaction(database):
            if _kind(database) is None:
                for statement in ("CREATE TABLE kind (name TEXT NOT NULL)", *schema):
                    database.execute(statement)
                database.execute("INSERT INTO kind VALUES (?)", (kind,))
    except sqlite3.Error as error:
        raise ReplicationError(f"cannot open {path} as a {kind}: {error}; choose another file or delete it") from error
    return database


def _kind(database: sqlite3.Connection) -> str | None:
    """What the database says that it is: empty if nothing, None if it is new."""
    tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if not tables:
        return None
    return database.execute("SELECT name FROM kind").fetchone()[0] if "kind" in tables else ""


@contextmanager
def transaction(database: sqlite3.Connection) -> Iterator[None]:
    """All of the block's statements or none; takes the write lock first, so that what it reads stays true."""
    database.execute("BEGIN IMMEDIATE")
    try:
        yield
        database.execute("COMMIT")
    except BaseException:
        # SQLite rolls back by itself after some errors
        if database.in_transaction:
            database.execute("ROLLBACK")
        raise


@contextmanager
def explained(path: str | Path) -> Iterator[None]:
    """Turns a SQLite error of using `path` into a ReplicationError that says what to do."""
    try:
        yield
    except sqlite3.Error as error:
        raise ReplicationError(f"cannot use {path}: {error}; free some disk, or delete the file") from error
